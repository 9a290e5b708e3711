"""Tables in the paper's form: methods by datasets, an average, best and second marked, published beside ours."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from poise.errors import InvalidDatasetError, UnknownNameError
from poise.report import published
from poise.report.runs import Records, Setting, load
from poise.report.scores import HIGHER_IS_BETTER, TITLES, Score, Scoreboard, scoreboard, shown

OURS, PUBLISHED = "ours", "published"


@dataclass(frozen=True)
class Cell:
    """One number in the unit in which it is printed."""

    value: float | None
    low: float | None = None
    high: float | None = None
    rank: int = 0  # 1 best, 2 second, 0 neither


@dataclass(frozen=True)
class Line:
    """One metric of one method over all columns."""

    method: str
    label: str
    metric: str
    origin: str  # OURS or PUBLISHED
    cells: tuple[Cell, ...]
    source: str = ""


@dataclass(frozen=True)
class Table:
    """What a renderer prints."""

    title: str
    columns: tuple[str, ...]
    datasets: tuple[str, ...]  # the dataset of each column, "" for the average
    lines: tuple[Line, ...]
    notes: tuple[str, ...]
    model: str


def tabulate(
    board: Scoreboard, *, like: str | None = None, metrics: Sequence[str] = ("accuracy", "ece")
) -> list[Table]:
    """One table for each setting that has something to show; ``like`` is table1 .. table5 of the paper."""
    layout = _layout(board.records, like)
    tables = []
    for setting in board.records.settings:
        if like and (setting.framework != layout.framework or setting.init not in layout.inits):
            continue
        there = {group.dataset for group in board.records.chosen(setting=setting) if group.method in layout.methods}
        datasets = tuple(name for name in layout.datasets if name in there)
        if datasets:
            tables.append(_table(board, setting, replace(layout, datasets=datasets), like, metrics))
    if not tables:
        raise InvalidDatasetError(f"No run fits {like or 'a table'}: {_wanted(layout)}.",
                         hint=f"Found datasets: {', '.join(board.records.datasets)}.")  # fmt: skip
    return tables


def table_text(
    runs: str | Path | Records,
    *,
    like: str | None = None,
    format: str = "terminal",
    metrics: Sequence[str] = ("accuracy", "ece"),
    intervals: bool = False,
    colour: bool = False,
    resamples: int = 1000,
) -> str:
    """The tables of a folder of runs as text: ``terminal``, ``md``, ``latex`` or ``csv``."""
    from poise.report.formats import FORMATS

    if format not in FORMATS:
        raise UnknownNameError.of("table format", format, FORMATS)
    if like is not None and like not in published.LAYOUTS:
        raise UnknownNameError.of("table", like, published.LAYOUTS)
    records = runs if isinstance(runs, Records) else load(runs)
    board = scoreboard(records, metrics=metrics, resamples=resamples)
    return FORMATS[format](tabulate(board, like=like, metrics=metrics), intervals, colour)


def _layout(records: Records, like: str | None) -> published.TableLayout:
    if like is not None:
        if like not in published.LAYOUTS:
            raise UnknownNameError.of("table", like, published.LAYOUTS)
        return published.LAYOUTS[like]
    known = [name for name in (*published.FINE_GRAINED, *published.IMAGENET) if name in records.datasets]
    datasets = (*known, *(name for name in records.datasets if name not in known))
    return published.TableLayout("", "Results", datasets, datasets, "Avg.", tuple(records.methods))


def _wanted(layout: published.TableLayout) -> str:
    return f"framework {layout.framework}, start {' or '.join(layout.inits)}, datasets {', '.join(layout.datasets)}"


def _table(
    board: Scoreboard, setting: Setting, layout: published.TableLayout, like: str | None, metrics: Sequence[str]
) -> Table:
    averaged = tuple(name for name in layout.averaged if name in layout.datasets)
    headings = [published.HEADINGS.get(name, name) for name in layout.datasets]
    methods = [name for name in layout.methods if any(board.find(setting, each, name) for each in layout.datasets)]
    ours = _ranked(
        [_our_line(board, setting, layout, averaged, name, metric) for name in methods for metric in metrics]
    )
    beside = [_published_line(line, layout, setting, averaged, like) for line in ours]
    lines = []
    for name in methods:
        lines += [line for line in ours if line.method == name]
        lines += [line for line in beside if line is not None and line.method == name]
    columns = (*headings, layout.average) if averaged else tuple(headings)
    title = f"{layout.title}: {board.records.label(setting)}"
    notes = _notes(board, setting, layout, averaged, like, lines)
    return Table(title, columns, (*layout.datasets, "")[: len(columns)], tuple(lines), notes, setting.model)


def _our_line(
    board: Scoreboard,
    setting: Setting,
    layout: published.TableLayout,
    averaged: Sequence[str],
    method: str,
    metric: str,
) -> Line:
    scores = [board.score(setting, dataset, method, metric) for dataset in layout.datasets]
    if averaged:
        scores.append(board.average(setting, averaged, method, metric))
    return Line(method, method, metric, OURS, tuple(_cell(metric, score) for score in scores))


def _cell(metric: str, score: Score | None) -> Cell:
    if score is None:
        return Cell(None)
    found = score.interval
    return Cell(shown(metric, found.value), shown(metric, found.low), shown(metric, found.high))


def _published_line(
    line: Line, layout: published.TableLayout, setting: Setting, averaged: Sequence[str], like: str | None
) -> Line | None:
    """The paper's row for the same method, where it printed one for at least one of the columns."""
    same = {"method": line.method, "metric": line.metric, "framework": setting.framework, "init": setting.init}
    tables = [like] if like else ["table1", "table2", "table3", "table4"]
    rows = [row for table in tables for row in published.rows(table, **same)]
    values = {name: value for row in rows for name, value in row.values.items()}
    cells = [Cell(values.get(name)) for name in layout.datasets]
    if averaged:
        whole = like is not None and set(averaged) == set(published.LAYOUTS[like].averaged)
        if rows and (whole or not values):
            cells.append(Cell(rows[0].average))
        else:
            known = [values[name] for name in averaged if name in values]
            cells.append(Cell(float(np.mean(known)) if known and len(known) == len(averaged) else None))
    if all(cell.value is None for cell in cells):
        return None
    used = [row for row in rows if not row.values or any(name in row.values for name in layout.datasets)]
    source = "; ".join(row.source for row in used)
    return Line(line.method, used[0].label, line.metric, PUBLISHED, tuple(cells), source)


