"""The output of `poise classify`: one row per image and method as a table, JSON, JSON lines or CSV."""

from __future__ import annotations

import csv
import io
import json
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, Literal

from poise.results import Decision, Result
from poise.text import printable, safe_cell

Value = Callable[["Result"], object]


_IN_SET = 5  # labels of a prediction set that the table shows
_NUMBERS = ("confidence", "margin", "entropy", "match")  # of a result


def _label(result: Result) -> str:
    label = f"{result.label} ({result.rejected}?)" if result.rejected else result.label
    return f"{label} (un-tuned: tuning was not finite)" if result.fallback else label


def _number(name: str, form: Callable[[float], str]) -> Value:
    return lambda result: None if getattr(result, name) is None else form(getattr(result, name))


def _next(result: Result) -> str:
    ranked = result.top(2)
    return f"{ranked[1][0]} {ranked[1][1]:.3f}" if len(ranked) > 1 else "(one label only)"


def _set(result: Result) -> str | None:
    if result.prediction_set is None:
        return None
    more = len(result.prediction_set) - _IN_SET
    return "{" + ", ".join(result.prediction_set[:_IN_SET]) + (f" and {more} more" if more > 0 else "") + "}"


# Columns of the table, and of CSV between "image" and "error". In the table, a column without any value is left out.
_TABLE: dict[str, Value] = {
    "method": lambda result: result.method,
    "label": _label,
    **{name: _number(name, "{:.3f}".format) for name in _NUMBERS},
    "raw": _number("raw_confidence", "{:.3f}".format),
    "next": _next,
    "set": _set,
    "decision": lambda result: result.decision and result.decision.action,
}
_CSV: dict[str, Value] = {
    "method": lambda result: result.method,
    "label": lambda result: result.label,
    **{name: _number(name, repr) for name in (*_NUMBERS, "raw_confidence")},
    "rejected": lambda result: result.rejected,
    "fallback": lambda result: result.fallback,
    "prediction_set": lambda result: result.prediction_set and json.dumps(result.prediction_set, ensure_ascii=False),
    "decision": lambda result: result.decision and result.decision.action,
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

    def results(self, outcome: Any) -> list[Result]:
        """Return the results of an image, one per method; none for a failure."""
        if not isinstance(outcome, dict):
            return []
        results = [outcome[name] for name in self.methods]
        return results if self.threshold is None else [_decided(result, self.threshold) for result in results]


def _decided(result: Result, threshold: float) -> Result:
    answered = result.confidence >= threshold and result.rejected is None
    action: Literal["answer", "abstain"] = "answer" if answered else "abstain"
    return replace(result, decision=Decision(action, threshold, "Nothing is guaranteed: the threshold is your own."))


def as_table(outcomes: Sequence[Any], columns: Columns) -> str:
    """Return aligned text for people, and below it the errors and the guarantees."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    rows = [columns.results(outcome) for outcome in outcomes]
    results = [result for row in rows for result in row]
    shown = {
        name: value
        for name, value in _TABLE.items()
        if any(value(result) is not None for result in results) or name in ("method", "label")
    }
    table = Table(box=None, pad_edge=False, header_style="bold")
    for heading in ("image", *shown):
        table.add_column(heading, justify="right" if heading in (*_NUMBERS, "raw") else "left")
    below = []
    for image, outcome, row in zip(_short_names(outcomes), outcomes, rows, strict=True):
        if not row:
            table.add_row(Text(printable(image)), "error", "(below)", style="red")
            below.append(printable(f"{image}: {outcome.message}"))
        for at, result in enumerate(row):
            cells = [image if at == 0 else "", *(value(result) or "" for value in shown.values())]
            table.add_row(*(Text(printable(str(cell))) for cell in cells))  # not markup: a label may have [brackets]
    below += dict.fromkeys(printable(result.decision.guarantee) for result in results if result.decision)
    buffer, terminal = io.StringIO(), sys.stdout.isatty()
    Console(file=buffer, force_terminal=terminal, width=None if terminal else 160).print(table)
    return "\n".join([buffer.getvalue().rstrip("\n"), *below, ""])


def as_json(outcomes: Sequence[Any], columns: Columns) -> str:
    """Return a list of rows; every row has the same keys."""
    rows = [row for outcome in outcomes for row in _dicts(outcome, columns)]
    return json.dumps(rows, indent=2, ensure_ascii=False, allow_nan=False) + "\n"


def as_lines(outcomes: Sequence[Any], columns: Columns) -> str:
    """Return the rows of `as_json`, one per line."""
    rows = (row for outcome in outcomes for row in _dicts(outcome, columns))
    return "".join(json.dumps(row, ensure_ascii=False, allow_nan=False) + "\n" for row in rows)


def _dicts(outcome: Any, columns: Columns) -> list[dict[str, Any]]:
    if not isinstance(outcome, dict):
        nothing = dict.fromkeys(field.name for field in fields(Result) if field.name != "calibrated")
        error = {"code": outcome.code, "message": outcome.message}
        return [{**nothing, "source": outcome.source, "error": error}]
    rows = []
    for result in columns.results(outcome):
        row = {**result.to_dict(), "error": None}
        row["probabilities"] = dict(result.top(columns.top_k or len(columns.labels)))
        rows.append(row)
    return rows


def as_csv(outcomes: Sequence[Any], columns: Columns) -> str:
    """Return one line per image and method; every line has the same columns. Probabilities come last."""
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    places = range(1, min(columns.top_k or 0, len(columns.labels)) + 1)
    if columns.top_k is None:
        headings = [f"p({label})" for label in columns.labels]
    else:
        headings = [heading for at in places for heading in (f"label {at}", f"p {at}")]
    writer.writerow([safe_cell(heading) for heading in ("image", *_CSV, "error", *headings)])
    for outcome in outcomes:
        if not isinstance(outcome, dict):
            blank = [""] * len(headings)
            writer.writerow([safe_cell(outcome.source), *[""] * len(_CSV), safe_cell(outcome.message), *blank])
        for result in columns.results(outcome):
            values = (value(result) for value in _CSV.values())
            cells = ["" if value is None else safe_cell(value) for value in values]
            probs = result.probabilities
            if columns.top_k is None:
                last: list[object] = [repr(probs[label]) for label in columns.labels]
            else:
                last = [cell for label, prob in result.top(len(places)) for cell in (safe_cell(label), repr(prob))]
            writer.writerow([safe_cell(result.source), *cells, "", *last])
    return buffer.getvalue()


def _short_names(outcomes: Sequence[Any]) -> list[str]:
    """Return file names without their folders, where that distinguishes the images."""
    results = (next(iter(outcome.values())) if isinstance(outcome, dict) else outcome for outcome in outcomes)
    sources = [result.source for result in results]
    counts = Counter(Path(source).name for source in set(sources))
    return [Path(source).name if counts[Path(source).name] == 1 else source for source in sources]


RENDER = {"table": as_table, "json": as_json, "csv": as_csv}
