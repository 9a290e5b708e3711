"""The output of `poise classify`: one row per image and method as a table, JSON, JSON lines, CSV or Parquet."""

from __future__ import annotations

import csv
import io
import json
import shutil
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from poise.report.tables.formats import render
from poise.report.tables.table import Cell, Line, Table, Tone
from poise.results import Failure, Result, Results, flat_rows
from poise.text import first_few, safe_cell

Value = Callable[["Result"], object]


_WIDE = 110  # columns; a terminal with fewer shows the size of sets with more than two labels
_TEXTS = ("next", "set", "yes", "unsure", "node", "decision")  # columns of words
_DISPENSABLE = ("entropy", "margin", "match", "raw", "next", "method")  # in a narrow terminal; the method if it is one
_KEYS = tuple(row.name for row in fields(Result) if row.name not in ("calibrated", "guarantee"))  # of JSON rows
_NUMBERS = ("confidence", "margin", "entropy", "match")  # of a result


def _label(result: Result) -> str:
    label = f"{result.label} ({result.rejected}?)" if result.rejected else result.label
    return f"{label} (un-tuned: tuning was not finite)" if result.fallback else label


def _number(name: str, form: Callable[[float], str]) -> Value:
    return lambda result: None if getattr(result, name) is None else form(getattr(result, name))


def _next(result: Result) -> str | None:
    if result.groups is not None:
        return None
    ranked = result.top(2)
    return f"{ranked[1][0]} {ranked[1][1]:.3f}" if len(ranked) > 1 else "(one label only)"


def _set(result: Result) -> str | None:
    if result.prediction_set is None:
        return None
    size = len(result.prediction_set)
    if size > 2 and sys.stdout.isatty() and shutil.get_terminal_size().columns < _WIDE:
        return f"{size} labels"
    return "{" + first_few(result.prediction_set) + "}"


def _said(labels: tuple[str, ...] | None) -> str | None:
    """Return the labels with an outcome; None without outcomes."""
    if labels is None:
        return None
    return first_few(labels) or "none"


# Columns of the table; one without any value is left out.
_TABLE: dict[str, Value] = {
    "method": lambda result: result.method,
    "label": _label,
    **{name: _number(name, "{:.3f}".format) for name in _NUMBERS},
    "raw": _number("raw_confidence", "{:.3f}".format),
    "next": _next,
    "set": _set,
    "yes": lambda result: _said(result.yes),
    "unsure": lambda result: _said(result.unsure),
    "node": lambda result: result.node,
    "decision": lambda result: result.decision,
}


@dataclass(frozen=True)
class Columns:
    """What rows contain.

    Attributes:
        methods: one row per image and method.
        labels: of the classifier.
        top_k: probabilities per row in JSON and CSV; None for those of all labels.
        threshold: lowest confidence that is answered; None for the classifier's own decision.
    """

    methods: Sequence[str]
    labels: tuple[str, ...]
    top_k: int | None = None
    threshold: float | None = None

    def decided(self, outcome: Results | Failure) -> Results | Failure:
        """Return the results of an image in the order of the methods, with decisions by the user's threshold."""
        if isinstance(outcome, Failure):
            return outcome
        threshold = self.threshold
        return {
            name: outcome[name] if threshold is None else outcome[name].decided_at(threshold) for name in self.methods
        }


def as_table(outcomes: Sequence[Results | Failure], columns: Columns) -> str:
    """Return aligned text for people, and below it the errors and the guarantees."""
    decided = [columns.decided(outcome) for outcome in outcomes]
    results = [result for outcome in decided if isinstance(outcome, dict) for result in outcome.values()]
    shown = {
        name: value
        for name, value in _TABLE.items()
        if any(value(result) is not None for result in results) or name in ("method", "label")
    }
    images, headings = _short_names(outcomes), ("image", *shown)
    pairs = list(zip(images, decided, strict=True))
    errors = [f"{image}: {outcome.message}" for image, outcome in pairs if isinstance(outcome, Failure)]
    guarantees = dict.fromkeys(result.guarantee for result in results if result.guarantee)
    kept = {"method"} if len(columns.methods) > 1 else set()
    table = Table(
        "",
        headings,
        tuple(line for image, outcome in pairs for line in _lines(image, outcome, shown)),
        (*errors, *guarantees),
        texts=3,
        more_texts=frozenset(headings.index(name) for name in _TEXTS if name in shown),
        dispensable=tuple(headings.index(name) for name in _DISPENSABLE if name in shown and name not in kept),
    )
    return render([table], colour=sys.stdout.isatty())


