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
from poise.report.figures import FigureKind, kinds
from poise.report.looks import BLACK, BLUE, GREY, PALE, VERMILION, WHITE
from poise.report.plot import Plot
from poise.report.runs import Records, load
from poise.report.scores import Scoreboard, scoreboard
from poise.report.tables import result_tables
from poise.storage import counted, write_atomic

FIRST = ("ece", "accuracy")  # shown first; the tables of the other metrics are folded
# The colours of figures as variables of the page, so that they follow the reader's light or dark mode.
_SCREEN = {
    BLACK: "currentColor", WHITE: "var(--card)", PALE: "var(--empty)", GREY: "var(--grey)", BLUE: "var(--blue)",
    VERMILION: "var(--red)",
}  # fmt: skip


def write_page(
    runs: str | Path | Records, out: str | Path, *, title: str = "Calibration benchmark", resamples: int = 1000
) -> Path:
    """Write the page and return its path.

    Args:
        runs: a run's folder, a folder of runs, or their records.
        out: the HTML file, or a folder for ``index.html``.
        title: the heading.
        resamples: number of bootstrap resamples.
    """
    path = Path(out)
    path = path / "index.html" if path.is_dir() or not path.suffix else path
    write_atomic(path, page_html(scoreboard(load(runs), resamples=resamples), title).encode())
    return path


def page_html(board: Scoreboard, title: str = "Calibration benchmark") -> str:
    """Return the page as one string."""
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
    counts = {"dataset": len(records.datasets), "image": images, "method": len(records.methods)}
    datasets, images_text, methods = (counted(number, noun) for noun, number in counts.items())
    return (
        f"{', '.join(models)}; {datasets} with {images_text}, {methods}: calibration and accuracy. Small numbers "
        f"are floors, standard deviations over seeds (±) and 95 % confidence intervals over images; grey rows are the "
        f"paper's values with {published.MODEL}."
    )


def _filters(records: Records) -> str:
    """Return a menu of settings and one of datasets, each where there are several; the script shows them."""
    settings = {str(at): records.label(setting) for at, setting in enumerate(records.settings)}
    menus = {"setting": settings, "dataset": {name: name for name in catalog.in_order(records.datasets)}}
    return "".join(
        f'<label hidden>{name} <select name="{name}"><option value="">all</option>'
        + "".join(f'<option value="{html.escape(key)}">{html.escape(text)}</option>' for key, text in options.items())
        + "</select></label>"
        for name, options in menus.items()
        if len(options) > 1
    )


def _sections(board: Scoreboard) -> Iterator[str]:
    """Yield the tables of each setting, the figures kind by kind, the analyses, and the headers of the runs."""
    records = board.records
    order = sorted(board.metrics, key=lambda name: FIRST.index(name) if name in FIRST else len(FIRST))
    tables = {name: result_tables(board, metrics=(name,), intervals=True, std=True) for name in order}
    for at, setting in enumerate(records.settings):
        body = ""
        for name in order:
            heading = html.escape(f"{rows.get(name).title}: {rows.get(name).about}")
            content = formats.html([replace(tables[name][at], notes=())])
            body += f"<h3>{heading}</h3>{content}" if name in FIRST else _folded(heading, content)
        notes = dict.fromkeys(note for name in FIRST for note in tables[name][at].notes)
        body += f'<ul class="notes">{"".join(f"<li>{html.escape(note)}</li>" for note in notes)}</ul>'
        yield _card(f"Results: {records.label(setting)}", body, f' data-setting="{at}"')
    figures = count(1)
    for name in kinds:
        if figure := _figures(board, kinds.get(name), figures):
            yield _card(kinds.get(name).title, f'<p class="say">{html.escape(kinds.get(name).about)}</p>{figure}')
    for table in analysis_tables(records):
        yield _card(table.title, formats.html([table]))
    headers = (_folded(html.escape(run), f"<pre>{html.escape(_header(header))}</pre>")
               for run, header in records.headers.items())  # fmt: skip
    yield _card("Where the numbers come from", "".join(headers))


def _card(title: str, body: str, attributes: str = "") -> str:
    return f'<section class="card"{attributes}><h2>{html.escape(title)}</h2>{body}</section>'


def _folded(heading: str, body: str) -> str:
    return f"<details><summary>{heading}</summary>{body}</details>"


def _figures(board: Scoreboard, kind: FigureKind, numbers: Iterator[int]) -> str:
    """Return all figures of one kind, those of one panel side by side; the reason where they can't be drawn."""
    try:
        runs = groupby(kind.plots(board), lambda plot: len(plot.panels) > 1)
        return "".join(_plots(board.records, list(plots), numbers) for _, plots in runs)
    except (InvalidDatasetError, MissingDependencyError) as reason:
        return f"<p>{html.escape(str(reason))}</p>"


def _plots(records: Records, plots: Sequence[Plot], numbers: Iterator[int]) -> str:
    single = len(plots[0].panels) == 1
    blocks = []
    for plot in plots:
        images = "".join(
            f"<figure>{inline_svg(svg, next(numbers), f'{plot.title}: {panel.title}')}</figure>"
            for panel, svg in plot.svgs()
        )
        heading = f"<h3>{html.escape(plot.title)}</h3>" if not single or len(records.settings) > 1 else ""
        body = heading + (images if single else f'<div class="plots">{images}</div>')
        # by these attributes the script finds what to hide
        setting = "" if plot.setting is None else f' data-setting="{records.settings.index(plot.setting)}"'
        dataset = f' data-dataset="{html.escape(plot.dataset)}"' if plot.dataset else ""
        blocks.append(f"<div{setting}{dataset}>{body}</div>")
    return f'<div class="plots wide">{"".join(blocks)}</div>' if single else "".join(blocks)


def inline_svg(svg: str, number: int, label: str) -> str:
    """Return Matplotlib's SVG as part of a page, with ids that no other figure has and the page's colours."""
    text = svg[svg.index("<svg") :]
    text = re.sub(r"<metadata>.*?</metadata>|<style .*?</style>", "", text, flags=re.DOTALL)
    text = re.sub(r'(\bid="|url\(#|href="#)', rf"\g<1>f{number}-", text)
    for colour, name in _SCREEN.items():
        text = re.sub(rf"(?<=[:\"] ){colour}\b|(?<=:){colour}\b", name, text)
    text = re.sub("<[^>]*>", lambda tag: re.sub(r"(\d+\.\d\d)\d+", r"\1", tag[0]), text)  # hundredths of a point
    return text.replace("<svg ", f'<svg role="img" aria-label="{html.escape(" ".join(label.split()))}" ', 1).strip()


def _header(header: dict[str, Any]) -> str:
    """Return a run's header without methods and class names."""
    short = {key: value for key, value in header.items() if key != "methods"}
    short["datasets"] = {name: {key: value for key, value in facts.items() if key != "classes"}
                         for name, facts in header.get("datasets", {}).items()}  # fmt: skip
    return json.dumps(short, indent=1, ensure_ascii=False)
