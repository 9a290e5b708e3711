"""A figure as data: panels that draw themselves, arranged in a file or one by one on the page, and the key to them."""

from __future__ import annotations

import io
import textwrap
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import matplotlib
from matplotlib.artist import Artist
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from poise.report.colours import WHITE
from poise.report.records.groups import Setting

STYLE: dict[Any, Any] = {
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.titlesize": 9,
    "figure.dpi": 110,
    "axes.facecolor": "none",
    "savefig.dpi": 160,
    "svg.hashsalt": "poise",
    "svg.fonttype": "none",
    "hatch.linewidth": 0.8,
    "figure.constrained_layout.use": True,
    "text.parse_math": False,
}
ACROSS = 4  # panels side by side in a file
# Inches of a panel on the page, by the number of panels side by side. The page shows an inch at 85 to 115 pixels, so
# that the text of 9 points has at least 11 pixels. NARROW is for four or more, and for telephones.
NARROW = 3.2
PANEL_WIDTHS = {1: 8.6, 2: 5.6, 3: 3.7}
MARKERS = {"dot": "o", "square": "s", "ring": "o", "diamond": "D", "triangle": "^", "wedge": "v"}


@dataclass(frozen=True)
class KeyEntry:
    """One line of a figure's key: what a mark stands for. The page writes keys as text, files draw them as legends."""

    label: str
    colour: str = ""  # none: the label alone
    kind: str = "line"  # "line", "area", "hatched" or one of MARKERS
    dash: str = "-"  # matplotlib's line style

    def handle(self) -> Artist:
        """Return the mark as matplotlib's legends draw it."""
        colour = self.colour or "none"
        if self.kind in ("area", "hatched"):
            return Patch(facecolor=colour, edgecolor=WHITE, hatch="////" if self.kind == "hatched" else None)
        if self.kind == "line":
            line = Line2D([], [], color=colour)
            line.set_linestyle(self.dash)  # type: ignore[arg-type]
            return line
        face = "none" if self.kind == "ring" else colour
        return Line2D([], [], color=colour, linestyle="", marker=MARKERS[self.kind], markerfacecolor=face)


@dataclass(frozen=True)
class Panel:
    """One part of a figure; ``draw`` takes one axes for each of `Plot.heights`."""

    title: str
    draw: Callable[..., None]
    alt: str = ""  # what it shows in words, besides both titles


@dataclass(frozen=True, kw_only=True)
class Plot:
    """A figure: in a file with four panels per row, on the page with one image per panel."""

    name: str  # of the files, without extension
    title: str
    panels: tuple[Panel, ...]
    heights: tuple[float, ...] = (2.6,)  # of the axes of a panel, in inches
    key: tuple[KeyEntry, ...] = ()
    setting: Setting | None = None
    dataset: str = ""

    def figure(self) -> Figure:
        """Draw all panels under the title, with the key beside a single panel, or below several."""
        columns = min(len(self.panels), ACROSS)
        single = columns == 1
        width = 5.2 if single else columns * NARROW
        labels = [entry.label for entry in self.key]
        widest = 0.5 + 0.068 * max(map(len, labels), default=0)  # inches
        across = max(1, min(len(labels), int(width / widest)))
        beside = widest if single and labels else 0.0
        rows = -(-len(self.panels) // columns)
        below = 0.0 if single or not labels else 0.1 + 0.19 * -(-len(labels) // across)
        title = textwrap.fill(self.title, int(11 * (width + beside)))
        height = rows * (sum(self.heights) + 0.4) + below + 0.2 * (1 + title.count("\n"))
        figure = self.draw(self.panels, columns, (width + beside, max(height, 0.2 * len(labels) * single)))
        figure.suptitle(title, fontsize=10)
        if labels:
            handles = [entry.handle() for entry in self.key]
            place: dict[str, Any] = {"loc": "outside right center"} if single else {"loc": "outside lower center"}
            figure.legend(handles, labels, frameon=False, ncols=1 if single else across, fontsize=9, **place)
        return figure

    def svg(self, panel: Panel, width: float) -> str:
        """Return one panel, ``width`` inches wide, without title of the figure, key and background, for the page."""
        with matplotlib.rc_context(STYLE):
            figure = self.draw((panel,), 1, (width, sum(self.heights) + 0.4))
            plain = {"Date": None, "Creator": None}
            return rendered(figure, "svg", transparent=True, metadata=plain).decode()

    def draw(self, panels: tuple[Panel, ...], columns: int, size: tuple[float, float]) -> Figure:
        """Return a figure of this size in inches with these panels, in so many columns."""
        figure, rows, parts = Figure(figsize=size), -(-len(panels) // columns), len(self.heights)
        FigureCanvasAgg(figure)
        table = figure.subplots(rows * parts, columns, squeeze=False, height_ratios=self.heights * rows)
        for at in range(rows * columns):
            row, column = divmod(at, columns)
            cell = [table[row * parts + part][column] for part in range(parts)]
            if at < len(panels):
                wrapped = (textwrap.fill(line, 40) for line in panels[at].title.split("\n"))
                cell[0].set_title("\n".join(wrapped))
                panels[at].draw(*cell)
            else:
                for axes in cell:
                    axes.set_axis_off()
        return figure


def rendered(figure: Figure, form: str, **options: Any) -> bytes:
    """Return the file of a figure; characters that the font does not have are drawn as boxes, without a warning."""
    sink = io.BytesIO()
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing from")
        figure.savefig(sink, format=form, **options)
    return sink.getvalue()
