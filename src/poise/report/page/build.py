"""One self-contained HTML page with every table and figure of a folder of runs; it needs no network and no script."""

from __future__ import annotations

import html
import json
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from importlib.resources import files
from itertools import count
from pathlib import Path
from typing import Any

from poise import metrics as rows
from poise.data import catalog
from poise.files import write_atomic
from poise.report.figures.overall import FIRST, calibration_first
from poise.report.figures.write import kinds
from poise.report.page.figures import figures_html, palette
from poise.report.published import paper as published
from poise.report.records.runs import Records, Runs, load
from poise.report.records.scores import Scoreboard, scoreboard
from poise.report.tables import formats
from poise.report.tables.analyses import analysis_tables
from poise.report.tables.results import result_tables
from poise.text import counted


def write_page(
    runs: Runs,
    out: str | Path,
    *,
    title: str = "Calibration benchmark",
    published_too: bool = False,
    resamples: int = 1000,
    say: Callable[[str], None] = lambda text: None,
) -> Path:
    """Write the page and return its path.

    Args:
        runs: a run's folder, a folder of runs, or their records.
        out: the HTML file, or a folder for ``index.html``.
        title: the heading.
        published_too: show numbers of the papers even if they are of another model.
        resamples: number of bootstrap resamples.
        say: called with one line before the metrics, the tables, and each kind of figure.
    """
    say("computing the metrics")
    path = Path(out)
    path = path / "index.html" if path.is_dir() or not path.suffix else path
    board = scoreboard(load(runs), resamples=resamples)
    write_atomic(path, page_html(board, title, published_too=published_too, say=say).encode())
    return path


def page_html(
    board: Scoreboard,
    title: str = "Calibration benchmark",
    *,
    published_too: bool = False,
    say: Callable[[str], None] = lambda text: None,
) -> str:
    """Return the page as one string."""
    assets = files("poise.report.page") / "assets"
    cards = list(_sections(board, published_too, say))
    sections = "\n".join(cards)
    parts = {
        "TITLE": html.escape(title),
        "LEAD": html.escape(_lead(board.records)),
        "CSS": (assets / "page.css").read_text("utf-8") + palette(sections),
        "JS": (assets / "page.js").read_text("utf-8"),
        "CONTENTS": _contents(cards),
        "FILTERS": _filters(board.records),
        "SECTIONS": sections,
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
        f"are floors, standard deviations over seeds (±) and 95 % confidence intervals over images; grey rows are "
        f"floors, and numbers of the papers with {published.MODEL} where there are any."
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


OPENING = ("tradeoff", "differences")  # the figures before the tables


def _sections(board: Scoreboard, published_too: bool, say: Callable[[str], None]) -> Iterator[str]:
    """Yield what matters most in figures, the tables of each setting, the other figures, the analyses, the headers."""
    figures = count(1)
    others = [name for name in kinds if name not in OPENING]
    for at, name in enumerate((*OPENING, *others), 1):
        say(f"drawing {name} ({at} of {len(OPENING) + len(others)})")
        yield from _figure_card(board, name, figures)
        if name == OPENING[-1]:
            say("tables")
            yield from _table_cards(board, published_too)
    for table in analysis_tables(board.records):
        yield _card(table.title, formats.html([table]))
    headers = (
        _folded(html.escape(run), f'<pre tabindex="0">{html.escape(_header(header))}</pre>')
        for run, header in board.records.headers.items()
    )
    yield _card("Where the numbers come from", "".join(headers))


def _figure_card(board: Scoreboard, name: str, numbers: Iterator[int]) -> Iterator[str]:
    """Yield a card with all figures of one kind, if there are any."""
    kind = kinds.get(name)
    if figure := figures_html(board, kind, numbers):
        yield _card(kind.title, f'<p class="say">{html.escape(kind.about)}</p>{figure}')


def _table_cards(board: Scoreboard, published_too: bool) -> Iterator[str]:
    """Yield the tables of each setting: calibration, then accuracy, and the other metrics folded."""
    order = calibration_first(board.metrics)
    tables = {
        name: result_tables(board, metrics=(name,), intervals=True, std=True, published_too=published_too)
        for name in order
    }
    for at, setting in enumerate(board.records.settings):
        body = ""
        for name in order:
            heading = f"{rows.get(name).title}: {rows.get(name).about}"
            content = formats.html([replace(tables[name][at], title=heading, notes=())])
            shown = html.escape(heading)
            body += f"<h3>{shown}</h3>{content}" if name in FIRST else _folded(shown, content)
        notes = dict.fromkeys(note for name in FIRST for note in tables[name][at].notes)
        body += f'<ul class="notes">{"".join(f"<li>{html.escape(note)}</li>" for note in notes)}</ul>'
        yield _card(f"Results: {board.records.label(setting)}", body, f' data-setting="{at}"')


def _card(title: str, body: str, attributes: str = "") -> str:
    return f'<section class="card"{attributes}><h2 id="{_anchor(title)}">{html.escape(title)}</h2>{body}</section>'


def _anchor(title: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", title.lower()).strip("-")


def _contents(sections: Iterable[str]) -> str:
    """Return links to the headings of all cards."""
    found = (re.search(r'<h2 id="([^"]*)">(.*?)</h2>', section) for section in sections)
    return " ".join(f'<a href="#{heading[1]}">{heading[2]}</a>' for heading in found if heading)


def _folded(heading: str, body: str) -> str:
    return f"<details><summary>{heading}</summary>{body}</details>"


def _header(header: dict[str, Any]) -> str:
    """Return a run's header without methods and class names."""
    short = {key: value for key, value in header.items() if key != "methods"}
    short["datasets"] = {
        name: {key: value for key, value in facts.items() if key != "classes"}
        for name, facts in header.get("datasets", {}).items()
    }
    return json.dumps(short, indent=1, ensure_ascii=False)
