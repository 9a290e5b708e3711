"""Mean confidence minus accuracy, signed, and an exact test of whether confidences are right on average.

If every answer were right with the probability that its confidence states, independently of the others, the number of
right answers would have a Poisson binomial distribution, whatever the confidences are. The p-value is twice the smaller
tail of it, at most 1: exact for any number of images, and conservative, because the number is whole. It needs no bins,
and notices over- or under-confidence with fewer images than ECE does.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike

from poise.metrics.sample import Floats, checked_top

NEGLIGIBLE = 1e-20  # probabilities of a number of right answers that are left out; 50,000 images lose less than 1e-14


def confidence_gap(confidence: ArrayLike, correct: ArrayLike) -> float:
    """Mean confidence minus accuracy: above 0 where answers are over-confident.

    Args:
        confidence: probability of the predicted class [N].
        correct: whether the prediction is correct [N].

    >>> round(confidence_gap([0.9, 0.9, 0.6, 0.6], [True, False, True, False]), 6)
    0.25
    """
    values, hits = checked_top(confidence, correct)
    return float(values.mean() - hits.mean())


def gap_p_value(confidence: ArrayLike, correct: ArrayLike) -> float:
    """Probability of a gap at least this unlikely, on either side, if every confidence were right.

    Args:
        confidence: probability of each prediction [N].
        correct: whether each prediction is correct [N].

    >>> gap_p_value([0.5] * 4, [True] * 4)  # 2 / 16
    0.125
    """
    values, hits = checked_top(confidence, correct)
    chances, first = _number_right(values)
    at = int(hits.sum()) - first
    low = chances[: max(at + 1, 0)].sum()
    high = chances[max(at, 0) :].sum()
    return float(min(1.0, 2 * min(low, high)))


def combined_p(values: Sequence[float]) -> float:
    """A p-value from several that may depend on each other in any way: twice their mean (Rueschendorf, 1982).

    >>> combined_p([0.03]), combined_p([0.02, 0.04])
    (0.03, 0.06)
    """
    return values[0] if len(values) == 1 else min(1.0, 2 * float(np.mean(values)))


def _number_right(confidence: Floats) -> tuple[Floats, int]:
    """Return the probabilities of consecutive numbers of right answers, and the first of these numbers."""
    parts = [(np.array([1 - value, value]), 0) for value in confidence.tolist()]
    while len(parts) > 1:  # pairs, so that all factors have about the same length
        odd = parts[-1:] if len(parts) % 2 else []
        parts = [_sum(one, two) for one, two in zip(parts[::2], parts[1::2], strict=False)] + odd
    return parts[0]


def _sum(one: tuple[Floats, int], two: tuple[Floats, int]) -> tuple[Floats, int]:
    chances = np.convolve(one[0], two[0])
    kept = np.flatnonzero(chances > NEGLIGIBLE)
    return chances[kept[0] : kept[-1] + 1], one[1] + two[1] + int(kept[0])
