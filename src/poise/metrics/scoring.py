"""Metrics that are means over images: accuracy, top-k accuracy, negative log-likelihood, the Brier score, precision."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from poise.errors import InvalidOptionError
from poise.metrics.sample import Bools, Floats, Weighted, checked_probs, in_top

NLL_FLOOR = 1e-12  # a true class with probability 0 costs -log(1e-12) = 27.6 nats, not infinity


def top_k(probs: ArrayLike, labels: ArrayLike, k: int = 5) -> float:
    """Fraction of images whose label is among the ``k`` most probable classes.

    Args:
        probs: class probabilities [N, C].
        labels: class indices [N].
        k: number of classes.
    """
    return float(in_top(probs, labels, k).mean())


def accuracy(probs: ArrayLike, labels: ArrayLike) -> float:
    """Fraction of images whose most probable class is the label.

    Args:
        probs: probabilities [N, C].
        labels: correct classes [N].

    >>> accuracy([[0.9, 0.1], [0.4, 0.6], [0.7, 0.3]], [0, 1, 1])
    0.6666666666666666
    """
    return top_k(probs, labels, 1)


def nll(probs: ArrayLike, labels: ArrayLike, floor: float = NLL_FLOOR) -> float:
    """Mean negative log-likelihood in nats; probabilities below ``floor`` are raised to it.

    Args:
        probs: probabilities [N, C].
        labels: correct classes [N].
        floor: smallest probability.

    >>> round(nll([[0.5, 0.5], [1.0, 0.0]], [0, 0]), 6)
    0.346574
    """
    return float(nll_per_image(probs, labels, floor).mean())


def nll_per_image(probs: ArrayLike, labels: ArrayLike, floor: float = NLL_FLOOR) -> Floats:
    """[N] -log p(label) in nats."""
    table, truth = checked_probs(probs, labels)
    return np.asarray(-np.log(np.maximum(table[np.arange(len(truth)), truth], floor)))


def brier(probs: ArrayLike, labels: ArrayLike) -> float:
    """Mean multi-class Brier score, Σ_k (p_k - 1[k = label])², from 0 to 2.

    Args:
        probs: probabilities [N, C].
        labels: correct classes [N].

    >>> brier([[0.0, 1.0], [0.5, 0.5]], [0, 0])
    1.25
    """
    return float(brier_per_image(probs, labels).mean())


def brier_per_image(probs: ArrayLike, labels: ArrayLike) -> Floats:
    """[N] Brier score of each image."""
    table, truth = checked_probs(probs, labels)
    return np.asarray((table**2).sum(1) - 2 * table[np.arange(len(truth)), truth] + 1)


def weighted_mean(scores: Floats | Bools) -> Weighted:
    """Weighted form of the mean of ``scores`` [N] over images."""
    column = np.asarray(scores, dtype=np.float64)
    return lambda counts: np.asarray(counts @ column / len(column))


def average_precision(scores: ArrayLike, truth: ArrayLike) -> float:
    """Average precision of one label: the mean over its images of the precision at their scores; ties count together.

    Args:
        scores: of N images [N]; higher means that the label applies.
        truth: whether it does [N], at least once.

    >>> average_precision([0.9, 0.8, 0.3], [True, False, True])
    0.8333333333333333
    """
    values, has = np.asarray(scores, dtype=np.float64), np.asarray(truth, dtype=bool)
    if values.ndim != 1 or values.shape != has.shape or not has.any() or not np.isfinite(values).all():
        raise InvalidOptionError(
            f"Scores of shape {values.shape} and labels of shape {has.shape} were given, or no image has the label.",
            hint="Give two vectors of the same length, with at least one image that has the label.",
        )
    levels = values[has]
    found = len(values) - np.searchsorted(np.sort(values), levels)
    right = len(levels) - np.searchsorted(np.sort(levels), levels)
    return float((right / found).mean())
