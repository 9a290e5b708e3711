"""One method against others on the same images: paired differences with bootstrap intervals.

Intervals of two methods may overlap although one is better on nearly every resample: the images are the same, so their
scores move together. The difference on each resample says what the two intervals can't.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from poise.errors import UnknownName
from poise.report.records import load
from poise.report.scores import IN_PERCENT, TITLES, Score, scoreboard, shown


@dataclass(frozen=True)
class Difference:
    """A metric of one method less that of another, on one dataset or averaged over all of them."""

    setting: str
    dataset: str
    against: str
    metric: str
    score: Score

    @property
    def bounds(self) -> tuple[float, float]:
        """95 %: the middle of the resampled differences, moved to the value (see `poise.metrics.bootstrap`)."""
        moved = self.score.draws - self.score.draws.mean() + self.score.value
        low, high = np.quantile(moved, [0.025, 0.975])
        return float(low), float(high)


def differences(
    runs: str | Path, method: str, against: Sequence[str], metrics: Sequence[str], resamples: int = 1000
) -> list[Difference]:
    """``method`` less each of ``against``, for every setting and dataset in which both were run, and their average."""
    records = load(runs)
    for name in (method, *against):
        if name not in records.methods:
            raise UnknownName.of("method in these runs", name, records.methods)
    board = scoreboard(records, metrics=metrics, resamples=resamples)
    found = []
    for setting in records.settings:
        label = records.label(setting)
        for other in against:
            both = [
                name for name in records.datasets if all(board.find(setting, name, each) for each in (method, other))
            ]
            columns = {name: [name] for name in both} | ({"average": both} if len(both) > 1 else {})
            for metric in metrics:
                for title, names in columns.items():
                    ours, theirs = (board.average(setting, names, each, metric) for each in (method, other))
                    if ours and theirs:
                        score = Score(ours.value - theirs.value, ours.draws - theirs.draws)
                        found.append(Difference(label, title, other, metric, score))
    return found


def comparison_text(
    runs: str | Path, method: str, against: Sequence[str], metrics: Sequence[str], resamples: int = 1000
) -> str:
    """The differences as a Markdown table; an interval that doesn't hold 0 is marked with *."""
    lines = ["| Setting | Dataset | Against | Metric | Difference | 95 % interval |", "|---|---|---|---|---:|---|"]
    for each in differences(runs, method, against, metrics, resamples):
        low, high = (shown(each.metric, bound) for bound in each.bounds)
        value = shown(each.metric, each.score.value)
        clear = "*" if low > 0 or high < 0 else ""
        unit = " points" if each.metric in IN_PERCENT else ""
        lines.append(
            f"| {each.setting} | {each.dataset} | {each.against} | {TITLES[each.metric]} "
            f"| {value:+.2f}{clear} | [{low:+.2f}, {high:+.2f}]{unit} |"
        )
    note = f"{method} less the other, same images and resamples; * the interval does not hold 0."
    return "\n".join([*lines, "", note, ""])
