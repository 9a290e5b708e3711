"""A confidence threshold above which the error rate is certified to be small (Learn then Test, fixed sequence).

Thresholds are tested from high to low. At each one, the exact binomial (Clopper-Pearson) upper bound of the error rate
among the answered images must not exceed the target; the first failure ends the sequence, so no correction for multiple
tests is needed. The sequence starts where so many images are answered that a test without errors passes. One error
among these ends it at once, so with more images there are several sequences, which start at 1, 2, 4, ... times as many
answered images and share delta (Bonferroni). Their number depends on the number of images only.

The certificate holds for images that are drawn like the calibration images, with probability 1 - delta over the draw
of the calibration images, if the error rate does not fall as the confidence falls.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import scipy  # imports scipy.special when it is first used
from numpy.typing import ArrayLike

from poise.calibration.levels import exact_level
from poise.errors import InvalidOptionError
from poise.metrics.sample import Floats, checked_count, checked_top

ROUNDING = 1e-12  # a bound above the target by less than this is equal to it in exact arithmetic


@dataclass(frozen=True)
class Certificate:
    """The result of `certify`.

    Attributes:
        threshold: answer where the confidence is at least this; None if no threshold can be certified.
        answered: calibration images with at least this confidence.
        errors: wrong ones among them.
        bound: upper bound of the error rate among answered images; 1 without a threshold.
        max_error: the error rate that was asked for.
        delta: probability, over the draw of the calibration images, that the error rate exceeds ``max_error``.
        images: number of calibration images.
    """

    threshold: float | None
    answered: int
    errors: int
    bound: float
    max_error: float
    delta: float
    images: int


def upper_bound(errors: ArrayLike, images: ArrayLike, delta: float) -> Floats:
    """Clopper-Pearson upper bound of an error rate, exceeded with probability at most ``delta``.

    Args:
        errors: numbers of errors, any shape.
        images: numbers of images, of the same shape; without any image the bound is 1.
        delta: probability in (0, 1).

    >>> round(float(upper_bound(0, 20, 0.05)), 4)  # 1 - 0.05 ** (1 / 20)
    0.1391
    """
    exact_level("delta", delta)
    wrong, total = np.asarray(errors, dtype=np.float64), np.asarray(images, dtype=np.float64)
    if not np.all((wrong >= 0) & (wrong <= total) & np.isfinite(total)):
        raise InvalidOptionError(
            "Numbers of errors outside of 0 to the number of images were given.", hint="Give counts of the same images."
        )
    right = np.maximum(total - wrong, 1e-300)  # the bound of images that are all wrong is 1
    return np.where(wrong < total, scipy.special.betaincinv(wrong + 1, right, 1 - delta), 1.0)


def images_for_error(max_error: float, delta: float = 0.05) -> int:
    """Smallest number of images that certifies the error rate ``max_error`` if none of them is wrong.

    >>> images_for_error(0.05), images_for_error(0.1), images_for_error(0.9, 0.01)
    (59, 29, 2)
    """
    right, limit = 1 - exact_level("max_error", max_error), exact_level("delta", delta)
    guess = math.ceil(math.log(delta) / math.log1p(-max_error))
    if guess > 10_000:  # exact powers would be slow, and one image more or less does not matter
        return guess
    return next(n for n in range(max(1, guess - 1), guess + 2) if right**n <= limit)


def certify(
    confidence: ArrayLike, correct: ArrayLike, max_error: float, *, delta: float = 0.05, starts: int | None = None
) -> Certificate:
    """Find the lowest threshold whose error rate among answered images is certified to be at most ``max_error``.

    Args:
        confidence: confidences [N] of calibration images.
        correct: whether each prediction is correct [N].
        max_error: accepted error rate among answered images, in (0, 1).
        delta: accepted probability that the certificate is wrong, in (0, 1).
        starts: number of sequences; None = as many as the number of images has room for.

    Images of equal confidence are answered together.

    >>> certify([0.9] * 30 + [0.4] * 10, [True] * 30 + [False] * 10, 0.1).threshold
    0.9
    """
    nothing = Certificate(None, 0, 0, 1.0, max_error, delta, int(np.size(confidence)))
    sequences = _room(nothing.images, max_error, delta) if starts is None else checked_count("starts", starts)
    share = delta / sequences
    needed = images_for_error(max_error, share)
    if np.size(confidence) == 0 and np.size(correct) == 0:
        return nothing
    values, hits = checked_top(confidence, correct)
    levels, group = np.unique(-values, return_inverse=True)  # from high to low
    answered = np.cumsum(np.bincount(group))
    errors = np.cumsum(np.bincount(group, weights=~hits)).astype(np.int64)
    bounds = upper_bound(errors, answered, share)
    failed = np.append(bounds > max_error + ROUNDING, True)
    first = np.searchsorted(answered, needed * 2 ** np.arange(sequences))  # where each sequence starts
    last = max(int(start + failed[start:].argmax()) - 1 if not failed[start] else -1 for start in first)
    if last < 0:
        return nothing
    return Certificate(
        float(-levels[last]), int(answered[last]), int(errors[last]), float(bounds[last]), max_error, delta, len(values)
    )


def _room(images: int, max_error: float, delta: float) -> int:
    """Return the largest number of sequences whose last one starts within ``images``, at least 1."""
    room = 1
    while images_for_error(max_error, delta / (room + 1)) * 2**room <= images:
        room += 1
    return room
