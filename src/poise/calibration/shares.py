"""A share of images with its exact confidence interval."""

from __future__ import annotations

from poise.calibration.certify import upper_bound
from poise.metrics import Interval


def proportion(hits: int, images: int) -> Interval:
    """Return a share with its exact 95 % confidence interval (Clopper-Pearson).

    >>> found = proportion(0, 20)
    >>> found.value, found.low, round(found.high, 4)
    (0.0, 0.0, 0.1684)
    """
    low, high = 1 - float(upper_bound(images - hits, images, 0.025)), float(upper_bound(hits, images, 0.025))
    return Interval(hits / images, max(low, 0.0) if hits else 0.0, high)
