"""Each number of a run beside the published one: inside or outside of a stated band, or not comparable, and why."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from poise.data import catalog
from poise.metrics import Estimate
from poise.report.published import paper
from poise.report.published.peers import PEER_LAYOUTS, PEER_ROWS
from poise.report.records.groups import Setting
from poise.report.records.scores import Scoreboard, shown
from poise.report.tables.table import Cell, Line, Table, Tone
from poise.reproduce.bands import OTHER_PROTOCOL, Band, band
from poise.text import counted

Verdict = Literal["inside", "outside", "not comparable"]
AVERAGE = "average"
METRICS = ("accuracy", "ece")
_TONES: dict[Verdict, Tone] = {"inside": "good", "outside": "bad", "not comparable": "doubtful"}


@dataclass(frozen=True)
class Compared:
    """One number of a run and the published one, in percent."""

    method: str
    init: str
    dataset: str  # or `AVERAGE`
    metric: str
    measured: float
    low: float  # of the 95 % interval over images, which counts where only some of them were taken
    high: float
    published: float
    band: float
    verdict: Verdict
    reason: str  # where the band comes from, or why nothing can be compared
    source: str


def compare(board: Scoreboard, setting: Setting, layout: paper.TableLayout, *, same_model: bool) -> list[Compared]:
    """Compare all numbers of a run with those of a published table.

    Args:
        board: the scores of the run.
        setting: its setting.
        layout: the table.
        same_model: whether the model is the published one, by its zero-shot numbers (`poise.reproduce.gate`).
    """
    rows = PEER_ROWS if layout.name in PEER_LAYOUTS else paper.ROWS
    same = {"table": layout.name, "framework": setting.framework, "init": setting.init}
    found = []
    for row in paper.matching(rows, **same):
        for dataset, value in _cells(row):
            names = layout.averaged if dataset == AVERAGE else (dataset,)
            score = board.average(setting, names, row.method, row.metric)
            if score is not None and row.metric in METRICS:
                images = [len(board.images(setting, name, row.method)) for name in names]
                found.append(_compared(row, dataset, value, score, dict(zip(names, images, strict=True)), same_model))
    return found


def _cells(row: paper.PublishedRow) -> Iterator[tuple[str, float]]:
    yield from row.values.items()
    if row.average is not None:
        yield AVERAGE, row.average


def _compared(
    row: paper.PublishedRow, dataset: str, value: float, score: Estimate, images: dict[str, int], same_model: bool
) -> Compared:
    accepted = band(row, "" if dataset == AVERAGE else dataset)
    verdict, reason = _verdict(row, value, score, images, same_model, accepted)
    measured, low, high = (round(shown(row.metric, number), 4) for number in score.interval)
    return Compared(
        row.method,
        row.init,
        dataset,
        row.metric,
        measured,
        low,
        high,
        value,
        accepted.points,
        verdict,
        reason,
        row.source,
    )


def _verdict(
    row: paper.PublishedRow,
    value: float,
    score: Estimate,
    images: dict[str, int],
    same_model: bool,
    accepted: Band,
) -> tuple[Verdict, str]:
    if not same_model:
        return "not comparable", f"the published numbers are of {paper.MODEL}"
    if row.origin in OTHER_PROTOCOL:
        return "not comparable", row.origin
    fewer = {name: number for name, number in images.items() if number < catalog.row(name).images}
    measured, low, high = (shown(row.metric, number) for number in score.interval)
    if fewer and row.metric != "accuracy":
        return "not comparable", f"{_some(fewer)}: the floor of the {row.metric.upper()} depends on their number"
    if fewer:  # the images are a sample, so its interval counts
        inside = low <= value + accepted.points and high >= value - accepted.points
        return "inside" if inside else "outside", f"{accepted.reason}, and the 95 % interval of {_some(fewer)}"
    inside = abs(measured - value) <= accepted.points
    return "inside" if inside else "outside", accepted.reason


def _some(fewer: dict[str, int]) -> str:
    return f"{counted(sum(fewer.values()), 'image')} of {sum(catalog.row(name).images for name in fewer)}"


KEPT = ("method", "init", "dataset", "metric", "measured", "published", "band", "verdict")


def listed(cells: Sequence[Compared]) -> dict[str, list[Any]]:
    """Return verdicts as a record has them: short, because it must stay small, and each reason once.

    Intervals are in the record's results, and sources in the published tables of this package.
    """
    reasons = list(dict.fromkeys(cell.reason for cell in cells))
    return {
        "columns": [*KEPT, "reason"],
        "reasons": reasons,
        "cells": [[*(getattr(cell, name) for name in KEPT), reasons.index(cell.reason)] for cell in cells],
    }


def verdicts(record: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the verdicts of a record, as `listed` has taken them from `Compared`."""
    content = record["comparison"]
    cells = [dict(zip(content["columns"], cell, strict=True)) for cell in content["cells"]]
    return [cell | {"reason": content["reasons"][cell["reason"]]} for cell in cells]


def table(cells: Sequence[Compared], title: str) -> Table:
    """Return the comparison for people, and its numbers for programs."""
    lines = []
    for cell in cells:
        texts = [
            Cell(cell.method if cell.init == "template" else f"{cell.init}: {cell.method}"),
            Cell(cell.dataset if cell.dataset == AVERAGE else catalog.heading(cell.dataset)),
            Cell(cell.metric),
            Cell(f"{cell.measured:.2f}", f"[{cell.low:.2f}, {cell.high:.2f}]"),
            Cell(f"{cell.published:.2f}"),
            Cell(f"± {cell.band:.2f}"),
            Cell(cell.verdict, tone=_TONES[cell.verdict]),
            Cell(cell.reason),
        ]
        lines.append(Line(tuple(texts), cell.method))
    counts = {verdict: sum(cell.verdict == verdict for cell in cells) for verdict in _TONES}
    notes = (", ".join(f"{number} {verdict}" for verdict, number in counts.items()) + f" of {len(cells)} numbers.",)
    columns = ("Method", "Dataset", "Metric", "Here", "Published", "Band", "Verdict", "Why")
    return Table(title, columns, tuple(lines), notes, texts=3, more_texts=frozenset({6, 7}), dispensable=(7,))
