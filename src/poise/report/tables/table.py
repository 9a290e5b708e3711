"""A table as data: every command that prints one makes this object, and every format renders it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Cell:
    """One entry: its text, and smaller text beside it."""

    text: str
    extra: str = ""  # standard deviation, interval
    best: bool = False

    def __str__(self) -> str:
        return f"{self.text} {self.extra}".rstrip()


@dataclass(frozen=True)
class Line:
    """One row of cells."""

    cells: tuple[Cell, ...]
    section: str = ""  # a rule separates lines of different sections
    quiet: bool = False  # published numbers, shown for comparison

    @classmethod
    def of(cls, *texts: str, section: str = "") -> Line:
        """Return a line of plain texts."""
        return cls(tuple(map(Cell, texts)), section)


@dataclass(frozen=True)
class Table:
    """A table: texts for people in ``lines``, numbers for programs in ``records``."""

    title: str
    columns: tuple[str, ...]
    lines: tuple[Line, ...]
    notes: tuple[str, ...] = ()
    texts: int = 2  # number of leading columns with text, aligned left; the others have numbers
    records: tuple[Mapping[str, Any], ...] = ()  # one per row of CSV and JSON
