"""Figures on the page: SVG in the page's colours, at widths at which their text is readable, and keys as text."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import partial
from itertools import groupby

from markupsafe import Markup, escape

from poise.errors import InvalidDatasetError, MissingDependencyError
from poise.report.colours import WHITE, on_dark
from poise.report.figures.kinds import FigureKind
from poise.report.figures.plot import NARROW, PANEL_WIDTHS, Panel, Plot
from poise.report.html import rendered
from poise.report.records.scores import Scoreboard
from poise.text import printable

_HEX = re.compile(r"(?<=[:\"] )#[0-9a-f]{6}\b|(?<=[:\"])#[0-9a-f]{6}\b")
_DASHES = {"-": "", "--": "5 3", ":": "1.5 2.5", "-.": "6 2.5 1.5 2.5"}


def figures_html(board: Scoreboard, kind: FigureKind, numbers: Iterator[int]) -> Markup:
    """Return all figures of one kind, those of one panel side by side; the reason where they can't be drawn."""
    try:
        groups = [(several, list(plots)) for several, plots in groupby(kind.plots(board), _has_panels)]
        return rendered(
            "figures.html",
            groups=groups,
            records=board.records,
            across=across,
            drawn=partial(_svgs, numbers=numbers),
            variable=variable,
            dashes=_DASHES,
            white=WHITE,
        ).strip()
    except (InvalidDatasetError, MissingDependencyError) as reason:
        return Markup("<p>{}</p>").format(str(reason))


def _has_panels(plot: Plot) -> bool:
    """Return whether a plot has several panels; those are shown below each other, others side by side."""
    return len(plot.panels) > 1


def across(panels: int) -> int:
    """Return how many panels a large window shows side by side: at most four, or three where they fill the rows."""
    return min(panels, 3 if panels in (5, 6, 9) else 4)


def _svgs(plot: Plot, panel: Panel, beside: int, numbers: Iterator[int]) -> list[Markup]:
    """Return one panel; where few share the width, drawn wide for large windows and narrow for telephones."""
    label = ": ".join(filter(None, (plot.title, panel.title, panel.alt)))
    widths = {"": PANEL_WIDTHS.get(beside, NARROW)}
    if beside < 3:
        widths = {"wide": PANEL_WIDTHS[beside], "narrow": NARROW}
    return [inline_svg(plot.svg(panel, width), next(numbers), label, name) for name, width in widths.items()]


def inline_svg(svg: str, number: int, label: str, name: str = "") -> Markup:
    """Return Matplotlib's SVG as part of a page, with ids that no other figure has and the page's colours."""
    text = svg[svg.index("<svg") :]
    text = re.sub(r"<metadata>.*?</metadata>|<style .*?</style>", "", text, flags=re.DOTALL)
    text = re.sub(r'(\bid="|url\(#|href="#)', rf"\g<1>f{number}-", text)
    text = re.sub(r"<[^>]*>", lambda tag: _HEX.sub(lambda found: variable(found[0]), tag[0]), text)
    text = re.sub("<[^>]*>", lambda tag: re.sub(r"(\d+\.\d\d)\d+", r"\1", tag[0]), text)  # hundredths of a point
    kind = f'class="{name}" ' if name else ""
    shown = escape(printable(" ".join(label.split())))
    return Markup(text.replace("<svg ", f'<svg {kind}role="img" aria-label="{shown}" ', 1).strip())


def variable(colour: str) -> str:
    """Return the CSS variable of a colour; see `palette`."""
    return f"var(--c{colour.lower().removeprefix('#')})"


def palette(page: str) -> str:
    """Return the style rules that give every colour variable of a page its light and its dark value."""
    used = [f"#{name}" for name in sorted(set(re.findall(r"var\(--c([0-9a-f]{6})\)", page)))]
    light = " ".join(f"--c{colour[1:]}: {colour};" for colour in used)
    dark = " ".join(f"--c{colour[1:]}: {on_dark(colour)};" for colour in used)
    return f":root {{ {light} }}\n@media (prefers-color-scheme: dark) {{ :root {{ {dark} }} }}"
