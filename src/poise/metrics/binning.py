"""Confidence bins: equal width with the edge rule of the published code, and equal mass.

Equal-width bins are (lower, upper]. Confidence exactly 0 goes into the first bin, where the published code drops it;
confidence 1 is in the last. Most edges are not exact in float32, so a confidence that is an edge rounded to float32
counts as being on that edge: float32(0.05) belongs to (0, 0.05] although it is larger than 0.05.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from poise.metrics.sample import Floats, Ints, checked_count, checked_top


@dataclass(frozen=True)
class Bins:
    """Predictions by confidence bin; ``accuracy`` and ``confidence`` are NaN where a bin is empty."""

    lower: Floats  #: [K]
    upper: Floats  #: [K]
    count: Ints  #: [K]
    accuracy: Floats  #: [K]
    confidence: Floats  #: [K] mean confidence

    def __len__(self) -> int:
        return len(self.count)

    @property
    def gap(self) -> Floats:
        """[K] accuracy - confidence: negative where the bin is overconfident, 0 where it is empty."""
        return np.where(self.count > 0, np.nan_to_num(self.accuracy) - np.nan_to_num(self.confidence), 0.0)

    @property
    def expected_gap(self) -> float:
        """Mean absolute gap over images."""
        return float((np.abs(self.gap) * self.count).sum() / self.count.sum())

    @property
    def largest_gap(self) -> float:
        """Largest absolute gap of a bin that is not empty."""
        return float(np.abs(self.gap).max())


def edges(bins: int = 20) -> Floats:
    """[bins + 1] edges from 0 to 1.

    >>> edges(4).tolist()
    [0.0, 0.25, 0.5, 0.75, 1.0]
    """
    count = checked_count("bins", bins)
    # k / n and linspace differ in the last bit for some k; the larger one lets both be on the edge
    return np.maximum(np.arange(count + 1) / count, np.linspace(0.0, 1.0, count + 1))


def published_edges(bins: int) -> Floats:
    """[bins + 1] edges of the published code, in float32.

    With s = float32(1 / bins), they are k s below the middle and 1 - (bins - k) s above, rounded to float32 once.
    On a CPU torch.linspace gives these numbers with AVX2 or AVX-512, which fuse multiplication and addition; without
    them it rounds twice, and some edges differ in the last bit. Float64 holds every k s and 1 - (bins - k) s exactly,
    so this definition is the same on every machine. The 9th of 20 edges is above float32(0.45).
    """
    k, step = np.arange(bins + 1), np.float64(np.float32(1.0 / bins))
    return np.where(k < (bins + 1) // 2, step * k, 1.0 - step * (bins - k)).astype(np.float32).astype(np.float64)


def assign(confidence: ArrayLike, bins: int = 20) -> Ints:
    """Return the equal-width bin of each confidence, any shape.

    >>> assign([0.0, 0.05, 0.051, 1.0]).tolist()
    [0, 0, 1, 19]
    """
    values = np.asarray(confidence, dtype=np.float64)
    upper = edges(bins)
    index = np.clip(np.searchsorted(upper, values, side="left") - 1, 0, bins - 1)
    nearest, published = upper.astype(np.float32).astype(np.float64), published_edges(bins)
    on_lower_edge = (values == nearest[index]) | (values == published[index])
    return np.asarray(index - (on_lower_edge & (index > 0)), dtype=np.int64)


def equal_width(confidence: ArrayLike, correct: ArrayLike, bins: int = 20) -> Bins:
    """Sort predictions into ``bins`` bins of equal width, some of which may be empty.

    Args:
        confidence: probability of each prediction [N].
        correct: whether each prediction is correct [N].
        bins: number of bins.
    """
    values, hits = checked_top(confidence, correct)
    limits = edges(bins)
    return _collect(assign(values, bins), values, hits.astype(np.float64), limits[:-1], limits[1:])


def equal_mass(confidence: ArrayLike, correct: ArrayLike, bins: int = 20) -> Bins:
    """Sort predictions into at most ``bins`` bins of about N / bins images each, as FPP's published code does.

    The edges are order statistics. Equal confidences stay together, so ties give fewer bins. Bins are (lower, upper]
    except the first, which includes its lower edge. If all confidences are equal there is one bin; the published code
    then reports an error of 0 whatever the accuracy.

    Args:
        confidence: probability of each prediction [N].
        correct: whether each prediction is correct [N].
        bins: number of bins.
    """
    values, hits = checked_top(confidence, correct)
    limits = np.unique(np.sort(values)[mass_positions(len(values), bins)])
    upper = limits[1:] if len(limits) > 1 else limits
    lower = limits[:-1] if len(limits) > 1 else limits
    return _collect(np.searchsorted(upper, values, side="left"), values, hits.astype(np.float64), lower, upper)


def mass_positions(count: int, bins: int = 20) -> Ints:
    """[bins + 1] ranks, from 0, of the order statistics that serve as edges; rounded in float32 as published."""
    fractions = published_edges(checked_count("bins", bins)).astype(np.float32)
    return np.rint(fractions * np.float32(count - 1)).astype(np.int64)


def _collect(index: Ints, values: Floats, hits: Floats, lower: Floats, upper: Floats) -> Bins:
    size = len(upper)
    count = np.bincount(index, minlength=size)
    with np.errstate(invalid="ignore"):
        accuracy = np.bincount(index, weights=hits, minlength=size) / count
        confidence = np.bincount(index, weights=values, minlength=size) / count
    return Bins(lower, upper, count.astype(np.int64), accuracy, confidence)
