"""Top-1 and top-k accuracy as fractions."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from poise.metrics.checks import Bools, checked_count, checked_probs


def in_top(probs: ArrayLike, labels: ArrayLike, k: int = 5) -> Bools:
    """[N]: is the label among the ``k`` most probable classes? Of tied classes the first counts as more probable.

    With k classes or fewer every label is, so the answer is always true.
    """
    k = checked_count("k", k)
    table, truth = checked_probs(probs, labels)
    own = np.take_along_axis(table, truth[:, None], axis=1)  # [N, 1]
    earlier = np.arange(table.shape[1]) < truth[:, None]  # [N, C]
    rank = (table > own).sum(1) + ((table == own) & earlier).sum(1)
    return np.asarray(rank < k)


def top_k(probs: ArrayLike, labels: ArrayLike, k: int = 5) -> float:
    """The fraction of images whose label is among the ``k`` most probable classes."""
    return float(in_top(probs, labels, k).mean())


def accuracy(probs: ArrayLike, labels: ArrayLike) -> float:
    """The fraction of images whose most probable class is the label.

    >>> accuracy([[0.9, 0.1], [0.4, 0.6], [0.7, 0.3]], [0, 1, 1])
    0.6666666666666666
    """
    return top_k(probs, labels, 1)
