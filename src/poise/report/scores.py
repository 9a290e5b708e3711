"""Metrics of every group with bootstrap intervals, computed once for all reports."""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from poise.errors import InvalidOptionError, UnknownNameError
from poise.metrics import NAMES, Bins, Interval, draws_over_seeds, equal_width
from poise.metrics.bootstrap import interval
from poise.report.runs import Group, Records, Setting

TITLES = {
    "accuracy": "Acc.", "top5": "Top-5", "ece": "ECE", "sce": "SCE", "aece": "AECE", "mce": "MCE", "nll": "NLL",
    "brier": "Brier", "aurc": "AURC",
}  # fmt: skip
HIGHER_IS_BETTER = frozenset({"accuracy", "top5"})
IN_PERCENT = frozenset({"accuracy", "top5", "ece", "sce", "aece", "mce", "aurc"})  # NLL is in nats, Brier in 0..2


@dataclass(frozen=True)
class Score:
    """One metric of one group, or of an average over datasets: the mean over seeds."""

    value: float
    draws: np.ndarray  # [R] the same mean on each resample of the images

    @property
    def interval(self) -> Interval:
        """With its 95 % percentile interval."""
        return interval(self.value, self.draws)


@dataclass(frozen=True)
class Scored:
    """All metrics of one group."""

    group: Group
    scores: Mapping[str, Score]
    bins: Bins  # of all seeds together


@dataclass(frozen=True)
class Scoreboard:
    """The scores of all groups, found by setting, dataset and method."""

    records: Records
    entries: Mapping[tuple[Setting, str, str], Scored]
    resamples: int

    def find(self, setting: Setting, dataset: str, method: str) -> Scored | None:
        """The group's scores, if it was run."""
        return self.entries.get((setting, dataset, method))

    def score(self, setting: Setting, dataset: str, method: str, metric: str) -> Score | None:
        """One metric, if the group was run and keeps what the metric needs."""
        found = self.find(setting, dataset, method)
        return found.scores.get(metric) if found else None

    def average(self, setting: Setting, datasets: Sequence[str], method: str, metric: str) -> Score | None:
        """The plain mean over ``datasets``; None unless all of them are there."""
        found = [self.score(setting, dataset, method, metric) for dataset in datasets]
        there = [score for score in found if score is not None]
        if not there or len(there) < len(found):
            return None
        return Score(
            float(np.mean([score.value for score in there])), np.mean([score.draws for score in there], axis=0)
        )


def scoreboard(records: Records, *, metrics: Iterable[str] | None = None, resamples: int = 1000) -> Scoreboard:
    """Score every group. Methods on one dataset are resampled alike, datasets independently of each other."""
    wanted = tuple(metrics) if metrics is not None else NAMES
    for name in wanted:
        if name not in NAMES:
            raise UnknownNameError.of("metric", name, NAMES)
    if resamples < 1:
        raise InvalidOptionError(f"resamples = {resamples} was given.", hint="It is a whole number of at least 1.")
    entries = {}
    for group in records.groups:
        samples = group.samples()
        names = [name for name in wanted if name in samples[0].available()]
        seed = zlib.crc32(group.dataset.encode())
        drawn = draws_over_seeds(samples, names=names, resamples=resamples, seed=seed)
        scores = {name: Score(value, draws) for name, (value, draws) in drawn.items()}
        bins = equal_width(group.pooled["confidence"], group.pooled["correct"])
        entries[group.setting, group.dataset, group.method] = Scored(group, scores, bins)
    return Scoreboard(records, entries, resamples)


def shown(metric: str, value: float) -> float:
    """The value as reports print it: percent, nats, or as it is."""
    return 100 * value if metric in IN_PERCENT else value
