"""Selective prediction: the risk-coverage curve and the area under it (AURC).

Images are answered from the most to the least confident. Tie rule: images of equal confidence are taken in random
order and the expectation over those orders is reported, so the result does not depend on the order of the rows.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from poise.metrics.checks import Floats, checked_top


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
