"""Selective prediction: the risk-coverage curve and the area under it (AURC).

Images are answered from the most to the least confident. Tie rule: images of equal confidence are taken in random
order and the expectation over those orders is reported, so the result does not depend on the order of the rows.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from poise.metrics.checks import Bools, Floats, checked_top
from poise.metrics.rows import Metric, Weighted, register


@dataclass(frozen=True)
class RiskCoverage:
    """Point i: the i + 1 most confident images are answered."""

    coverage: Floats  # [N] (i + 1) / N
    risk: Floats  # [N] the expected fraction of wrong answers among those answered
    threshold: Floats  # [N] the lowest confidence answered

    @property
    def area(self) -> float:
        """The mean risk over all coverages 1/N .. 1."""
        return float(self.risk.mean())


def risk_coverage(confidence: ArrayLike, correct: ArrayLike) -> RiskCoverage:
    """The whole curve, one point an image."""
    values, hits = checked_top(confidence, correct)
    order = np.argsort(-values, kind="stable")
    ranked = values[order]
    _, group, size = np.unique(-ranked, return_inverse=True, return_counts=True)
    wrong = np.bincount(group, weights=~hits[order])
    expected = (wrong / size)[group]  # every image of a tie carries the tie's mean error
    answered = np.arange(1, len(values) + 1)
    return RiskCoverage(answered / len(values), np.cumsum(expected) / answered, ranked)


def aurc(confidence: ArrayLike, correct: ArrayLike) -> float:
    """The area under the risk-coverage curve; lower is better.

    >>> round(aurc([0.9, 0.8, 0.7], [True, False, True]), 6)
    0.277778
    """
    return risk_coverage(confidence, correct).area


def aurc_of(confidence: Floats, correct: Bools) -> Weighted:
    """The weighted form of AURC; a tie's sum over its places is a harmonic number."""
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


register(Metric(
    name="aurc", title="AURC", about="Area under the risk-coverage curve.",
    value=lambda sample: aurc(sample.confidence, sample.correct),
    weighted=lambda sample: aurc_of(sample.confidence, sample.correct),
))  # fmt: skip
