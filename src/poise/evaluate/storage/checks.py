"""Checks what is read from a run's folder, which a disk, a person or another program may have damaged."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path, PurePosixPath
from typing import Any

from poise.errors import InvalidDatasetError, reason_of
from poise.files import read_bounded

_MAX_BYTES = 256 << 20  # of a header, which contains all class names
MAX_PART = 1 << 30  # bytes of a file of records or features
_MAX_IMAGES = 20_000_000  # of a dataset
REPAIR = "Run the same `poise bench run` again (`poise bench resume-info` shows it): it repairs the run."

Check = Callable[[Any], bool]


def _number(least: int, most: int = 2**63 - 1) -> Check:
    return lambda value: isinstance(value, int) and not isinstance(value, bool) and least <= value <= most


def _listed(check: Check) -> Check:
    return lambda value: isinstance(value, list) and all(map(check, value))


def _text(value: Any) -> bool:
    return isinstance(value, str)


def _table(value: Any) -> bool:
    return isinstance(value, dict)


def _fraction(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value <= 1


def _trees(value: Any) -> bool:
    return isinstance(value, dict) and all(map(_listed(_text), value.values()))


# Keys that programs read; values of others are only shown. A key that an earlier version did not write may be absent.
_CONFIG: Mapping[str, Check] = {
    "seeds": _listed(_number(-(2**63))),
    "chunk": _number(1),
    "calibrate": _number(0),
    "coverage": _fraction,
    "max_error": _fraction,
    "batch_size": _number(0),
    "model": _text,
}
_DATASET: Mapping[str, Check] = {"folder": _text, "classes": _listed(_text), "images": _number(0, _MAX_IMAGES)}
_METHOD: Mapping[str, Check] = {
    "terms": _listed(lambda term: isinstance(term, dict) and isinstance(term.get("objective"), str)),
    "loss": lambda value: value is None or isinstance(value, str),
}
_HEADER: Mapping[str, Check] = {"run": _text, "config": _table, "methods": _table, "datasets": _table, "trees": _trees}
_LINE: Mapping[str, Check] = {
    "unit": _text,
    "file": _text,
    "files": _text,
    "sha256": _text,
    "images": _number(0),
    "errors": _number(0),
    "fallbacks": _number(0),
    "event": _text,
    "command": _listed(_text),
}


def read_header(folder: Path) -> dict[str, Any]:
    """Read ``run.json`` in a run's folder."""
    file = folder / "run.json"
    try:
        content = json.loads(read_bounded(file, _MAX_BYTES))
        problem = _problem(content, _HEADER) or next(filter(None, _inner_problems(content)), "")
    except (OSError, ValueError, RecursionError) as error:
        problem = reason_of(error)
    if problem:
        raise InvalidDatasetError(
            f"'{file}' can't be read: {problem}.", hint="Without it a run can't be used: repeat it under another name."
        )
    return dict(content)


def _inner_problems(header: Mapping[str, Any]) -> list[str]:
    datasets, methods = (header.get(key, {}).values() for key in ("datasets", "methods"))
    tables = [(header.get("config", {}), _CONFIG), *((entry, _DATASET) for entry in datasets)]
    return [_problem(table, checks) for table, checks in (*tables, *((method, _METHOD) for method in methods))]


def _problem(table: Any, checks: Mapping[str, Check]) -> str:
    """Return what is wrong with the values of a table; nothing if all known keys are as they should be."""
    if not isinstance(table, dict):
        return "it has no tables"
    wrong = next((key for key, check in checks.items() if key in table and not check(table[key])), None)
    return "" if wrong is None else f"the value of '{wrong}' can't be used"


def usable_line(line: Any) -> bool:
    """Return whether a line of the ledger has values of the right types, and names no file outside of the folder."""
    if _problem(line, _LINE):
        return False
    names = [PurePosixPath(line[key]) for key in ("unit", "file") if key in line]
    return not any(name.is_absolute() or ".." in name.parts for name in names)