def _ranked(lines: list[Line]) -> list[Line]:
    """Mark the best and the second best method of each column; equal as printed is equal."""
    marked = {id(line): list(line.cells) for line in lines}
    for metric in {line.metric for line in lines}:
        rows = [line for line in lines if line.metric == metric]
        sign = -1 if metric in HIGHER_IS_BETTER else 1
        for column in range(len(rows[0].cells)):
            values = {id(row): row.cells[column].value for row in rows}
            there = {key: sign * float(printed(value, metric)) for key, value in values.items() if value is not None}
            order = sorted(set(there.values()))[:2]
            for key, value in there.items():
                if len(order) > 1 and value in order:  # nothing is best where all are equal
                    marked[key][column] = replace(marked[key][column], rank=order.index(value) + 1)
    return [replace(line, cells=tuple(marked[id(line)])) for line in lines]


def printed(value: float, metric: str) -> str:
    """The number as tables show it; the last bits of a mean don't decide a rounding.

    >>> printed(45.62499999999999, "ece") == printed(45.625, "ece")
    True
    """
    return f"{round(value, 9):.{digits(metric)}f}"


def digits(metric: str) -> int:
    """Decimals printed: two for percent, three for scores."""
    return 3 if metric in ("nll", "brier") else 2


def _notes(
    board: Scoreboard,
    setting: Setting,
    layout: published.TableLayout,
    averaged: Sequence[str],
    like: str | None,
    lines: Sequence[Line],
) -> tuple[str, ...]:
    groups = [group for group in board.records.chosen(setting=setting) if group.dataset in layout.datasets]
    sizes = {group.dataset: group.n for group in groups}
    seeds = sorted({seed for group in groups for seed in group.seeds})
    told = ", ".join(f"{published.HEADINGS.get(name, name)} {sizes[name]}" for name in layout.datasets)
    plural = f"mean over seeds {', '.join(map(str, seeds))}" if len(seeds) > 1 else f"seed {seeds[0]} alone"
    notes = [f"Model {setting.model}; images: {told}; {plural}.", _widths(lines, board.resamples)]
    if averaged and any(cell.value is None for line in lines if line.origin == OURS for cell in line.cells):
        notes.append(
            "A dash: not run, or the records don't keep what the metric needs; no average without all datasets."
        )
    failed, uneven = sum(group.errors for group in groups), sum(group.uneven for group in groups)
    if failed or uneven:
        notes.append(f"Left out: {failed} rows with errors, {uneven} image-method pairs that some seed lacks.")
    untuned = sum(int(rows["fallback"].sum()) for group in groups for rows in group.seeds.values())
    if untuned:
        notes.append(f"{untuned} answers fell back to the un-tuned prompt because tuning was not finite.")
    return (*notes, *board.records.unfinished(), *_published_notes(layout, like, lines))


def _published_notes(layout: published.TableLayout, like: str | None, lines: Sequence[Line]) -> list[str]:
    notes = []
    if like and len(layout.datasets) < len(published.LAYOUTS[like].datasets):
        missing = [name for name in published.LAYOUTS[like].datasets if name not in layout.datasets]
        heads = ", ".join(published.HEADINGS[name] for name in missing)
        over = "is over all of its datasets" if like == "table5" else "covers the same datasets as ours"
        notes.append(f"Not run of {like}: {heads}. The published average {over}.")
    tables = sorted({number for line in lines for number in re.findall(r"Table \d", line.source)})
    if tables:
        told = f"{published.PAPER}, {', '.join(tables)}, with {published.MODEL}"
        notes.append(f"Published: {told}; other models differ in level.")
    return notes


def _widths(lines: Sequence[Line], resamples: int) -> str:
    """How wide the intervals are at most, metric by metric."""
    widest: dict[str, float] = {}
    for line in lines:
        for cell in line.cells:
            if cell.value is not None and cell.low is not None and cell.high is not None:
                half = max(cell.high - cell.value, cell.value - cell.low, widest.get(line.metric, 0.0))
                widest[line.metric] = half
    told = ", ".join(f"{TITLES[metric]} ±{half:.{digits(metric)}f}" for metric, half in widest.items())
    return f"95 % intervals over images ({resamples} bootstrap resamples) reach at most: {told}."
