"""Checks configuration files of models against known keys, types and bounds.

A model's folder may come from anyone, so its files are hostile input: only values that passed a schema reach open_clip,
timm and transformers. The known keys are listed in `known_keys.py`.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

from poise.errors import InvalidCheckpointError


@dataclass(frozen=True)
class Value:
    """The accepted values of one key."""

    accepted: str  # in words, for the error message
    fits: Callable[[Any], bool]


@dataclass(frozen=True)
class Section:
    """An object with known keys."""

    known: Mapping[str, Value | Section]
    required: Sequence[str] = ()
    refused: Mapping[str, str] = field(default_factory=dict)  # key -> why it is refused by name
    drop_others: bool = False  # whether unknown keys are left out; otherwise they are refused


def integer(low: int, high: int) -> Value:
    """Accept whole numbers from ``low`` to ``high``."""
    return Value(f"a whole number from {low} to {high}", lambda value: type(value) is int and low <= value <= high)


def number(low: float, high: float) -> Value:
    """Accept finite numbers from ``low`` to ``high``."""
    return Value(
        f"a number from {low:g} to {high:g}",
        lambda value: type(value) in (int, float) and math.isfinite(value) and low <= value <= high,
    )


def choice(*values: object) -> Value:
    """Accept one of ``values``, of the same type (true is not 1)."""
    return Value(
        f"one of {', '.join(map(repr, values))}",
        lambda value: any(type(value) is type(option) and value == option for option in values),
    )


def text(pattern: str = r"[^\x00-\x1f]{0,200}", accepted: str = "a text of at most 200 characters") -> Value:
    """Accept strings that match ``pattern`` as a whole."""
    return Value(accepted, lambda value: isinstance(value, str) and re.fullmatch(pattern, value) is not None)


def items(each: Value | Section, low: int, high: int) -> Value:
    """Accept lists of ``low`` to ``high`` values."""
    words = each.accepted if isinstance(each, Value) else "an object"
    return Value(
        f"a list of {low} to {high}, each {words}",
        lambda value: (
            isinstance(value, list) and low <= len(value) <= high and all(_fits(each, part) for part in value)
        ),
    )


def mapping(names: Value, each: Value | Section, high: int) -> Value:
    """Accept objects with at most ``high`` keys of the user's choice."""
    return Value(
        f"an object with at most {high} entries",
        lambda value: (
            isinstance(value, dict)
            and len(value) <= high
            and all(names.fits(key) and _fits(each, part) for key, part in value.items())
        ),
    )


def either(*values: Value | Section) -> Value:
    """Accept what one of ``values`` accepts."""
    words = [value.accepted if isinstance(value, Value) else "an object of known keys" for value in values]
    return Value(" or ".join(words), lambda value: any(_fits(option, value) for option in values))


FLAG = Value("true or false", lambda value: type(value) is bool)
NULL = Value("null", lambda value: value is None)


def read(section: Section, config: object, file: Path | str, prefix: str = "") -> dict[str, Any]:
    """Return the known keys of ``config``; errors name the file, the key, its value and what is accepted."""
    if not isinstance(config, dict):
        _refuse(file, prefix.rstrip(".") or "the content", config, "an object {...}")
    for key in section.required:
        if config.get(key) is None:
            raise InvalidCheckpointError(
                f"'{file}' has no '{prefix}{key}'.", hint=f"Needed: {', '.join(section.required)}."
            )
    result = {}
    for key, value in config.items():
        if key in section.refused and value not in (None, False, ""):
            raise InvalidCheckpointError(
                f"'{file}': {prefix}{_short(key)} is {_short(value)}, which is refused.", hint=section.refused[key]
            )
        kind = section.known.get(key)
        if isinstance(kind, Section) and value is None:
            continue  # as if it were absent
        if isinstance(kind, Section):
            result[key] = read(kind, value, file, f"{prefix}{key}.")
        elif kind is not None:
            if not kind.fits(value):
                _refuse(file, f"{prefix}{key}", value, kind.accepted)
            result[key] = value
        elif not section.drop_others and key not in section.refused:
            known = ", ".join(sorted({*section.known} - {*section.refused}))
            raise InvalidCheckpointError(f"'{file}': unknown key {prefix}{_short(key)}.", hint=f"Known: {known}.")
    return result


def _fits(kind: Value | Section, value: object) -> bool:
    if isinstance(kind, Value):
        return kind.fits(value)
    try:
        return len(read(kind, value, "")) == len(value)  # type: ignore[arg-type]
    except InvalidCheckpointError:
        return False


def _refuse(file: Path | str, key: str, value: object, accepted: str) -> NoReturn:
    raise InvalidCheckpointError(f"'{file}': {key} is {_short(value)}.", hint=f"Accepted: {accepted}.")


def _short(value: object) -> str:
    if isinstance(value, int) and abs(value) > 10**30:  # Python refuses to print very long numbers
        return "a number of more than 30 digits"
    shown = repr(value) if not isinstance(value, dict | list) else f"{type(value).__name__} of {len(value)} entries"
    return shown if len(shown) <= 80 else f"{shown[:77]}..."
