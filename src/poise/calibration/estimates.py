"""What can be said where no threshold is certified: the error among the surest answers, and how many images would help.

These are estimates, and no guarantees.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import scipy  # imports scipy.special when it is first used
from numpy.typing import ArrayLike

from poise.calibration.certify import certify, upper_bound
from poise.calibration.levels import exact_level
from poise.metrics.sample import checked_top

SHARES = (0.2, 0.4, 0.6)  # of the images, the surest first


class Surest(NamedTuple):
    """The error among the surest answers, with its 95 % Clopper-Pearson interval."""

    answered: int
    errors: int
    rate: float
    low: float
    high: float


def surest(confidence: ArrayLike, correct: ArrayLike, share: float) -> Surest:
    """Return the error among a share of the answers, the surest ones; of ties, those that come first.

    >>> surest([0.9] * 10 + [0.5] * 10, [True] * 9 + [False] * 11, 0.5)[:3]
    (10, 1, 0.1)
    """
    exact_level("share", share)
    values, hits = checked_top(confidence, correct)
    count = max(1, round(share * len(values)))
    wrong = int((~hits[np.argsort(-values, kind="stable")[:count]]).sum())
    low = float(scipy.special.betaincinv(wrong, count - wrong + 1, 0.025)) if wrong else 0.0
    return Surest(count, wrong, wrong / count, low, float(upper_bound(wrong, count, 0.025)))


def lowest_error(confidence: ArrayLike, correct: ArrayLike, delta: float) -> float | None:
    """Return the lowest whole percentage that can be certified; who picks it for that has less than 1 - delta."""
    levels = (percent / 100 for percent in range(1, 100))
    return next(
        (level for level in levels if certify(confidence, correct, level, delta=delta).threshold is not None), None
    )


def images_needed(confidence: ArrayLike, correct: ArrayLike, max_error: float, delta: float) -> int | None:
    """Return about how many images would certify ``max_error``, if further ones were like these.

    None if 32 times as many would not, so that more images hardly help.
    """
    values, hits = checked_top(confidence, correct)
    for times in (2, 3, 4, 6, 8, 12, 16, 24, 32):
        if certify(np.tile(values, times), np.tile(hits, times), max_error, delta=delta).threshold is not None:
            return times * len(values)
    return None
