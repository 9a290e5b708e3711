"""Percentile bootstrap intervals for every metric, by resampling images.

A resample is a vector of counts, so each metric is written once more as a function of counts [R, N]; sorting and
binning are done once for all resamples. One seed gives one sequence of resamples: two prediction sets over the same
images in the same order are resampled alike, which is what a mean over seeds or a paired difference needs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from poise.errors import InvalidOptionError
from poise.metrics.binning import assign, mass_positions
from poise.metrics.checks import Bools, Floats, Ints, checked_count

BLOCK = 2_000_000  # counts held at once
Weighted = Callable[[Floats], Floats]  # [R, N] counts -> [R] values


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
    """The `bounds` of a metric: none here is below 0, and neither is its interval."""
    low, high = bounds(value, replicates, level)
    return Interval(value, max(low, 0.0), min(high, max(float(replicates.max()), value)), level)


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


def mean_of(each: Floats | Bools) -> Weighted:
    """The mean of a value per image: accuracy, top-5, NLL, Brier."""
    column = np.asarray(each, dtype=np.float64)
    return lambda counts: np.asarray(counts @ column / len(column))


def ece_of(confidence: Floats, correct: Bools, bins: int = 20) -> Weighted:
    """ECE: the residual correct - confidence is summed in each bin, so the bin counts cancel."""
    table = _spread(assign(confidence, bins), correct - confidence, bins)
    return lambda counts: np.asarray(np.abs(counts @ table).sum(1) / len(confidence))


def mce_of(confidence: Floats, correct: Bools, bins: int = 20) -> Weighted:
    """MCE over the bins that are not empty in the resample."""
    index = assign(confidence, bins)
    table = np.hstack([_spread(index, correct - confidence, bins), _spread(index, np.ones(len(index)), bins)])

    def weighted(counts: Floats) -> Floats:
        both = counts @ table  # [R, 2K]
        return np.asarray((np.abs(both[:, :bins]) / np.maximum(both[:, bins:], 1)).max(1))

    return weighted


def adaptive_ece_of(confidence: Floats, correct: Bools, bins: int = 20) -> Weighted:
    """Adaptive ECE with the bins laid anew on each resample."""
    order = np.argsort(confidence, kind="stable")
    ranked, residual = confidence[order], (correct - confidence)[order]
    last = np.searchsorted(ranked, ranked, side="right") - 1  # the end of each tie
    ranks = mass_positions(len(ranked), bins)[1:]

    def weighted(counts: Floats) -> Floats:
        drawn = counts[:, order]
        reached, running = np.cumsum(drawn, axis=1), np.cumsum(drawn * residual, axis=1)
        ends = np.stack([last[np.searchsorted(row, ranks, side="right")] for row in reached])  # [R, K]
        sums = np.diff(np.take_along_axis(running, ends, axis=1), axis=1, prepend=0.0)
        return np.asarray(np.abs(sums).sum(1) / len(ranked))

    return weighted


def sce_of(probs: Floats, labels: Ints, bins: int = 20) -> Weighted:
    """SCE. Few entries leave the first bin, so only those are binned; the first bin is the class's total less them."""
    images, classes = probs.shape
    residual = -probs
    residual[np.arange(images), labels] += 1.0
    index = assign(probs, bins)
    row, column = np.nonzero(index)
    cell, value = column * bins + index[row, column], residual[row, column]

    def weighted(counts: Floats) -> Floats:
        totals = counts @ residual  # [R, C]
        result = np.empty(len(counts))
        for at, drawn in enumerate(counts):
            sums = np.bincount(cell, weights=value * drawn[row], minlength=classes * bins).reshape(classes, bins)
            result[at] = np.abs(sums).sum() + np.abs(totals[at] - sums.sum(1)).sum()
        return result / (images * classes)

    return weighted


def aurc_of(confidence: Floats, correct: Bools) -> Weighted:
    """AURC under the tie rule of :mod:`poise.metrics.selective`; a tie's sum over its places is a harmonic number."""
    levels, group = np.unique(-confidence, return_inverse=True)
    images = len(confidence)
    harmonic = np.concatenate([[0.0], np.cumsum(1.0 / np.arange(1, images + 1))])
    order = np.argsort(group, kind="stable")
    starts = np.searchsorted(group[order], np.arange(len(levels)))
    missed = (~correct)[order]

    def weighted(counts: Floats) -> Floats:
        drawn = counts[:, order]
        size = np.add.reduceat(drawn, starts, axis=1)  # [R, G]
        wrong = np.add.reduceat(drawn * missed, starts, axis=1)
        after = np.cumsum(size, axis=1)
        before, wrong_before = after - size, np.cumsum(wrong, axis=1) - wrong
        share = harmonic[after.astype(np.int64)] - harmonic[before.astype(np.int64)]  # Σ 1 / (answered so far)
        rate = wrong / np.maximum(size, 1)
        return np.asarray((wrong_before * share + rate * (size - before * share)).sum(1) / images)

    return weighted


def _spread(index: Ints, value: Floats, bins: int) -> Floats:
    """[N, bins] with ``value`` in the column of each image's bin."""
    table = np.zeros((len(index), bins))
    table[np.arange(len(index)), index] = value
    return table
