"""The output of `poise classify`: one row per image and method as a table, JSON or CSV."""

from __future__ import annotations

import csv
import io
import json
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from poise.storage import printable, safe_cell

if TYPE_CHECKING:
    from poise.inference.results import Result

Value = Callable[["Result"], object]


_NUMBERS = ("confidence", "margin", "entropy", "match", "agreement")  # of a result


def _label(result: Result) -> str:
    label = f"{result.label} ({result.rejected}?)" if result.rejected else result.label
    return f"{label} (un-tuned: tuning was not finite)" if result.fallback else label


def _number(name: str, form: Callable[[float], str]) -> Value:
    return lambda result: None if getattr(result, name) is None else form(getattr(result, name))


def _next(result: Result) -> str:
    ranked = result.top(2)
    return f"{ranked[1][0]} {ranked[1][1]:.3f}" if len(ranked) > 1 else "(one label only)"


def _set(result: Result) -> str | None:
    return None if result.prediction_set is None else "{" + ", ".join(result.prediction_set) + "}"


# Columns of the table, and of CSV between "image" and "error". In the table, a column without any value is left out.
_TABLE: dict[str, Value] = {
    "method": lambda result: result.method,
    "label": _label,
    **{name: _number(name, "{:.3f}".format) for name in _NUMBERS},
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


def as_table(outcomes: Sequence[Any], methods: Sequence[str]) -> str:
    """Return aligned text for people, and below it the errors and the guarantees."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    results = [outcome[name] for outcome in outcomes if isinstance(outcome, dict) for name in methods]
    columns = {name: value for name, value in _TABLE.items()
               if not results or any(value(result) is not None for result in results)}  # fmt: skip
    table = Table(box=None, pad_edge=False, header_style="bold")
    for heading in ("image", *columns):
        table.add_column(heading, justify="right" if heading in _NUMBERS else "left")
    below = []
    for image, outcome in zip(_short_names(outcomes), outcomes, strict=True):
        if not isinstance(outcome, dict):
            table.add_row(Text(printable(image)), "error", "(below)", style="red")
            below.append(printable(f"{image}: {outcome.message}"))
            continue
        for at, name in enumerate(methods):
            cells = [image if at == 0 else "", *(value(outcome[name]) or "" for value in columns.values())]
            table.add_row(*(Text(printable(str(cell))) for cell in cells))  # not markup: a label may have [brackets]
    below += dict.fromkeys(result.decision.guarantee for result in results if result.decision)
    buffer, terminal = io.StringIO(), sys.stdout.isatty()
    Console(file=buffer, force_terminal=terminal, width=None if terminal else 160).print(table)
    return "\n".join([buffer.getvalue().rstrip("\n"), *below, ""])


def as_json(outcomes: Sequence[Any], methods: Sequence[str]) -> str:
    """Return a list of results; an image without an answer has its source and the error."""
    rows: list[dict[str, Any]] = []
    for outcome in outcomes:
        if isinstance(outcome, dict):
            rows += [outcome[name].to_dict() for name in methods]
        else:
            rows.append({"source": outcome.source, "error": {"code": outcome.code, "message": outcome.message}})
    return json.dumps(rows, indent=2, ensure_ascii=False, allow_nan=False) + "\n"


def as_csv(outcomes: Sequence[Any], methods: Sequence[str]) -> str:
    """Return one line per image and method; every line has the same columns."""
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerow(["image", *_CSV, "error"])
    for outcome in outcomes:
        if not isinstance(outcome, dict):
            writer.writerow([safe_cell(outcome.source), *[""] * len(_CSV), safe_cell(outcome.message)])
            continue
        for result in (outcome[name] for name in methods):
            values = (value(result) for value in _CSV.values())
            cells = ["" if value is None else safe_cell(value) for value in values]
            writer.writerow([safe_cell(result.source), *cells, ""])
    return buffer.getvalue()


def _short_names(outcomes: Sequence[Any]) -> list[str]:
    """Return file names without their folders, where that distinguishes the images."""
    results = (next(iter(outcome.values())) if isinstance(outcome, dict) else outcome for outcome in outcomes)
    sources = [result.source for result in results]
    counts = Counter(Path(source).name for source in set(sources))
    return [Path(source).name if counts[Path(source).name] == 1 else source for source in sources]


RENDER = {"table": as_table, "json": as_json, "csv": as_csv}
