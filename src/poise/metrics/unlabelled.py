"""Accuracy from a few labelled images and many unlabelled ones (PPI++; Angelopoulos, Duchi and Zrnic, 2023).

Confidences say, on average, how many answers are right. How far they are off is measured on the labelled images, and
the mean confidence of the unlabelled ones, which has hardly any sampling error, takes the place of that of the labelled
ones. The weight of the confidences is the one with the least variance, so that useless confidences do no harm:

    accuracy = mean(correct) + weight (mean(confidence, unlabelled) - mean(confidence, labelled))
"""

from __future__ import annotations

import math

import numpy as np
import scipy  # imports scipy.special when it is first used
from numpy.typing import ArrayLike

from poise.errors import InvalidOptionError
from poise.metrics.sample import checked_top

FEWEST = 20  # labelled images, and right and wrong answers among them: MISTAKES each; the interval is not exact
MISTAKES = 5


def accuracy_with_unlabelled(
    confidence: ArrayLike, correct: ArrayLike, unlabelled: ArrayLike
) -> tuple[float, float, float]:
    """Accuracy with its 95 % confidence interval, sharpened by the confidences of unlabelled images.

    The interval is Student's, which needs some right and some wrong answers (`enough`).

    Args:
        confidence: of n labelled images [n].
        correct: whether their answers are correct [n].
        unlabelled: confidences of N further images [N], drawn alike.

    >>> rows = accuracy_with_unlabelled([0.9, 0.6] * 20, [True, True, True, False] * 10, [0.9, 0.6, 0.6] * 100)
    >>> [round(value, 3) for value in rows]
    [0.706, 0.583, 0.829]
    """
    values, hits = checked_top(confidence, correct)
    others, _ = checked_top(unlabelled, np.zeros(np.shape(unlabelled)))
    if not enough(hits):
        raise InvalidOptionError(
            f"{int(hits.sum())} of {len(hits)} answers are right.",
            hint=f"At least {FEWEST} labelled images are needed, with {MISTAKES} right and {MISTAKES} wrong answers.",
        )
    n, ratio = len(values), len(values) / len(others)
    spread = float(np.var(np.concatenate([values, others]), ddof=1))
    covariance = float(np.cov(hits.astype(np.float64), values)[0, 1])
    weight = min(max(covariance / spread, 0.0), 1.0) / (1 + ratio) if spread > 0 else 0.0
    value = float(hits.mean() + weight * (others.mean() - values.mean()))
    variance = float(np.var(hits - weight * values, ddof=2)) / n + weight**2 * spread / len(others)
    away = float(scipy.special.stdtrit(n - 2, 0.975)) * math.sqrt(variance)
    return value, max(0.0, value - away), min(1.0, value + away)


def enough(correct: ArrayLike) -> bool:
    """Return whether there are right and wrong answers enough for the interval."""
    hits = np.asarray(correct)
    return len(hits) >= FEWEST and MISTAKES <= int(hits.sum()) <= len(hits) - MISTAKES
