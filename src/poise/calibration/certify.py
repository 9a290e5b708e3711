"""A confidence threshold above which the error rate is certified to be small (Learn then Test, fixed sequence).

Thresholds are tested from high to low. At each one, the exact binomial (Clopper-Pearson) upper bound of the error rate
among the answered images must not exceed the target; the first failure ends the sequence, so no correction for multiple
tests is needed. A sequence starts where a fixed number of images is answered (`first_rank`): a share of them, rounded
down to a number at which one more error is allowed, and no fewer than a test without errors needs.

There are two sequences (`STARTS`), which share delta: one from a quarter of the images, and one from four fifths, for
models whose answers are nearly all right, where one error among the first images would end the first sequence. Where
there are too few images for the second, the first has all of delta. The shares were chosen on simulated worlds
(benchmarks/certificate_starts.py).

The certificate holds for images that are drawn like the calibration images, with probability 1 - delta over the draw
of the calibration images. Nothing is assumed about how errors depend on the confidence (docs/calibration.md: proof).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import scipy  # imports scipy.special when it is first used
from numpy.typing import ArrayLike

from poise.calibration.levels import exact_level
from poise.errors import InvalidOptionError
from poise.metrics.sample import Floats, checked_count, checked_top

STARTS = ((0.9, 0.25), (0.1, 0.8))  # share of delta of each sequence, and share of the images at its first test
NEVER = -1.0  # a threshold below all confidences
ROUNDING = 1e-12  # a bound above the target by less than this is equal to it in exact arithmetic


@dataclass(frozen=True)
class Certificate:
    """The result of `certify`.

    Attributes:
        threshold: answer where the confidence is at least this; None if no threshold can be certified.
        answered: calibration images with at least this confidence.
        errors: wrong ones among them.
        bound: upper bound of the error rate among answered images, at the share of delta of the sequence that gave the
            threshold; 1 without a threshold.
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


@lru_cache(maxsize=1024)
def images_for_error(max_error: float, delta: float = 0.05) -> int:
    """Smallest number of images that certifies the error rate ``max_error`` if none of them is wrong.

    Args:
        max_error: the share of wrong answers to certify.
        delta: the probability that the certificate is wrong.

    >>> images_for_error(0.05), images_for_error(0.1), images_for_error(0.9, 0.01)
    (59, 29, 2)
    """
    right, limit = 1 - exact_level("max_error", max_error), exact_level("delta", delta)
    guess = math.ceil(math.log(delta) / math.log1p(-max_error))
    if guess > 10_000:  # exact powers would be slow, and one image more or less does not matter
        return guess
    return next(n for n in range(max(1, guess - 1), guess + 2) if right**n <= limit)


@lru_cache(maxsize=1024)
def first_rank(images: int, max_error: float, delta: float = 0.05, share: float = STARTS[0][1]) -> int:
    """Number of answered images at which a sequence of `certify` starts, which depends on the number of images only.

    Args:
        images: number of calibration images.
        max_error: accepted error rate among answered images, in (0, 1).
        delta: accepted probability that the sequence gives a wrong certificate, in (0, 1).
        share: of the images that are answered at most.

    >>> first_rank(100, 0.1), first_rank(200, 0.1), first_rank(300, 0.1)
    (29, 46, 61)
    """
    needed, limit = images_for_error(max_error, delta), math.floor(share * images + ROUNDING)
    if limit <= needed:
        return needed
    errors = np.flatnonzero(upper_bound(np.arange(limit), np.full(limit, limit), delta) <= max_error + ROUNDING)[-1]
    ranks = np.arange(errors + 1, limit + 1)
    passes = upper_bound(np.full(len(ranks), errors), ranks, delta) <= max_error + ROUNDING
    return int(ranks[passes.argmax()])


