"""Percentile bootstrap intervals for every metric, by resampling images.

A resample is a vector of counts, and each metric has a weighted form, a function of counts [R, N]; sorting and binning
are done once for all resamples. One seed gives one sequence of resamples: two prediction sets over the same images in
the same order are resampled alike, which is what a mean over seeds or a paired difference needs.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from poise.errors import InvalidOptionError
from poise.metrics.checks import Floats, checked_count
from poise.metrics.rows import Weighted

BLOCK = 2_000_000  # counts held at once


@dataclass(frozen=True)
class Interval:
    """A value and the percentile interval around it."""

    value: float
    low: float
    high: float
    level: float = 0.95


def bounds(value: float, replicates: Floats, level: float = 0.95) -> tuple[float, float]:
    """The middle ``level`` of ``replicates`` [R], moved so that their mean is ``value``; for differences, too.

    A binned calibration error grows when images are drawn twice, so its resamples lie above the value on average (for
    accuracy, NLL and Brier the move is next to nothing).
    """
    if not 0 < level < 1:
        raise InvalidOptionError(f"level = {level} was given.", hint="It lies between 0 and 1, such as 0.95.")
    low, high = np.quantile(replicates, [(1 - level) / 2, (1 + level) / 2]) + (value - replicates.mean())
    return float(low), float(high)


def interval(value: float, replicates: Floats, level: float = 0.95) -> Interval:
    """The `bounds` of a metric: where no resample is below 0, neither is the interval."""
    low, high = bounds(value, replicates, level)
    floor = min(0.0, value, float(replicates.min()))
    return Interval(value, max(low, floor), min(high, max(float(replicates.max()), value)), level)


def resamples(count: int, number: int = 1000, seed: int = 0) -> Iterator[Floats]:
    """Blocks [r, N] of how often each of ``count`` images is drawn; ``number`` rows in all, each summing to N."""
    checked_count("resamples", number)
    generator = np.random.Generator(np.random.Philox(seed))
    rows = max(1, BLOCK // count)
    for start in range(0, number, rows):
        drawn = generator.integers(0, count, size=(min(rows, number - start), count))
        drawn += count * np.arange(len(drawn))[:, None]
        yield np.bincount(drawn.ravel(), minlength=drawn.size).reshape(drawn.shape).astype(np.float64)


def replicate(metrics: dict[str, Weighted], count: int, number: int = 1000, seed: int = 0) -> dict[str, Floats]:
    """[R] values of each metric, all on the same resamples."""
    parts: dict[str, list[Floats]] = {name: [] for name in metrics}
    for counts in resamples(count, number, seed):
        for name, metric in metrics.items():
            parts[name].append(metric(counts))
    return {name: np.concatenate(blocks) for name, blocks in parts.items()}
