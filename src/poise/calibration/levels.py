"""The probabilities that users choose (coverage, error rate, confidence): their check and their exact value."""

from __future__ import annotations

from fractions import Fraction

import numpy as np

from poise.errors import InvalidOptionError


def exact_level(name: str, value: float) -> Fraction:
    """Return the exact value of a probability between 0 and 1: 0.9 is 9/10, although no float64 is equal to that.

    Sizes of samples are rounded up, and 0.9 * 10 has to give 9 images, not 10.
    """
    if isinstance(value, bool) or not isinstance(value, int | float | np.floating) or not 0 < value < 1:
        raise InvalidOptionError(f"{name} is {value!r}.", hint="Give a number between 0 and 1, such as 0.9 or 0.05.")
    given = Fraction(float(value))
    short = given.limit_denominator(10**9)
    return short if abs(short - given) <= given / 10**15 else given


def failure(confidence: float) -> float:
    """Return the probability delta with which a statement of this confidence may fail: 0.05 for 0.95, exactly."""
    return float(1 - exact_level("confidence", confidence))
