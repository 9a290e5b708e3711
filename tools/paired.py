"""Accuracy and ECE with paired bootstrap intervals, and their tables in Markdown.

All scores over the same images are drawn on the same resamples, so the difference of two has an interval of its own,
which the two intervals don't tell.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from poise.metrics import ece
from poise.metrics.bootstrap import bounds, ece_of, mean_of, replicate

RESAMPLES = 2000


@dataclass(frozen=True)
class Score:
    """A number and its values on the resamples."""

    value: float
    draws: np.ndarray  # [RESAMPLES]

    @property
    def bounds(self) -> tuple[float, float]:
        """95 %, over images."""
        return bounds(self.value, self.draws)

    def within(self, least: float, most: float) -> tuple[float, float]:
        """The bounds where they can be."""
        low, high = self.bounds
        return max(low, least), min(high, most)

    def __sub__(self, other: Score) -> Score:
        return Score(self.value - other.value, self.draws - other.draws)


Scores = dict[str, Score]  # accuracy and ECE in percent


def scores(probs: np.ndarray, labels: np.ndarray) -> Scores:
    """Of the answers [N, C] to images with classes [N]."""
    right, sure = probs.argmax(1) == labels, probs.max(1)
    drawn = replicate({"accuracy": mean_of(right), "ECE": ece_of(sure, right)}, len(labels), RESAMPLES)
    values = {"accuracy": float(right.mean()), "ECE": ece(sure, right)}
    return {name: Score(100 * value, 100 * drawn[name]) for name, value in values.items()}


def mean(several: Sequence[Scores]) -> Scores:
    """The mean of runs over the same images, such as seeds."""
    return {
        name: Score(
            float(np.mean([each[name].value for each in several])),
            np.mean([each[name].draws for each in several], axis=0),
        )
        for name in several[0]
    }


@dataclass(frozen=True)
class Row:
    """Scores, and those of what they are compared with."""

    name: str
    own: Scores
    against: Scores | None = None

    def cells(self) -> list[str]:
        """Each metric with its interval, then each difference with its own; * where that doesn't hold 0."""
        told = [_shown(score, score.within(0, 100), "") for score in self.own.values()]
        if self.against is None:
            return [*told, *("" for _ in self.own)]
        changes = [score - self.against[name] for name, score in self.own.items()]
        return [*told, *(_shown(change, change.bounds, "+") for change in changes)]

    def record(self) -> dict[str, object]:
        """The same as numbers."""
        found: dict[str, object] = {"name": self.name}
        for name, score in self.own.items():
            found[name] = [score.value, *score.within(0, 100)]
            if self.against is not None:
                change = score - self.against[name]
                found[f"{name} difference"] = [change.value, *change.bounds]
        return found


def _shown(score: Score, bounds: tuple[float, float], sign: str) -> str:
    low, high = (round(bound, 2) for bound in bounds)  # what isn't seen isn't marked
    clear = "*" if sign and (low > 0 or high < 0) else ""
    return f"{score.value:{sign}.2f}{clear} [{low:{sign}.2f}, {high:{sign}.2f}]"


class Report:
    """What is told: printed at once, kept as Markdown in one file and as numbers in another."""

    def __init__(self, markdown: Path | None, records: Path) -> None:
        self.markdown, self.records, self._lines = markdown, records, list[str]()

    def say(self, *lines: str) -> None:
        """Lines of Markdown. The file is written anew each time, so that what is done is never lost."""
        print("\n".join(lines), flush=True)
        self._lines += lines
        if self.markdown is not None:
            self.markdown.parent.mkdir(parents=True, exist_ok=True)
            self.markdown.write_text("\n".join([*self._lines, ""]), encoding="utf-8")

    def table(self, title: str, difference: str, rows: Sequence[Row], facts: dict[str, object]) -> None:
        """Accuracy and ECE of each row, and its ``difference`` where it has one."""
        heads = ["accuracy", "ECE", f"accuracy, {difference}", f"ECE, {difference}"]
        body = [f"| {row.name} | {' | '.join(row.cells())} |" for row in rows]
        self.say("", f"### {title}", "", f"| | {' | '.join(heads)} |", f"|---|{'--:|' * len(heads)}", *body, "")
        self.say(
            f"In percent; 95 % intervals over images, {RESAMPLES} resamples, paired; * the interval does not hold 0."
        )
        with self.records.open("a", encoding="utf-8") as file:
            file.write(json.dumps({"title": title, "facts": facts, "rows": [row.record() for row in rows]}) + "\n")
