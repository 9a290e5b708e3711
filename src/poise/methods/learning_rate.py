"""Learning rates: absolute numbers, or multiples of the RMS of the initial context's entries ("0.3rms")."""

from __future__ import annotations

import math

from poise.errors import InvalidOptionError


def check_lr(lr: float | str) -> None:
    """Refuse what is neither a number above 0 nor such a number with "rms"."""
    if not 0 < lr_number(lr) < math.inf:
        raise InvalidOptionError(
            f"lr is {lr!r}.", hint="It must be above 0, or such a number with rms, relative to the init: '0.3rms'."
        )


def lr_number(lr: float | str) -> float:
    """Return the learning rate without its unit; NaN for a text that is no such number."""
    if not isinstance(lr, str):
        return lr
    try:
        return float(lr.removesuffix("rms")) if lr.endswith("rms") else math.nan
    except ValueError:
        return math.nan


def describe_lr(lr: float | str) -> str:
    """Return it in words.

    >>> describe_lr(0.005), describe_lr("0.3rms")
    ('0.005', '0.3 x RMS of the initial context')
    """
    return f"{lr_number(lr):g}" + (" x RMS of the initial context" if isinstance(lr, str) else "")


def absolute_lr(lr: float | str, rms: float) -> float:
    """Return the learning rate in numbers, with six digits if it is relative, so that it can be given as printed.

    >>> absolute_lr(0.005, 0.02), absolute_lr("0.3rms", 0.02)
    (0.005, 0.006)
    """
    if not isinstance(lr, str):
        return float(lr)
    number = float(f"{lr_number(lr) * rms:.6g}")
    if not 0 < number < math.inf:
        raise InvalidOptionError(
            f"lr is {lr!r}, and the initial context has RMS {rms:g}.", hint="Give an absolute learning rate."
        )
    return number
