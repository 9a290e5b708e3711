"""A figure as data: panels that draw themselves, arranged in a file or one by one on the page."""

from __future__ import annotations

import io
import textwrap
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import matplotlib
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from poise.report.groups import Setting

STYLE: dict[Any, Any] = {
    "font.size": 9, "axes.spines.top": False, "axes.spines.right": False, "axes.titlesize": 9, "figure.dpi": 110,
    "axes.facecolor": "none", "savefig.dpi": 160, "svg.hashsalt": "poise", "svg.fonttype": "none",
    "hatch.linewidth": 0.6, "figure.constrained_layout.use": True, "text.parse_math": False,
}  # fmt: skip
ACROSS = 4  # panels side by side in a file


@dataclass(frozen=True)
class Panel:
    """One part of a figure; ``draw`` takes one axes for each of `Plot.heights`."""

    title: str
    draw: Callable[..., None]


@dataclass(frozen=True, kw_only=True)
class Plot:
    """A figure: in a file with four panels per row, on the page with one image per panel."""

    name: str  # of the files, without extension
    title: str
    panels: tuple[Panel, ...]
    width: float = 2.9  # of a panel, in inches
    heights: tuple[float, ...] = (2.6,)  # of the axes of a panel
    setting: Setting | None = None
    dataset: str = ""

    def figure(self, only: Panel | None = None) -> Figure:
        """Draw all panels under the title, or ``only`` one of them without it."""
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
                shown[at].draw(*cell)
            else:
                for axes in cell:
                    axes.set_axis_off()
        if only is None:
            figure.suptitle(textwrap.fill(self.title, int(12 * size[0])), fontsize=10)
        return figure

    def svgs(self) -> Iterator[tuple[Panel, str]]:
        """Yield each panel with its SVG, which has no background, for the page."""
        for panel in self.panels:
            with matplotlib.rc_context(STYLE):
                plain = {"Date": None, "Creator": None}
                content = rendered(self.figure(panel), "svg", transparent=True, metadata=plain)
            yield panel, content.decode()


def rendered(figure: Figure, form: str, **options: Any) -> bytes:
    """Return the file of a figure; characters that the font does not have are drawn as boxes, without a warning."""
    sink = io.BytesIO()
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing from")
        figure.savefig(sink, format=form, **options)
    return sink.getvalue()