def _lines(image: str, outcome: Results | Failure, shown: Mapping[str, Value]) -> Iterator[Line]:
    """Yield the lines of one image: one per method, or one that says that there is an error."""
    if isinstance(outcome, Failure):
        cells = (image, "error", "(below)", *[""] * (len(shown) - 2))
        yield Line(tuple(Cell(cell, tone="bad") for cell in cells))
        return
    for at, result in enumerate(outcome.values()):
        cells = (image if at == 0 else "", *(str(value(result) or "") for value in shown.values()))
        yield Line(tuple(Cell(cell, tone=_tone(cell, result)) for cell in cells))


def _tone(cell: str, result: Result) -> Tone:
    """Return the colour of a decision, and of a label that is none."""
    if cell == result.decision:
        return "good" if cell == "answer" else "doubtful"
    return "doubtful" if result.rejected and cell == _label(result) else ""


def as_json(outcomes: Sequence[Results | Failure], columns: Columns) -> str:
    """Return a list of rows; every row has the same keys."""
    rows = [row for outcome in outcomes for row in _dicts(outcome, columns)]
    return json.dumps(rows, indent=2, ensure_ascii=False, allow_nan=False) + "\n"


def as_lines(outcomes: Sequence[Results | Failure], columns: Columns) -> str:
    """Return the rows of `as_json`, one per line."""
    rows = (row for outcome in outcomes for row in _dicts(outcome, columns))
    return "".join(json.dumps(row, ensure_ascii=False, allow_nan=False) + "\n" for row in rows)


def _dicts(outcome: Results | Failure, columns: Columns) -> list[dict[str, Any]]:
    decided = columns.decided(outcome)
    if isinstance(decided, Failure):
        error = {"code": decided.code, "message": decided.message}
        return [{**dict.fromkeys(_KEYS), "source": decided.source, "error": error}]
    rows = []
    for result in decided.values():
        row = {name: value for name, value in result.to_dict().items() if name in _KEYS} | {"error": None}
        row["probabilities"] = dict(result.top(columns.top_k or len(columns.labels)))
        rows.append(row)
    return rows


def as_csv(outcomes: Sequence[Results | Failure], columns: Columns) -> str:
    """Return one line per image and method; every line has the same columns. Probabilities come last."""
    labels, top_k = columns.labels, columns.top_k
    nothing = flat_rows(Failure("", "", ""), labels, top_k)[0]  # has all columns
    buffer = io.StringIO()
    writer = csv.DictWriter(buffer, list(nothing), lineterminator="\n")
    writer.writerow({name: safe_cell(name) for name in nothing})
    for outcome in outcomes:
        for row in flat_rows(columns.decided(outcome), labels, top_k):
            writer.writerow({name: _csv_cell(value) for name, value in row.items()})
    return buffer.getvalue()


def as_parquet(outcomes: Sequence[Results | Failure], columns: Columns) -> bytes:
    """Return a file with the columns of the parts of a job, but for the shard."""
    from poise.jobs.answer_table import Shown, result_table
    from poise.jobs.workers import encode

    decided = [columns.decided(outcome) for outcome in outcomes]
    return encode(result_table(decided, columns.top_k or Shown.top_k).drop_columns("shard"))


def _csv_cell(value: object) -> object:
    if isinstance(value, float):
        return repr(value)
    return json.dumps(value, ensure_ascii=False) if isinstance(value, tuple) else safe_cell(value)


def _short_names(outcomes: Sequence[Results | Failure]) -> list[str]:
    """Return file names without their folders, where that distinguishes the images."""
    results = (next(iter(outcome.values())) if isinstance(outcome, dict) else outcome for outcome in outcomes)
    sources = [result.source for result in results]
    counts = Counter(Path(source).name for source in set(sources))
    return [Path(source).name if counts[Path(source).name] == 1 else source for source in sources]


RENDER: Mapping[str, Callable[[Sequence[Results | Failure], Columns], str | bytes]] = {
    "table": as_table,
    "json": as_json,
    "csv": as_csv,
    "parquet": as_parquet,
}
