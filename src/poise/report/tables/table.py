"""A table as data: every command that prints one makes this object, and every format renders it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeVar

Tone = Literal["", "good", "doubtful", "bad"]
Item = TypeVar("Item")


@dataclass(frozen=True)
class Cell:
    """One entry: its text, and smaller text beside it."""

    text: str
    extra: str = ""  # standard deviation, interval
    best: bool = False
    tone: Tone = ""  # its colour on a terminal

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
    more_texts: frozenset[int] = frozenset()  # further columns with text
    dispensable: tuple[int, ...] = ()  # columns that a narrow terminal leaves out, in this order

    def is_text(self, column: int) -> bool:
        """Return whether a column has text, which is aligned left."""
        return column < self.texts or column in self.more_texts

    def without(self, column: int) -> Table:
        """Return the table without a column."""
        return replace(
            self,
            columns=_without(self.columns, column),
            lines=tuple(replace(line, cells=_without(line.cells, column)) for line in self.lines),
            texts=self.texts - (column < self.texts),
            more_texts=frozenset(at - (at > column) for at in self.more_texts if at != column),
            dispensable=tuple(at - (at > column) for at in self.dispensable if at != column),
        )


def _without(items: tuple[Item, ...], at: int) -> tuple[Item, ...]:
    return items[:at] + items[at + 1 :]
