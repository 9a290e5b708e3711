"""Selective prediction: the risk-coverage curve and the area under it (AURC).

Images are answered from the most to the least confident. Tie rule: images of equal confidence are taken in random
order and the expectation over those orders is reported, so the result does not depend on the order of the rows.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from poise.metrics.sample import Bools, Floats, Weighted, checked_top


@dataclass(frozen=True)
class RiskCoverage:
    """Point i: the i + 1 most confident images are answered."""

    coverage: Floats  #: [N] (i + 1) / N
    risk: Floats  #: [N] expected fraction of wrong answers among those answered
    threshold: Floats  #: [N] lowest confidence answered

    @property
    def area(self) -> float:
        """Mean risk over all coverages 1/N .. 1."""
        return float(self.risk.mean())


def risk_coverage(confidence: ArrayLike, correct: ArrayLike) -> RiskCoverage:
    """Compute the risk-coverage curve, one point per image, from ``confidence`` [N] and ``correct`` [N].

    Args:
        confidence: probability of each prediction [N].
        correct: whether each prediction is correct [N].
    """
    values, hits = checked_top(confidence, correct)
    order = np.argsort(-values, kind="stable")
    ranked = values[order]
    _, group, size = np.unique(-ranked, return_inverse=True, return_counts=True)
    wrong = np.bincount(group, weights=~hits[order])
    expected = (wrong / size)[group]  # every image of a tie carries the tie's mean error
    answered = np.arange(1, len(values) + 1)
    return RiskCoverage(answered / len(values), np.cumsum(expected) / answered, ranked)


def aurc(confidence: ArrayLike, correct: ArrayLike) -> float:
    """Area under the risk-coverage curve; lower is better.

    Args:
        confidence: probability of each prediction [N].
        correct: whether each prediction is correct [N].

    >>> round(aurc([0.9, 0.8, 0.7], [True, False, True]), 6)
    0.277778
    """
    return risk_coverage(confidence, correct).area


def weighted_aurc(confidence: Floats, correct: Bools) -> Weighted:
    """Weighted AURC; the sum over the positions of a tie is a harmonic number."""
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


def auroc(confidence: ArrayLike, correct: ArrayLike) -> float:
    """Probability that a correct answer is more confident than a wrong one; equal confidences count half.

    It measures how well confidence separates correct from wrong answers, whatever its level. Where all answers are
    correct or all are wrong there is nothing to separate, and the value is 0.5, that of confidences without any
    information.

    Args:
        confidence: probability of the predicted class [N].
        correct: whether the prediction is correct [N].

    >>> auroc([0.9, 0.8, 0.7, 0.7], [True, False, True, False])
    0.625
    """
    values, hits = checked_top(confidence, correct)
    return float(weighted_auroc(values, hits)(np.ones((1, len(values))))[0])


def weighted_auroc(confidence: Floats, correct: Bools) -> Weighted:
    """Weighted AUROC: per level of confidence, correct answers above it and half of those on it, times the wrong."""
    levels, group = np.unique(-confidence, return_inverse=True)
    order = np.argsort(group, kind="stable")
    starts = np.searchsorted(group[order], np.arange(len(levels)))
    hits = correct[order]

    def weighted(counts: Floats) -> Floats:
        drawn = counts[:, order]
        right = np.add.reduceat(drawn * hits, starts, axis=1)  # [R, G]
        wrong = np.add.reduceat(drawn * ~hits, starts, axis=1)
        above = np.cumsum(right, axis=1) - right / 2
        pairs = right.sum(1) * wrong.sum(1)
        return np.asarray(np.where(pairs > 0, (above * wrong).sum(1) / np.maximum(pairs, 1), 0.5))

    return weighted