def starts(images: int, max_error: float, delta: float = 0.05) -> list[tuple[int, float]]:
    """First number of answered images, and share of delta, of each sequence of `certify`.

    Args:
        images: number of calibration images.
        max_error: accepted error rate among answered images, in (0, 1).
        delta: accepted probability that the certificate is wrong, in (0, 1).

    >>> starts(100, 0.05), starts(200, 0.05)
    ([(59, 0.05)], [(61, 0.045), (146, 0.005)])
    """
    parts = [(round(part * delta, 15), share) for part, share in STARTS]
    if any(share * images < images_for_error(max_error, part) for part, share in parts[1:]):
        parts = [(delta, STARTS[0][1])]
    return [(first_rank(images, max_error, part, share), part) for part, share in parts]


def certify(
    confidence: ArrayLike, correct: ArrayLike, max_error: float, *, delta: float = 0.05, start: int | None = None
) -> Certificate:
    """Find the lowest threshold whose error rate among answered images is certified to be at most ``max_error``.

    Args:
        confidence: confidences [N] of calibration images.
        correct: whether each prediction is correct [N].
        max_error: accepted error rate among answered images, in (0, 1).
        delta: accepted probability that the certificate is wrong, in (0, 1).
        start: number of answered images at the first test of a single sequence, fixed before looking at ``correct``;
            None for the sequences of `starts`.

    Images of equal confidence are answered together.

    >>> certify([0.9] * 30 + [0.4] * 10, [True] * 30 + [False] * 10, 0.1).threshold
    0.9
    """
    if np.size(confidence) == 0 and np.size(correct) == 0:
        values, hits = np.empty(0), np.empty(0, dtype=bool)
    else:
        values, hits = checked_top(confidence, correct)
    return certify_changing(values, np.where(hits, NEVER, values), max_error, delta=delta, start=start)


def certify_changing(
    answered_from: Floats, wrong_from: Floats, max_error: float, *, delta: float = 0.05, start: int | None = None
) -> Certificate:
    """`certify` for answers that change with the threshold, but never from wrong to right as it falls.

    Such are the answers of `poise.calibration.tree`, which become more specific. Where the error rate is at most
    ``max_error`` above some threshold and exceeds it below, a wrong certificate has passed a binomial test at that
    threshold, or at the first one that was tested, given the number of answers; so it has the probability delta at
    most. Where it crosses ``max_error`` more often, simulations found nothing above delta (tests/calibration).

    Args:
        answered_from: highest threshold at which each image is answered [N].
        wrong_from: highest threshold at which its answer is wrong [N], at most the former; `NEVER` if none is.
        max_error: accepted error rate among answered images, in (0, 1).
        delta: accepted probability that the certificate is wrong, in (0, 1).
        start: number of answered images at the first test; None: two sequences with the shares of `STARTS`.
    """
    images = len(answered_from)
    exact_level("max_error", max_error)
    exact_level("delta", delta)
    sequences = starts(images, max_error, delta) if start is None else [(checked_count("start", start), delta)]
    levels = np.unique(np.concatenate([answered_from, wrong_from[wrong_from > NEVER]]))[::-1]  # from high to low
    answered = images - np.searchsorted(np.sort(answered_from), levels)
    errors = images - np.searchsorted(np.sort(wrong_from), levels)
    found, best = Certificate(None, 0, 0, 1.0, max_error, delta, images), -1
    for rank, part in sequences:
        bounds = upper_bound(errors, answered, part)
        failed = np.append(bounds > max_error + ROUNDING, True)
        first = int(np.searchsorted(answered, rank))
        last = first + int(failed[first:].argmax()) - 1
        if last >= first and last > best:
            counts, best = (int(answered[last]), int(errors[last])), last
            found = Certificate(float(levels[last]), *counts, float(bounds[last]), max_error, delta, images)
    return found


def in_words(max_error: float, confidence: float, nodes: bool = False) -> str:
    """Return what a certified threshold promises; ``nodes``: whether answers are nodes of a tree."""
    meant = " A node is right if the correct label is below it." if nodes else ""
    return (
        f"In the long run, at most {100 * max_error:.3g} % of the answers to images drawn like the calibration images "
        f"are wrong; a calibration that says so fails in at most {100 * (1 - confidence):.3g} % of draws.{meant}"
    )
