"""One self-contained HTML page with every table and figure of a folder of runs; it needs no network and no script."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import count
from pathlib import Path
from typing import Any

from markupsafe import Markup

from poise import metrics as rows
from poise.data import catalog
from poise.files import write_atomic
from poise.report.figures.overall import calibration_first
from poise.report.figures.write import kinds
from poise.report.html import rendered, source
from poise.report.page.figures import figures_html, palette
from poise.report.published import paper as published
from poise.report.records.runs import Records, Runs, load
from poise.report.records.scores import Scoreboard, scoreboard
from poise.report.tables import formats
from poise.report.tables.analyses import analysis_tables
from poise.report.tables.results import result_tables
from poise.text import counted

UNFOLDED = ("ece", "gap", "accuracy")  # tables of these metrics are open


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
    cards = list(_cards(board, published_too, say))
    sections = rendered("sections.html", cards=cards)
    page = rendered(
        "page.html",
        title=title,
        lead=_lead(board.records),
        css=source("page.css") + Markup(palette(sections)),
        js=source("page.js"),
        cards=cards,
        menus=_menus(board.records),
        sections=sections,
    )
    return str(page)  # plain text, which `html.escape` escapes once where the page becomes an attribute


@dataclass(frozen=True, kw_only=True)
class _Card:
    """A section of the page: figures or a table, the tables of one setting, or the headers of the runs."""

    title: str
    about: str = ""
    content: Markup | None = None
    setting: int | None = None  # its position in the menu
    parts: Sequence[tuple[str, Markup, bool]] = ()  # heading, table, and whether it is shown unfolded
    notes: Sequence[str] = ()
    headers: Mapping[str, str] = field(default_factory=dict)  # run -> JSON

    @property
    def anchor(self) -> str:
        return re.sub(r"[^a-z0-9]+", "-", self.title.lower()).strip("-")


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


def _menus(records: Records) -> dict[str, dict[str, str]]:
    """Return what the menus of settings and of datasets offer; the script shows those that have several entries."""
    settings = {str(at): records.label(setting) for at, setting in enumerate(records.settings)}
    return {"setting": settings, "dataset": {name: name for name in catalog.in_order(records.datasets)}}


OPENING = ("tradeoff", "differences")  # the figures before the tables


def _cards(board: Scoreboard, published_too: bool, say: Callable[[str], None]) -> Iterator[_Card]:
    """Yield what matters most in figures, the tables of each setting, the other figures, the analyses, the headers."""
    numbers = count(1)
    others = [name for name in kinds if name not in OPENING]
    for at, name in enumerate((*OPENING, *others), 1):
        say(f"drawing {name} ({at} of {len(OPENING) + len(others)})")
        kind = kinds.get(name)
        if figures := figures_html(board, kind, numbers):
            yield _Card(title=kind.title, about=kind.about, content=figures)
        if name == OPENING[-1]:
            say("tables")
            yield from _table_cards(board, published_too)
    for table in analysis_tables(board.records):
        yield _Card(title=table.title, content=Markup(formats.html([table])))
    headers = {run: _header(header) for run, header in board.records.headers.items()}
    yield _Card(title="Where the numbers come from", headers=headers)


def _table_cards(board: Scoreboard, published_too: bool) -> Iterator[_Card]:
    """Yield the tables of each setting: calibration, then accuracy, and the other metrics folded."""
    order = sorted(calibration_first(board.metrics), key=lambda name: name not in UNFOLDED)
    tables = {
        name: result_tables(board, metrics=(name,), intervals=True, std=True, published_too=published_too)
        for name in order
    }
    for at, setting in enumerate(board.records.settings):
        parts = []
        for name in order:
            heading = f"{rows.get(name).title}: {rows.get(name).about}"
            table = Markup(formats.html([replace(tables[name][at], title=heading, notes=())]))
            parts.append((heading, table, name in UNFOLDED))
        notes = list(dict.fromkeys(note for name in UNFOLDED if name in tables for note in tables[name][at].notes))
        yield _Card(title=f"Results: {board.records.label(setting)}", setting=at, parts=parts, notes=notes)


def _header(header: dict[str, Any]) -> str:
    """Return a run's header without methods and class names."""
    short = {key: value for key, value in header.items() if key != "methods"}
    short["datasets"] = {
        name: {key: value for key, value in facts.items() if key != "classes"}
        for name, facts in header.get("datasets", {}).items()
    }
    return json.dumps(short, indent=1, ensure_ascii=False)
