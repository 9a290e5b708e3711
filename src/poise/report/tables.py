"""Tables in the paper's form: methods by datasets, an average, the best marked, published numbers beside ours."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from poise import metrics as rows
from poise.data import catalog
from poise.errors import InvalidDatasetError, UnknownNameError
from poise.metrics import Estimate
from poise.report import published
from poise.report.runs import Records, Setting, load
from poise.report.scores import Scoreboard, printed, scoreboard, shown
from poise.report.table import Cell, Line, Table

OURS, PUBLISHED = "ours", "published"
DASH = "—"
LEGEND = (
    "Bold (or †): the best of our methods and all that are not significantly worse, that is, whose paired difference "
    "from it has a 95 % confidence interval that includes 0. Nothing is marked where that holds for every method."
)


@dataclass(frozen=True)
class _Block:
    """One setting under one layout: what a table is made of."""

    board: Scoreboard
    setting: Setting
    layout: published.TableLayout  # with the datasets that were run
    like: str | None
    metrics: Sequence[str]

    @property
    def averaged(self) -> tuple[str, ...]:
        """The datasets behind the last column."""
        return tuple(name for name in self.layout.averaged if name in self.layout.datasets)

    @property
    def columns(self) -> list[tuple[str, tuple[str, ...]]]:
        """Each column's heading, and the datasets whose mean stands below it."""
        own: list[tuple[str, tuple[str, ...]]] = [(catalog.heading(name), (name,)) for name in self.layout.datasets]
        return [*own, (self.layout.average, self.averaged)] if self.averaged else own

    @property
    def methods(self) -> list[str]:
        """The layout's methods that were run."""
        there = {group.method for group in self.board.records.chosen(setting=self.setting)}
        return [name for name in self.layout.methods if name in there]

    def scores(self, method: str, metric: str) -> list[Estimate | None]:
        """One estimate per column."""
        return [self.board.average(self.setting, names, method, metric) for _, names in self.columns]

    def best(self, metric: str) -> dict[str, list[bool]]:
        """Method -> whether each column's entry is the best or not significantly worse; see LEGEND."""
        scores = {method: self.scores(method, metric) for method in self.methods}
        columns = [
            _best({method: each[at] for method, each in scores.items()}, metric) if self._paired(names) else set()
            for at, (_, names) in enumerate(self.columns)
        ]
        return {method: [method in marked for marked in columns] for method in self.methods}

    def _paired(self, datasets: Sequence[str]) -> bool:
        """Whether all methods that have answers have them for the same images: only these can be compared."""
        return all(
            len({self.board.images(self.setting, name, method) for method in self.methods} - {()}) == 1
            for name in datasets
        )


def _best(scores: Mapping[str, Estimate | None], metric: str) -> set[str]:
    there = {method: score for method, score in scores.items() if score is not None}
    sign = -1 if rows.get(metric).higher_is_better else 1
    if len(there) < 2:
        return set()
    leader = min(there.values(), key=lambda score: sign * score.value)
    kept = {method for method, score in there.items() if not (score - leader).clear}
    return kept if len(kept) < len(there) else set()


def tabulate(
    board: Scoreboard,
    *,
    like: str | None = None,
    metrics: Sequence[str] = ("accuracy", "ece"),
    intervals: bool = False,
    std: bool = False,
) -> list[Table]:
    """One table for each setting that has something to show.

    Args:
        board: the scores.
        like: a table of the paper, ``table1`` to ``table5``: its methods, datasets and average.
        metrics: the lines of each method.
        intervals: show 95 % confidence intervals over images.
        std: show standard deviations over seeds.
    """
    layout = _layout(board.records, like)
    tables = []
    for setting in board.records.settings:
        if like and (setting.framework != layout.framework or setting.init not in layout.inits):
            continue
        there = {group.dataset for group in board.records.chosen(setting=setting) if group.method in layout.methods}
        datasets = tuple(name for name in layout.datasets if name in there)
        if datasets:
            tables.append(
                _table(_Block(board, setting, replace(layout, datasets=datasets), like, metrics), intervals, std)
            )
    if not tables:
        wanted = (
            f"framework {layout.framework}, init {' or '.join(layout.inits)}, datasets {', '.join(layout.datasets)}"
        )
        raise InvalidDatasetError(
            f"No run fits {like or 'a table'}: {wanted}.", hint=f"Found datasets: {', '.join(board.records.datasets)}."
        )
    return tables


