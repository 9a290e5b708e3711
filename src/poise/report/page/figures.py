"""Figures on the page: SVG in the page's colours, at widths at which their text is readable, and keys as text."""

from __future__ import annotations

import html
import re
from collections.abc import Iterator, Sequence
from itertools import groupby

from poise.errors import InvalidDatasetError, MissingDependencyError
from poise.report.colours import WHITE, on_dark
from poise.report.figures.kinds import FigureKind
from poise.report.figures.plot import NARROW, PANEL_WIDTHS, KeyEntry, Panel, Plot
from poise.report.records.runs import Records
from poise.report.records.scores import Scoreboard

_HEX = re.compile(r"(?<=[:\"] )#[0-9a-f]{6}\b|(?<=[:\"])#[0-9a-f]{6}\b")
_DASHES = {"-": "", "--": "5 3", ":": "1.5 2.5", "-.": "6 2.5 1.5 2.5"}


def figures_html(board: Scoreboard, kind: FigureKind, numbers: Iterator[int]) -> str:
    """Return all figures of one kind, those of one panel side by side; the reason where they can't be drawn."""
    try:
        runs = groupby(kind.plots(board), lambda plot: len(plot.panels) > 1)
        return "".join(_plots(board.records, list(plots), numbers, several) for several, plots in runs)
    except (InvalidDatasetError, MissingDependencyError) as reason:
        return f"<p>{html.escape(str(reason))}</p>"


def _plots(records: Records, plots: Sequence[Plot], numbers: Iterator[int], several: bool) -> str:
    """Return plots of several panels below each other, the first unfolded; single panels beside each other."""
    if several:
        same = len({plot.key for plot in plots}) == 1
        blocks = [
            f"<details{_found_by(records, plot)}{' open' * (plot is plots[0])}>"
            f"<summary><h3>{html.escape(plot.title)}</h3></summary>{'' if same else _key(plot.key)}"
            f"{_grid([_figure(plot, panel, across(len(plot.panels)), numbers) for panel in plot.panels])}</details>"
            for plot in plots
        ]
        return (_key(plots[0].key) if same else "") + "".join(blocks)
    alone = len(plots) == 1
    same = len({plot.key for plot in plots}) == 1
    cells = []
    for plot in plots:
        heading = f"<h3>{html.escape(plot.title)}</h3>" if len(records.settings) > 1 or not plot.panels[0].title else ""
        key = "" if same else _key(plot.key)
        figure = _figure(plot, plot.panels[0], across(len(plots)), numbers)
        cells.append(f"<div{_found_by(records, plot)}>{heading}{figure}{key}</div>")
    if alone:
        return f'<div class="beside">{cells[0]}{_key(plots[0].key)}</div>'
    return (_key(plots[0].key) if same else "") + _grid(cells)


def across(panels: int) -> int:
    """Return how many panels a large window shows side by side: at most four, or three where they fill the rows."""
    return min(panels, 3 if panels in (5, 6, 9) else 4)


def _grid(cells: Sequence[str]) -> str:
    return f'<div class="plots across{across(len(cells))}">{"".join(cells)}</div>'


def _found_by(records: Records, plot: Plot) -> str:
    """Return the attributes by which the script finds what to hide."""
    setting = "" if plot.setting is None else f' data-setting="{records.settings.index(plot.setting)}"'
    return setting + (f' data-dataset="{html.escape(plot.dataset)}"' if plot.dataset else "")


def _figure(plot: Plot, panel: Panel, beside: int, numbers: Iterator[int]) -> str:
    """Return one panel; where few share the width, drawn wide for large windows and narrow for telephones."""
    label = ": ".join(filter(None, (plot.title, panel.title, panel.alt)))
    widths = {"": PANEL_WIDTHS.get(beside, NARROW)}
    if beside < 3:
        widths = {"wide": PANEL_WIDTHS[beside], "narrow": NARROW}
    svgs = [inline_svg(plot.svg(panel, width), next(numbers), label, name) for name, width in widths.items()]
    return f"<figure>{''.join(svgs)}</figure>"


def _key(entries: Sequence[KeyEntry]) -> str:
    items = "".join(f"<li>{_swatch(entry)}{html.escape(entry.label)}</li>" for entry in entries)
    return f'<ul class="key" aria-label="Key">{items}</ul>' if items else ""


def _swatch(entry: KeyEntry) -> str:
    """Return the mark of a key as a small drawing."""
    if not entry.colour:
        return ""
    shade = variable(entry.colour)
    stroke = f'stroke="{shade}" stroke-width="2"'
    shapes = {
        "line": f'<path d="M0 6H24" {stroke} stroke-dasharray="{_DASHES.get(entry.dash, "")}"/>',
        "area": f'<rect x="2" width="20" height="12" rx="2" fill="{shade}"/>',
        "hatched": f'<rect x="2" width="20" height="12" fill="{shade}"/><path d="M4 12L10 0M9 12L15 0M14 12L20 0" '
        f'stroke="{variable(WHITE)}"/>',
        "dot": f'<circle cx="12" cy="6" r="5" fill="{shade}"/>',
        "ring": f'<circle cx="12" cy="6" r="4" fill="none" {stroke}/>',
        "square": f'<rect x="7" y="1" width="10" height="10" fill="{shade}"/>',
        "triangle": f'<path d="M12 0L18 11H6Z" fill="{shade}"/>',
        "wedge": f'<path d="M12 12L18 1H6Z" fill="{shade}"/>',
        "diamond": f'<path d="M12 0L18 6L12 12L6 6Z" fill="{shade}"/>',
    }
    return f'<svg class="swatch" viewBox="0 0 24 12" aria-hidden="true">{shapes[entry.kind]}</svg>'


def inline_svg(svg: str, number: int, label: str, name: str = "") -> str:
    """Return Matplotlib's SVG as part of a page, with ids that no other figure has and the page's colours."""
    text = svg[svg.index("<svg") :]
    text = re.sub(r"<metadata>.*?</metadata>|<style .*?</style>", "", text, flags=re.DOTALL)
    text = re.sub(r'(\bid="|url\(#|href="#)', rf"\g<1>f{number}-", text)
    text = re.sub(r"<[^>]*>", lambda tag: _HEX.sub(lambda found: variable(found[0]), tag[0]), text)
    text = re.sub("<[^>]*>", lambda tag: re.sub(r"(\d+\.\d\d)\d+", r"\1", tag[0]), text)  # hundredths of a point
    kind = f'class="{name}" ' if name else ""
    shown = html.escape(" ".join(label.split()))
    return text.replace("<svg ", f'<svg {kind}role="img" aria-label="{shown}" ', 1).strip()


def variable(colour: str) -> str:
    """Return the CSS variable of a colour; see `palette`."""
    return f"var(--c{colour.lower().removeprefix('#')})"


def palette(page: str) -> str:
    """Return the style rules that give every colour variable of a page its light and its dark value."""
    used = [f"#{name}" for name in sorted(set(re.findall(r"var\(--c([0-9a-f]{6})\)", page)))]
    light = " ".join(f"--c{colour[1:]}: {colour};" for colour in used)
    dark = " ".join(f"--c{colour[1:]}: {on_dark(colour)};" for colour in used)
    return f":root {{ {light} }}\n@media (prefers-color-scheme: dark) {{ :root {{ {dark} }} }}"
