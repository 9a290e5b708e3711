"""A figure as data, and the registry of the kinds of figures."""

from __future__ import annotations

import io
import textwrap
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from poise.registry import Registry
from poise.report.runs import Setting
from poise.report.scores import Scoreboard

STYLE: dict[Any, Any] = {
    "font.size": 9, "axes.spines.top": False, "axes.spines.right": False, "axes.titlesize": 9, "figure.dpi": 110,
    "axes.facecolor": "none", "savefig.dpi": 160, "svg.hashsalt": "poise", "svg.fonttype": "none",
    "hatch.linewidth": 0.6, "figure.constrained_layout.use": True, "text.parse_math": False,
}  # fmt: skip
ACROSS = 4  # panels side by side in a file


@dataclass(frozen=True)
class Panel:
    """One part of a figure; ``draw`` fills a column of axes, from top to bottom."""

    title: str
    draw: Callable[[Sequence[Axes]], None]


@dataclass(frozen=True, kw_only=True)
class Plot:
    """A figure as data: in a file its panels stand four in a row, on the page each one is an image of its own."""

    name: str  # of the files, without ending
    title: str
    panels: tuple[Panel, ...]
    width: float = 2.9  # of a panel, in inches
    heights: tuple[float, ...] = (2.6,)  # of the axes of a panel
    setting: Setting | None = None
    dataset: str = ""

    def figure(self, only: Panel | None = None) -> Figure:
        """All panels under the title, or ``only`` one of them without it."""
        shown = self.panels if only is None else (only,)
        columns = min(len(shown), ACROSS)
        rows = -(-len(shown) // columns)
        size = columns * self.width + 0.3, rows * (sum(self.heights) + 0.4) + (0.3 if only is None else 0.0)
        figure = Figure(figsize=size)
        FigureCanvasAgg(figure)
        table = figure.subplots(rows * len(self.heights), columns, squeeze=False, height_ratios=self.heights * rows)
        for at in range(rows * columns):
            row, column = divmod(at, columns)
            cell = [table[row * len(self.heights) + part][column] for part in range(len(self.heights))]
            if at < len(shown):
                cell[0].set_title(shown[at].title)
                shown[at].draw(cell)
            else:
                for axes in cell:
                    axes.set_axis_off()
        if only is None:
            figure.suptitle(textwrap.fill(self.title, int(12 * size[0])), fontsize=10)
        return figure

    def svgs(self) -> Iterator[tuple[Panel, str]]:
        """Each panel as an SVG without a background, for the page."""
        for panel in self.panels:
            with matplotlib.rc_context(STYLE):
                sink = io.StringIO()
                self.figure(panel).savefig(
                    sink, format="svg", transparent=True, metadata={"Date": None, "Creator": None}
                )
            yield panel, sink.getvalue()


@dataclass(frozen=True, kw_only=True)
class FigureKind:
    """A kind of figure: what it shows, how to read it, and which metrics it needs."""

    name: str
    title: str
    about: str
    plots: Callable[[Scoreboard], Iterator[Plot]]
    metrics: tuple[str, ...] | None = ()  # None: all


kinds = Registry[FigureKind]("figure")