def result_tables(
    runs: str | Path | Records,
    *,
    like: str | None = None,
    metrics: Sequence[str] = ("accuracy", "ece"),
    intervals: bool = False,
    std: bool = False,
    resamples: int = 1000,
) -> list[Table]:
    """The tables of a folder of runs; see `tabulate`."""
    if like is not None and like not in published.LAYOUTS:
        raise UnknownNameError.of("table", like, published.LAYOUTS)
    board = scoreboard(load(runs), metrics=metrics, resamples=resamples)
    return tabulate(board, like=like, metrics=metrics, intervals=intervals, std=std)


def _layout(records: Records, like: str | None) -> published.TableLayout:
    if like is not None:
        return published.LAYOUTS[like]
    datasets = tuple(catalog.in_order(records.datasets))
    return published.TableLayout("", "Results", datasets, datasets, "Avg.", tuple(records.methods))


def _table(block: _Block, intervals: bool, std: bool) -> Table:
    best = {metric: block.best(metric) for metric in block.metrics}
    lines: list[Line] = []
    records: list[dict[str, Any]] = []
    for method in block.methods:
        told = [_published(block, method, metric) for metric in block.metrics]
        for metric in block.metrics:
            scores, marks = block.scores(method, metric), best[metric][method]
            cells = [_cell(metric, *each, intervals, std) for each in zip(scores, marks, strict=True)]
            lines.append(Line((Cell(method), *_metric_cell(block, metric), *cells), method))
            records += _records(block, method, metric, scores, marks)
        for found in filter(None, told):
            cells = [Cell(DASH if value is None else f"{value:.2f}") for value in found.values]
            heads = (Cell(f"  published: {found.label}"), *_metric_cell(block, found.metric))
            lines.append(Line((*heads, *cells), method, quiet=True))
            records += found.records(block)
    single = rows.get(block.metrics[0]).title if len(block.metrics) == 1 else ""
    title = f"{block.layout.title}{f', {single}' if single else ''}: {block.board.records.label(block.setting)}"
    columns = ("Method", *([] if single else ["Metric"]), *(heading for heading, _ in block.columns))
    notes = (*_notes(block, [record["source"] for record in records]), LEGEND)
    return Table(title, columns, tuple(lines), notes, len(columns) - len(block.columns), tuple(records))


def _metric_cell(block: _Block, metric: str) -> list[Cell]:
    """The metric's name, where a table has several."""
    return [Cell(rows.get(metric).title)] if len(block.metrics) > 1 else []


def _cell(metric: str, score: Estimate | None, best: bool, intervals: bool, std: bool) -> Cell:
    if score is None:
        return Cell(DASH)
    found = score.interval
    extra = [f"± {printed(metric, score.std)}"] if std and score.std is not None else []
    extra += [f"[{printed(metric, found.low)}, {printed(metric, found.high)}]"] if intervals else []
    return Cell(printed(metric, found.value), " ".join(extra), best)


def _records(
    block: _Block, method: str, metric: str, scores: Sequence[Estimate | None], marks: Sequence[bool]
) -> Iterator[dict[str, Any]]:
    """The numbers behind a line, always with interval and standard deviation."""
    for key, score, best in zip(_keys(block, OURS, method, metric), scores, marks, strict=True):
        if score is not None:
            found = score.interval
            value, low, high = (shown(metric, each) for each in (found.value, found.low, found.high))
            yield {
                **key, "value": value, "low": low, "high": high,
                "std": None if score.std is None else shown(metric, score.std), "seeds": len(score.by_seed),
                "best": best, "source": "",
            }  # fmt: skip


def _keys(block: _Block, origin: str, method: str, metric: str) -> Iterator[dict[str, Any]]:
    """What the number in each column is about; an average has no dataset."""
    label = block.board.records.label(block.setting)
    model = block.setting.model if origin == OURS else published.MODEL
    for at, (column, names) in enumerate(block.columns):
        dataset = names[0] if at < len(block.layout.datasets) else ""
        yield {"table": block.layout.title, "setting": label, "model": model, "origin": origin, "method": method,
               "metric": metric, "column": column, "dataset": dataset}  # fmt: skip


