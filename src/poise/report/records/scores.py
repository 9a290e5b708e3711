"""Metrics of every group with bootstrap intervals, computed once for all reports."""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from poise import metrics as rows
from poise.metrics import Estimate, estimate
from poise.metrics.gap import combined_p
from poise.report.records.groups import Group, Setting
from poise.report.records.runs import Records


@dataclass(frozen=True)
class Scored:
    """A group and its metrics."""

    group: Group
    scores: Mapping[str, Estimate]
    undefined: tuple[str, ...] = ()  # metrics that apply but have no value, as under some seed nothing is answered
    p_values: Mapping[str, float] = field(default_factory=dict)  # of the metrics that have one


@dataclass(frozen=True)
class Scoreboard:
    """The scores of all groups, by setting, dataset and method."""

    records: Records
    entries: Mapping[tuple[Setting, str, str], Scored]
    resamples: int

    @property
    def metrics(self) -> list[str]:
        """The metrics that at least one group has, in the order of their rows."""
        return [name for name in rows.names() if any(name in entry.scores for entry in self.entries.values())]

    def average(self, setting: Setting, datasets: Sequence[str], method: str, metric: str) -> Estimate | None:
        """Return the mean over ``datasets``; None if a dataset was not run or its records lack what is needed."""
        entries = [self.entries.get((setting, dataset, method)) for dataset in datasets]
        scores = [entry.scores[metric] for entry in entries if entry is not None and metric in entry.scores]
        return Estimate.mean(scores) if scores and len(scores) == len(datasets) else None

    def floor(self, setting: Setting, datasets: Sequence[str], method: str, metric: str) -> Estimate | None:
        """Return the `average` of the metric's floor; None where it has none."""
        floor = rows.get(metric).floor
        return self.average(setting, datasets, method, floor) if floor else None

    def p_value(self, setting: Setting, datasets: Sequence[str], method: str, metric: str) -> float | None:
        """Return the metric's p-value on one dataset; None for an average, or where the metric has none."""
        entry = self.entries.get((setting, datasets[0], method)) if len(datasets) == 1 else None
        return entry.p_values.get(metric) if entry else None

    def images(self, setting: Setting, dataset: str, method: str) -> tuple[str, ...]:
        """Return the ids of a group's images, none where it was not run; paired differences need equal ids."""
        entry = self.entries.get((setting, dataset, method))
        return entry.group.ids if entry else ()


def scoreboard(records: Records, *, metrics: Iterable[str] | None = None, resamples: int = 1000) -> Scoreboard:
    """Score every group, with the floors of the metrics. Methods on one dataset are resampled alike, datasets not."""
    chosen = [rows.get(name) for name in (rows.names() if metrics is None else metrics)]
    floors = dict.fromkeys(row.floor for row in chosen if row.floor)
    chosen += [rows.get(name) for name in floors if name not in [row.name for row in chosen]]
    entries = {}
    for group in records.groups:
        samples = group.samples()
        applying = [metric for metric in chosen if metric.applies(samples[0])]
        names = [metric.name for metric in applying if all(map(metric.available, samples))]
        undefined = tuple(metric.name for metric in applying if metric.name not in names)
        scores = estimate(samples, names=names, resamples=resamples, seed=zlib.crc32(group.dataset.encode()))
        p_values = {
            metric.name: combined_p([metric.p_value(sample) for sample in samples])
            for metric in applying
            if metric.p_value is not None and metric.name in names
        }
        entries[group.setting, group.dataset, group.method] = Scored(group, scores, undefined, p_values)
    return Scoreboard(records, entries, resamples)


def shown(metric: str, value: float) -> float:
    """Return the value in the unit in which reports print it: percent, nats, or unchanged."""
    return 100 * value if rows.get(metric).unit == "percent" else value


def floor_text(metric: str, floors: Sequence[Estimate | None]) -> str:
    """Return the largest of a metric's ``floors`` as figures print it; "" where there is none."""
    known = [floor.value for floor in floors if floor is not None]
    return f"floor {printed(metric, max(known))}" if known else ""


def printed(metric: str, value: float, sign: str = "") -> str:
    """Return the value as tables print it, with a ``sign`` if asked; rounding does not depend on a mean's last bits.

    >>> printed("ece", 0.4562499999999999) == printed("ece", 0.45625)
    True
    """
    return f"{round(shown(metric, value), 9):{sign}.{rows.get(metric).digits}f}"
