"""Metrics of every group with bootstrap intervals, computed once for all reports."""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from poise import metrics as rows
from poise.errors import InvalidOptionError
from poise.metrics import Bins, Estimate, equal_width, estimate
from poise.report.runs import Group, Records, Setting


@dataclass(frozen=True)
class Scored:
    """All metrics of one group."""

    group: Group
    scores: Mapping[str, Estimate]
    bins: Bins  # of all seeds together


@dataclass(frozen=True)
class Scoreboard:
    """The scores of all groups, found by setting, dataset and method."""

    records: Records
    entries: Mapping[tuple[Setting, str, str], Scored]
    resamples: int

    @property
    def metrics(self) -> list[str]:
        """The metrics that at least one group has, in the order of their rows."""
        return [name for name in rows.names() if any(name in entry.scores for entry in self.entries.values())]

    def find(self, setting: Setting, dataset: str, method: str) -> Scored | None:
        """The group's scores, if it was run."""
        return self.entries.get((setting, dataset, method))

    def score(self, setting: Setting, dataset: str, method: str, metric: str) -> Estimate | None:
        """One metric, if the group was run and keeps what the metric needs."""
        found = self.find(setting, dataset, method)
        return found.scores.get(metric) if found else None

    def average(self, setting: Setting, datasets: Sequence[str], method: str, metric: str) -> Estimate | None:
        """The plain mean over ``datasets``; None unless all of them are there."""
        found = [self.score(setting, dataset, method, metric) for dataset in datasets]
        there = [score for score in found if score is not None]
        return Estimate.mean(there) if there and len(there) == len(found) else None

    def images(self, setting: Setting, dataset: str, method: str) -> tuple[str, ...]:
        """The ids of a group's images, none where it was not run; differences are paired where these are equal."""
        found = self.find(setting, dataset, method)
        return next(iter(found.group.seeds.values())).ids if found else ()


def scoreboard(records: Records, *, metrics: Iterable[str] | None = None, resamples: int = 1000) -> Scoreboard:
    """Score every group. Methods on one dataset are resampled alike, datasets independently of each other."""
    wanted = [rows.get(name) for name in (rows.names() if metrics is None else metrics)]
    if resamples < 1:
        raise InvalidOptionError(f"resamples = {resamples} was given.", hint="It is a whole number of at least 1.")
    entries = {}
    for group in records.groups:
        samples = group.samples()
        names = [metric.name for metric in wanted if metric.available(samples[0])]
        scores = estimate(samples, names=names, resamples=resamples, seed=zlib.crc32(group.dataset.encode()))
        bins = equal_width(group.pooled["confidence"], group.pooled["correct"])
        entries[group.setting, group.dataset, group.method] = Scored(group, scores, bins)
    return Scoreboard(records, entries, resamples)


def shown(metric: str, value: float) -> float:
    """The value as reports print it: percent, nats, or as it is."""
    return 100 * value if rows.get(metric).unit == "percent" else value


def printed(metric: str, value: float, sign: str = "") -> str:
    """A fraction as tables show it; the last bits of a mean don't decide a rounding.

    >>> printed("ece", 0.4562499999999999) == printed("ece", 0.45625)
    True
    """
    return f"{round(shown(metric, value), 9):{sign}.{rows.get(metric).digits}f}"


def unit(metric: str) -> str:
    """The unit as reports write it: "%", "nats" or nothing."""
    return {"percent": "%", "nats": "nats", "score": ""}[rows.get(metric).unit]
