"""Metrics of what is done with the probabilities: prediction sets, and answers that are given or withheld."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from poise.metrics.sample import Bools, Floats, Ints, Weighted


def classwise_coverage(covered: ArrayLike, labels: ArrayLike) -> Floats:
    """[K] the share of sets that contain the label, for each of the K classes that occur, in the order of labels.

    Args:
        covered: whether each prediction set contains the label [N].
        labels: correct classes [N].

    >>> classwise_coverage([True, False, True], [0, 0, 2]).tolist()
    [0.5, 1.0]
    """
    inside, truth = np.asarray(covered, dtype=bool), np.asarray(labels)
    _, column = np.unique(truth, return_inverse=True)
    return np.asarray(np.bincount(column, weights=inside) / np.bincount(column))


def answered_error(answered: ArrayLike, correct: ArrayLike) -> float:
    """Share of wrong predictions among the images that are answered; 0 if none is answered.

    Args:
        answered: whether each image is answered [N].
        correct: whether each prediction is correct [N].

    >>> answered_error([True, True, False], [True, False, False])
    0.5
    """
    given, hits = np.asarray(answered, dtype=bool), np.asarray(correct, dtype=bool)
    return float((given & ~hits).sum() / max(given.sum(), 1))


def weighted_classwise_coverage(covered: Bools, labels: Ints, *, worst: bool = False) -> Weighted:
    """Weighted mean of `classwise_coverage` over the classes that a resample contains, or the lowest of them."""
    classes, column = np.unique(labels, return_inverse=True)
    member = (column[:, None] == np.arange(len(classes))).astype(np.float64)  # [N, K]

    def weighted(counts: Floats) -> Floats:
        size, inside = counts @ member, (counts * covered) @ member  # [R, K]
        share = np.where(size > 0, inside / np.maximum(size, 1), np.nan)
        return np.asarray(np.nanmin(share, axis=1) if worst else np.nanmean(share, axis=1))

    return weighted


def weighted_answered_error(answered: Bools, correct: Bools) -> Weighted:
    """Weighted form of `answered_error`; 0 on a resample without answered images, so that intervals stay finite."""
    given, wrong = answered.astype(np.float64), (answered & ~correct).astype(np.float64)
    return lambda counts: np.asarray(counts @ wrong / np.maximum(counts @ given, 1))


def answered_mean(depth: Ints) -> float:
    """Return the mean of positive numbers [N]; 0 means that the image has no answer, and does not count."""
    return float(weighted_answered_mean(depth)(np.ones((1, len(depth))))[0])


def weighted_answered_mean(depth: Ints) -> Weighted:
    """Weighted form of `answered_mean`; 0 on a resample without answers."""
    total, given = depth.astype(np.float64), (depth > 0).astype(np.float64)
    return lambda counts: np.asarray(counts @ total / np.maximum(counts @ given, 1))
