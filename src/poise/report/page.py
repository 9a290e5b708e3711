"""One self-contained HTML page with every table and figure of a folder of runs; it needs no network and no script."""

from __future__ import annotations

import html
import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from importlib.resources import files
from itertools import count, groupby
from pathlib import Path
from typing import Any

from poise import metrics as rows
from poise.data import catalog
from poise.errors import InvalidDatasetError, MissingDependencyError
from poise.report import formats, published
from poise.report.analyses import analysis_tables
from poise.report.figures import kinds
from poise.report.looks import BLACK, BLUE, GREY, PALE, VERMILION, WHITE
from poise.report.plot import FigureKind, Plot
from poise.report.runs import Records, Setting, load
from poise.report.scores import Scoreboard, scoreboard
from poise.report.tables import tabulate

FIRST = ("ece", "accuracy")  # the page opens with calibration; the other metrics are folded in
# What the colours of a figure mean on the page, where they follow the reader's light or dark mode.
_SCREEN = {
    BLACK: "currentColor", WHITE: "var(--card)", PALE: "var(--empty)", GREY: "var(--grey)", BLUE: "var(--blue)",
    VERMILION: "var(--red)",
}  # fmt: skip


def write_page(
    runs: str | Path | Records, out: str | Path, *, title: str = "Calibration benchmark", resamples: int = 1000
) -> Path:
    """Write the page to the file ``out`` (or to ``out/index.html`` where ``out`` is a folder)."""
    path = Path(out)
    path = path / "index.html" if path.is_dir() or not path.suffix else path
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(page_html(scoreboard(load(runs), resamples=resamples), title), encoding="utf-8")
    return path


def page_html(board: Scoreboard, title: str = "Calibration benchmark") -> str:
    """The page as one string."""
    assets = files("poise.report") / "assets"
    parts = {
        "TITLE": html.escape(title),
        "LEAD": html.escape(_lead(board.records)),
        "CSS": (assets / "page.css").read_text("utf-8"),
        "JS": (assets / "page.js").read_text("utf-8"),
        "FILTERS": _filters(board.records),
        "SECTIONS": "\n".join(_sections(board)),
    }
    # One pass over the template: a name that looks like a placeholder stays a name.
    return re.sub("@@([A-Z]+)@@", lambda mark: parts[mark[1]], (assets / "page.html").read_text("utf-8"))


def _lead(records: Records) -> str:
    models = list(dict.fromkeys(setting.model for setting in records.settings))
    images = sum(next(records.chosen(dataset=name)).n for name in records.datasets)
    return (
        f"{', '.join(models)}; {_count(len(records.datasets), 'dataset')} with {_count(images, 'image')}, "
        f"{_count(len(records.methods), 'method')}: how far confidence can be trusted, and accuracy. Small numbers are "
        f"standard deviations over seeds (±) and 95 % confidence intervals over images; grey rows are the paper's "
        f"values with {published.MODEL}."
    )


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def _filters(records: Records) -> str:
    """A choice of setting and of dataset where there are several; the script shows them."""
    settings = {str(at): records.label(setting) for at, setting in enumerate(records.settings)}
    offered = {"setting": settings, "dataset": {name: name for name in catalog.in_order(records.datasets)}}
    return "".join(
        f'<label hidden>{name} <select name="{name}"><option value="">all</option>'
        + "".join(f'<option value="{html.escape(key)}">{html.escape(text)}</option>' for key, text in options.items())
        + "</select></label>"
        for name, options in offered.items()
        if len(options) > 1
    )