@dataclass(frozen=True)
class _Published:
    """The paper's line for one of our methods."""

    label: str
    method: str
    metric: str
    values: list[float | None]  # one per column, in percent
    source: str

    def records(self, block: _Block) -> Iterator[dict[str, Any]]:
        """Its numbers, in the form of ours."""
        keys = _keys(block, PUBLISHED, self.method, self.metric)
        for key, value in zip(keys, self.values, strict=True):
            if value is not None:
                yield {**key, "value": value, "low": None, "high": None, "std": None, "seeds": 3, "best": False,
                       "source": self.source}  # fmt: skip


def _published(block: _Block, method: str, metric: str) -> _Published | None:
    """The paper's row for the same method, where it printed one for at least one of the columns."""
    same = {"method": method, "metric": metric, "framework": block.setting.framework, "init": block.setting.init}
    tables = [block.like] if block.like else ["table1", "table2", "table3", "table4"]
    found = [row for table in tables for row in published.rows(table, **same)]
    printed_values = {name: value for row in found for name, value in row.values.items()}
    values = [printed_values.get(name) for name in block.layout.datasets]
    if block.averaged:
        whole = block.like is not None and set(block.averaged) == set(published.LAYOUTS[block.like].averaged)
        if found and (whole or not printed_values):
            values.append(found[0].average)
        else:
            known = [printed_values[name] for name in block.averaged if name in printed_values]
            values.append(float(np.mean(known)) if known and len(known) == len(block.averaged) else None)
    if all(value is None for value in values):
        return None
    used = [row for row in found if not row.values or any(name in row.values for name in block.layout.datasets)]
    return _Published(used[0].label, method, metric, values, "; ".join(row.source for row in used))


def _notes(block: _Block, sources: Sequence[str]) -> list[str]:
    records, layout = block.board.records, block.layout
    groups = [group for group in records.chosen(setting=block.setting) if group.dataset in layout.datasets]
    sizes = {group.dataset: group.n for group in groups}
    seeds = sorted({seed for group in groups for seed in group.seeds})
    images = ", ".join(f"{catalog.heading(name)} {sizes[name]}" for name in layout.datasets)
    over = f"mean over seeds {', '.join(map(str, seeds))}" if len(seeds) > 1 else f"seed {seeds[0]} alone"
    notes = [f"Model {block.setting.model}; images: {images}; {over}.", _widths(block)]
    if any(
        score is None for method in block.methods for metric in block.metrics for score in block.scores(method, metric)
    ):
        notes.append(
            "A dash: not run, or the records don't keep what the metric needs; no average without all datasets."
        )
    failed, uneven = sum(group.errors for group in groups), sum(group.uneven for group in groups)
    if failed or uneven:
        notes.append(f"Left out: {failed} rows with errors, {uneven} image-method pairs that some seed lacks.")
    untuned = sum(int(found["fallback"].sum()) for group in groups for found in group.seeds.values())
    if untuned:
        notes.append(f"{untuned} answers fell back to the un-tuned prompt because tuning was not finite.")
    return [*notes, *records.unfinished(), *_published_notes(block, sources)]


def _published_notes(block: _Block, sources: Sequence[str]) -> list[str]:
    notes = []
    whole = published.LAYOUTS[block.like].datasets if block.like else ()
    if missing := [catalog.heading(name) for name in whole if name not in block.layout.datasets]:
        over = "is over all of its datasets" if block.like == "table5" else "covers the same datasets as ours"
        notes.append(f"Not run of {block.like}: {', '.join(missing)}. The published average {over}.")
    if tables := sorted({number for source in sources for number in re.findall(r"Table \d", source)}):
        where = f"{published.PAPER}, {', '.join(tables)}, with {published.MODEL}"
        notes.append(f"Published: {where}; other models differ in level.")
    return notes


def _widths(block: _Block) -> str:
    """How wide the intervals are at most, and how large the standard deviations, metric by metric."""
    half, spread = [], []
    for metric in block.metrics:
        scores = [score for method in block.methods for score in block.scores(method, metric) if score is not None]
        if scores:
            title = rows.get(metric).title
            width = max(
                max(found.high - found.value, found.value - found.low) for found in (s.interval for s in scores)
            )
            half.append(f"{title} ±{printed(metric, width)}")
            if deviations := [score.std for score in scores if score.std is not None]:
                spread.append(f"{title} {printed(metric, max(deviations))}")
    how = f"95 % confidence intervals over images ({block.board.resamples} bootstrap resamples)"
    text = f"{how} reach at most: {', '.join(half)}."
    return text + (f" Standard deviations over seeds are at most: {', '.join(spread)}." if spread else "")
