"""The sampling floor of ECE: what perfectly calibrated answers would score, because the number of images is finite.

If every answer were correct with the probability that its confidence states, the accuracy of a bin would still differ
from its mean confidence by chance, and ECE adds up the absolute values. An ECE near its floor is no evidence of
miscalibration, and two values can be compared only as far as their floors are alike.

With the confidences of a bin replaced by their mean p, its n outcomes are binomial and E|hits - n p| has de Moivre's
closed form, 2 v C(n, v) p^v (1 - p)^(n - v + 1) with v = floor(n p) + 1. A bin is 1/20 wide, so this is too high by at
most 2.5 %, and by far less where confidences fill the bin; no simulation is needed.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from poise.metrics.binning import assign
from poise.metrics.sample import Floats, Weighted, checked_top


def ece_floor(confidence: ArrayLike, bins: int = 20) -> float:
    """Expected ECE of perfectly calibrated answers with these confidences.

    Args:
        confidence: probability of the predicted class [N].
        bins: number of bins.

    >>> round(ece_floor([0.8] * 100), 4), round(ece_floor([0.8] * 10_000), 4)
    (0.0318, 0.0032)
    """
    values, _ = checked_top(confidence, np.zeros(np.shape(confidence)))
    return float(weighted_ece_floor(values, bins)(np.ones((1, len(values))))[0])


def weighted_ece_floor(confidence: Floats, bins: int = 20) -> Weighted:
    """Weighted floor of ECE; an image that is drawn twice counts as two independent answers."""
    images = len(confidence)
    member = assign(confidence, bins)[:, None] == np.arange(bins)  # [N, K]
    both = np.hstack([member, member * confidence[:, None]]).astype(np.float64)
    log_factorial = np.concatenate([[0.0], np.cumsum(np.log(np.arange(1, images + 1)))])

    def weighted(counts: Floats) -> Floats:
        sums = counts @ both  # [R, 2K]
        size, expected = sums[:, :bins], sums[:, bins:]
        n = np.rint(size).astype(np.int64)
        share = np.clip(expected / np.maximum(size, 1), 0, 1)
        v = np.minimum(np.floor(expected).astype(np.int64) + 1, n)  # where n p is a whole number, v = n p is as good
        ways = log_factorial[n] - log_factorial[v] - log_factorial[n - v]
        power = v * _log(share) + (n - v + 1) * _log(1 - share)
        return np.asarray((2 * v * np.exp(ways + power)).sum(1) / images)

    return weighted


def _log(values: Floats) -> Floats:
    """[...] log, with a large negative number for log 0 so that 0 times it is 0."""
    return np.log(np.maximum(values, 1e-300))
