"""Metrics under one seed or several, with percentile bootstrap intervals over images.

A resample is a vector of counts, and each metric has a weighted form, a function of counts [R, N]; sorting and binning
are done once for all resamples. One seed gives one sequence of resamples: two prediction sets over the same images in
the same order are resampled alike, which is what a mean over seeds or a paired difference needs.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from poise.errors import InvalidOptionError
from poise.metrics import rows
from poise.metrics.sample import Floats, Sample, checked_count
from poise.metrics.shares import wilson_interval

BLOCK = 2_000_000  # counts in memory at a time
LEVEL = 0.95
ROUNDING = 1e-8  # smaller differences come from rounding


class Interval(NamedTuple):
    """A value and its 95 % percentile interval."""

    value: float
    low: float
    high: float


def bounds(value: float, replicates: Floats) -> tuple[float, float]:
    """Return the middle 95 % of ``replicates`` [R], moved so that their mean is ``value``.

    A binned calibration error grows when images are drawn twice, so its resamples lie above the value on average (for
    accuracy, NLL and Brier the move is next to nothing). Where few resamples are far from the others, the moved middle
    may miss ``value``; it is then extended to ``value``. A difference whose bounds exclude 0 is on the same side of 0.
    """
    low, high = np.quantile(replicates, [(1 - LEVEL) / 2, (1 + LEVEL) / 2]) + (value - replicates.mean())
    return min(float(low), value), max(float(high), value)


def interval(value: float, replicates: Floats) -> Interval:
    """Return the `bounds` of a metric; where no resample is below 0, neither is the interval."""
    low, high = bounds(value, replicates)
    floor = min(0.0, value, float(replicates.min()))
    return Interval(value, max(low, floor), min(high, max(float(replicates.max()), value)))


@dataclass(frozen=True)
class Estimate:
    """A metric under several seeds: its value under each, and the mean over seeds on each resample of the images."""

    by_seed: tuple[float, ...]
    draws: Floats  #: [R]
    trials: int | None = None  #: images whose share this is, the same one under every seed; None for all else

    @property
    def value(self) -> float:
        """Mean over seeds."""
        return float(np.mean(self.by_seed))

    @property
    def std(self) -> float | None:
        """Sample standard deviation over seeds; None where there is one seed."""
        return float(np.std(self.by_seed, ddof=1)) if len(self.by_seed) > 1 else None

    @property
    def interval(self) -> Interval:
        """Mean over seeds with its 95 % confidence interval over images: Wilson's for a share, else by bootstrap."""
        if self.trials is not None:
            return Interval(self.value, *wilson_interval(self.value, self.trials, LEVEL))
        return interval(self.value, self.draws)

    @property
    def bounds(self) -> tuple[float, float]:
        """95 % confidence interval of a difference, which may be negative."""
        return bounds(self.value, self.draws)

    @property
    def clear(self) -> bool:
        """Whether the 95 % confidence interval of a difference excludes 0."""
        low, high = self.bounds
        return low > ROUNDING or high < -ROUNDING

    def __sub__(self, other: Estimate) -> Estimate:
        """Paired difference of two estimates over the same images and resamples."""
        return Estimate._combined((self, other), (1.0, -1.0))

    @classmethod
    def mean(cls, parts: Sequence[Estimate]) -> Estimate:
        """Mean over datasets, seed by seed where all have the same number of seeds."""
        return parts[0] if len(parts) == 1 else cls._combined(parts, [1 / len(parts)] * len(parts))

    @classmethod
    def _combined(cls, parts: Sequence[Estimate], weights: Sequence[float]) -> Estimate:
        same = len({len(part.by_seed) for part in parts}) == 1
        values = np.array(weights) @ np.array([part.by_seed if same else (part.value,) for part in parts])
        return cls(tuple(values.tolist()), np.array(weights) @ np.array([part.draws for part in parts]))


def estimate(
    samples: Sequence[Sample], *, names: Iterable[str] | None = None, resamples: int = 1000, seed: int = 0
) -> dict[str, Estimate]:
    """Compute metrics with bootstrap intervals: each one under every seed, and its mean over seeds on each resample.

    Args:
        samples: the same images in the same order, one sample per seed. Each resample draws the same images in every
            sample, so that its spread is that of the mean.
        names: metrics; by default all that every sample allows.
        resamples: number of resamples.
        seed: seed of the resamples; estimates with the same seed over the same images can be subtracted.

    >>> ece = estimate([Sample.of_top([0.9, 0.6], [True, False])], names=["ece"])["ece"]
    >>> round(ece.value, 3)
    0.35
    """
    if len({len(sample) for sample in samples}) != 1:
        raise InvalidOptionError(
            "Samples of different lengths were given.", hint="Give the same images for every seed."
        )
    if names is None:
        names = [name for name in rows.names() if all(rows.get(name).available(sample) for sample in samples)]
    metrics = {name: rows.get(name) for name in names}
    draws: dict[str, list[Floats]] = {name: [] for name in metrics}
    weighted = {name: [metric.on_counts(sample) for sample in samples] for name, metric in metrics.items()}
    differ: set[str] = set()  # metrics that are not the same under all seeds on every resample
    for counts in resampled_counts(len(samples[0]), resamples, seed):
        for name, functions in weighted.items():
            by_seed = np.array([function(counts) for function in functions])
            draws[name].append(by_seed.mean(axis=0))
            if not all(np.array_equal(by_seed[0], values, equal_nan=True) for values in by_seed[1:]):
                differ.add(name)
    return {
        name: Estimate(
            tuple(metric.value(sample) for sample in samples),
            np.concatenate(draws[name]),
            None if name in differ else _trials(metric, samples),
        )
        for name, metric in metrics.items()
    }


def clearly_different(one: Estimate, two: Estimate, floors: tuple[Estimate, Estimate] | None = None) -> bool:
    """Return whether the paired difference of two estimates excludes 0.

    Of a metric with a floor, two perfect predictions differ by the difference of their floors, so that the difference
    without it has to exclude 0 as well, on the same side. (Where errors are large, floors no longer add up to them, so
    that the second condition alone would find differences that are none.)
    """
    difference = one - two
    if floors is None or not difference.clear:
        return difference.clear
    beyond = difference - (floors[0] - floors[1])
    return beyond.clear and (beyond.value > 0) == (difference.value > 0)


def _trials(metric: rows.Metric, samples: Sequence[Sample]) -> int | None:
    counts = {metric.trials(sample) for sample in samples} if metric.trials is not None else set()
    return counts.pop() if len(counts) == 1 else None


def resampled_counts(images: int, number: int = 1000, seed: int = 0) -> Iterator[Floats]:
    """Yield blocks [r, N] of how often each of ``images`` is drawn; ``number`` rows in all, each with the sum N."""
    checked_count("resamples", number)
    generator = np.random.Generator(np.random.Philox(seed))
    rows_at_once = max(1, BLOCK // images)
    for first in range(0, number, rows_at_once):
        drawn = generator.integers(0, images, size=(min(rows_at_once, number - first), images))
        drawn += images * np.arange(len(drawn))[:, None]
        yield np.bincount(drawn.ravel(), minlength=drawn.size).reshape(drawn.shape).astype(np.float64)


def mean_interval(values: ArrayLike) -> Interval:
    """Return the mean of numbers [N] with its bootstrap interval."""
    numbers = np.asarray(values, dtype=np.float64)
    means = np.concatenate([counts @ numbers for counts in resampled_counts(len(numbers))]) / len(numbers)
    low, high = np.quantile(means, [0.025, 0.975])
    return Interval(float(numbers.mean()), float(low), float(high))
