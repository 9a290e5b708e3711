"""Tables in the paper's form: methods by datasets, an average, the best marked, published numbers beside ours."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from poise import metrics as rows
from poise.data import catalog
from poise.errors import InvalidDatasetError, UnknownNameError
from poise.metrics import Estimate, get
from poise.report.published import paper as published
from poise.report.published.paper import matching
from poise.report.published.peers import PEER_LAYOUTS, PEER_ROWS
from poise.report.records.runs import Records, load
from poise.report.records.scores import Scoreboard, printed, scoreboard, shown
from poise.report.tables.block import LAYOUTS, OURS, TableBlock
from poise.report.tables.notes import table_notes
from poise.report.tables.table import Cell, Line, Table

PUBLISHED = "published"
DASH = "—"
LEVEL = 0.05  # p-values below it are marked
LEGEND = (
    "Bold (or †): the best of our methods and all that are not significantly worse, that is, whose paired difference "
    "from it has a 95 % confidence interval that includes 0{beyond}. Nothing is marked where that holds for every "
    "method."
)
BEYOND = ", as it is or ({metrics}) after the difference of the floors is subtracted"


def result_tables(
    runs: str | Path | Records | Scoreboard,
    *,
    like: str | None = None,
    metrics: Sequence[str] = ("accuracy", "ece"),
    intervals: bool = False,
    std: bool = False,
    published_too: bool = False,
    resamples: int = 1000,
) -> list[Table]:
    """Return one table for each setting that has something to show.

    Args:
        runs: a run's folder, a folder of runs, their records, or their scores.
        like: a table of the paper, ``table1`` to ``table5``: its methods, datasets and average; or ``peers`` or
            ``peers-shifts``: the methods of other papers, with the numbers that these print.
        metrics: the lines of each method.
        intervals: show 95 % confidence intervals over images.
        std: show standard deviations over seeds.
        published_too: show numbers of the papers even if they are of another model (`published.MODEL`).
        resamples: number of bootstrap resamples, unless scores are given.
    """
    if like is not None and like not in LAYOUTS:
        raise UnknownNameError.of("table", like, LAYOUTS)
    board = runs if isinstance(runs, Scoreboard) else scoreboard(load(runs), metrics=metrics, resamples=resamples)
    records = board.records
    all_datasets = tuple(catalog.in_order(records.datasets))
    everything = published.TableLayout("", "Results", all_datasets, all_datasets, "Avg.", tuple(records.methods))
    layout = LAYOUTS[like] if like else everything
    tables = []
    for setting in records.settings:
        if like and (setting.framework != layout.framework or setting.init not in layout.inits):
            continue
        run = {group.dataset for group in records.chosen(setting=setting) if group.method in layout.methods}
        datasets = tuple(name for name in layout.datasets if name in run)
        if datasets:
            block = TableBlock(board, setting, replace(layout, datasets=datasets), metrics)
            shown_too = published_too or setting.model in published.SAME_MODEL
            tables.append(_table(block, intervals=intervals, std=std, published_too=shown_too))
    if not tables:
        raise InvalidDatasetError(
            f"No run fits {like}: framework {layout.framework}, init {' or '.join(layout.inits)}, datasets "
            f"{', '.join(layout.datasets)}.",
            hint=f"The runs have the datasets: {', '.join(records.datasets)}.",
        )
    return tables


def _table(block: TableBlock, *, intervals: bool, std: bool, published_too: bool) -> Table:
    best = {metric: block.best(metric) for metric in block.metrics}
    lines: list[Line] = []
    records: list[dict[str, Any]] = []
    for method in block.methods:
        parts = [_ours(block, method, metric, best[metric][method], intervals, std) for metric in block.metrics]
        if published_too:
            parts += [part for metric in block.metrics for part in _printed_rows(block, method, metric)]
        for line, numbers in filter(None, parts):
            lines.append(line)
            records += numbers
    if not (intervals or std):
        lines += _floor_lines(block)
    single = f", {rows.get(block.metrics[0]).title}" if len(block.metrics) == 1 else ""
    title = f"{block.layout.title}{single}: {block.board.records.label(block.setting)}"
    columns = ("Method", *([] if single else ["Metric"]), *(heading for heading, _ in block.columns))
    floored = ", ".join(get(metric).title for metric in block.metrics if get(metric).floor)
    legend = LEGEND.format(beyond=BEYOND.format(metrics=floored) if floored else "")
    notes = (*table_notes(block, [record["source"] for record in records]), legend)
    return Table(title, columns, tuple(lines), notes, len(columns) - len(block.columns), tuple(records))


_Part = tuple[Line, list[dict[str, Any]]]  # a line for people, and its numbers for programs


def _ours(
    block: TableBlock, method: str, metric: str, best: Sequence[bool], intervals: bool, std: bool
) -> _Part | None:
    """Return the line of one metric of a method; None if the metric applies to other methods only."""
    if block.lacks(method, metric):
        return None
    columns = block.scores(method, metric), block.floors(method, metric), block.p_values(method, metric), best
    entries = list(zip(*columns, strict=True))
    cells = [_cell(metric, *entry, intervals=intervals, std=std) for entry in entries]
    numbers = block.records(OURS, method, metric, [_numbers(metric, *entry) for entry in entries])
    return Line((*block.heads(method, metric), *cells), method), list(numbers)


def _printed_rows(block: TableBlock, method: str, metric: str) -> Iterator[_Part]:
    """Yield the lines in which papers print this metric of a method."""
    fixed = {**dict.fromkeys(("low", "high", "floor", "p", "std")), "seeds": 3, "best": False}
    for title, values, source in _published(block, method, metric):
        cells = [Cell(DASH if value is None else f"{value:.2f}") for value in values]
        numbers = [None if value is None else {"value": value, **fixed, "source": source} for value in values]
        line = Line((*block.heads(f"  published: {title}", metric), *cells), method, quiet=True)
        yield line, list(block.records(PUBLISHED, method, metric, numbers))


def _floor_lines(block: TableBlock) -> Iterator[Line]:
    """Yield one line for each metric that has a floor: in each column the largest floor of the methods."""
    for metric in block.metrics:
        columns = zip(*(block.floors(method, metric) for method in block.methods), strict=True)
        known = [[floor.value for floor in column if floor is not None] for column in columns]
        if any(known):
            cells = [Cell(printed(metric, max(values)) if values else DASH) for values in known]
            yield Line((*block.heads("floor", metric), *cells), "floor", quiet=True)


def _cell(
    metric: str,
    score: Estimate | None,
    floor: Estimate | None,
    p_value: float | None,
    best: bool,
    *,
    intervals: bool,
    std: bool,
) -> Cell:
    """Return a number, and beside it in a table with intervals or standard deviations also its floor or p-value."""
    if score is None:
        return Cell(DASH)
    value, low, high = (printed(metric, number, "+" * rows.get(metric).signed) for number in score.interval)
    value += "*" * (p_value is not None and p_value < LEVEL)
    extra = [f"(floor {printed(metric, floor.value)})"] if floor and (intervals or std) else []
    extra += [f"(p {p_value:.2g})"] if p_value is not None and (intervals or std) else []
    extra += [f"± {printed(metric, score.std)}"] if std and score.std is not None else []
    extra += [f"[{low}, {high}]"] if intervals else []
    return Cell(value, " ".join(extra), best)


def _numbers(
    metric: str, score: Estimate | None, floor: Estimate | None, p_value: float | None, best: bool
) -> dict[str, Any] | None:
    """Return the numbers behind a cell, always with interval, floor, p-value and standard deviation."""
    if score is None:
        return None
    value, low, high = (shown(metric, number) for number in score.interval)
    deviation = None if score.std is None else shown(metric, score.std)
    least = None if floor is None else shown(metric, floor.value)
    return {
        "value": value,
        "low": low,
        "high": high,
        "floor": least,
        "p": p_value,
        "std": deviation,
        "seeds": len(score.by_seed),
        "best": best,
        "source": "",
    }


def _published(block: TableBlock, method: str, metric: str) -> Iterator[tuple[str, list[float | None], str]]:
    """Yield a printed row: its label, its percentages for each column, and where they are printed."""
    like = block.layout.name
    same = {"method": method, "metric": metric, "framework": block.setting.framework, "init": block.setting.init}
    if like in PEER_LAYOUTS:  # several papers print the same method
        sources = [[row] for row in matching(PEER_ROWS, table=like, **same)]
    else:
        tables = [like] if like else ["table1", "table2", "table3", "table4"]
        sources = [[row for table in tables for row in published.rows(table, **same)]]
    for found in sources:
        values = _printed_values(block, found)
        if any(value is not None for value in values):
            used = [row for row in found if not row.values or any(name in row.values for name in block.layout.datasets)]
            yield used[0].title, values, "; ".join(row.source for row in used)


def _printed_values(block: TableBlock, found: Sequence[published.PublishedRow]) -> list[float | None]:
    """Return the printed percentage of each column; an average that is not printed is that of the printed values."""
    like, datasets = block.layout.name, block.layout.datasets
    percent = {name: value for row in found for name, value in row.values.items()}
    values = [percent.get(name) for name in datasets]
    if block.averaged:
        whole = like and set(block.averaged) == set(LAYOUTS[like].averaged)
        if found and (whole or not percent) and found[0].average is not None:
            values.append(found[0].average)
        else:
            complete = bool(percent) and all(name in percent for name in block.averaged)
            values.append(float(np.mean([percent[name] for name in block.averaged])) if complete else None)
    return values