def _sections(board: Scoreboard) -> Iterator[str]:
    """The tables of each setting, then the figures kind by kind, then where the numbers come from."""
    records = board.records
    order = sorted(board.metrics, key=lambda name: FIRST.index(name) if name in FIRST else len(FIRST))
    tables = {name: tabulate(board, metrics=(name,), intervals=True, std=True) for name in order}
    for at, setting in enumerate(records.settings):
        parts = []
        for name in order:
            heading = html.escape(f"{rows.get(name).title}: {rows.get(name).about}")
            body = formats.html([replace(tables[name][at], notes=())])
            folded = f"<details><summary>{heading}</summary>{body}</details>"
            parts.append(f"<h3>{heading}</h3>{body}" if name in FIRST else folded)
        notes = dict.fromkeys(note for name in FIRST for note in tables[name][at].notes)
        parts.append(f'<ul class="notes">{"".join(f"<li>{html.escape(note)}</li>" for note in notes)}</ul>')
        label = html.escape(records.label(setting))
        yield f'<section class="card setting" data-setting="{at}"><h2>Results: {label}</h2>{"".join(parts)}</section>'
    figures = count(1)
    for name in kinds:
        yield from _figures(board, kinds.get(name), figures)
    for table in analysis_tables(records):
        yield f'<section class="card"><h2>{html.escape(table.title)}</h2>{formats.html([table])}</section>'
    runs = "".join(f"<details><summary>{html.escape(run)}</summary><pre>{html.escape(_header(header))}</pre></details>"
                   for run, header in records.headers.items())  # fmt: skip
    yield f'<section class="card"><h2>Where the numbers come from</h2>{runs}</section>'


def _figures(board: Scoreboard, kind: FigureKind, numbers: Iterator[int]) -> Iterator[str]:
    """All figures of one kind, those of one panel side by side."""
    try:
        plots = list(kind.plots(board))
        shown = [
            _plots(board.records, list(some), numbers) for _, some in groupby(plots, lambda each: len(each.panels) > 1)
        ]
    except (InvalidDatasetError, MissingDependencyError) as reason:
        shown = [f"<p>{html.escape(str(reason))}</p>"]
    if shown:
        about = html.escape(kind.about)
        heading = f'<h2>{html.escape(kind.title)}</h2><p class="say">{about}</p>'
        yield f'<section class="card">{heading}{"".join(shown)}</section>'


def _plots(records: Records, plots: Sequence[Plot], numbers: Iterator[int]) -> str:
    single = len(plots[0].panels) == 1
    blocks = []
    for plot in plots:
        images = "".join(
            f"<figure>{inline_svg(svg, next(numbers), f'{plot.title}: {panel.title}')}</figure>"
            for panel, svg in plot.svgs()
        )
        body = images if single else f'<h3>{html.escape(plot.title)}</h3><div class="plots">{images}</div>'
        blocks.append(f"<div{_data(records, plot.setting, plot.dataset)}>{body}</div>")
    return f'<div class="plots wide">{"".join(blocks)}</div>' if single else "".join(blocks)


def _data(records: Records, setting: Setting | None, dataset: str) -> str:
    """The attributes by which the script finds what to hide."""
    given = {"setting": "" if setting is None else str(records.settings.index(setting)), "dataset": dataset}
    return "".join(f' data-{name}="{html.escape(value)}"' for name, value in given.items() if value)


def inline_svg(svg: str, number: int, label: str) -> str:
    """Matplotlib's SVG as part of a page: ids that no other figure has, and colours that follow the page's."""
    text = svg[svg.index("<svg") :]
    text = re.sub(r"<metadata>.*?</metadata>|<style .*?</style>", "", text, flags=re.DOTALL)
    text = re.sub(r'(\bid="|url\(#|href="#)', rf"\g<1>f{number}-", text)
    for colour, name in _SCREEN.items():
        text = re.sub(rf"(?<=[:\"] ){colour}\b|(?<=:){colour}\b", name, text)
    text = re.sub("<[^>]*>", lambda tag: re.sub(r"(\d+\.\d\d)\d+", r"\1", tag[0]), text)  # hundredths of a point
    return text.replace("<svg ", f'<svg role="img" aria-label="{html.escape(" ".join(label.split()))}" ', 1).strip()


def _header(header: dict[str, Any]) -> str:
    """A run's header without the long lists of classes."""
    kept = {key: value for key, value in header.items() if key not in ("datasets", "methods")}
    short = {name: {key: value for key, value in facts.items() if key != "classes"}
             for name, facts in header.get("datasets", {}).items()}  # fmt: skip
    return json.dumps({**kept, "datasets": short}, indent=1, ensure_ascii=False)
