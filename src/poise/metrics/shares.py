"""Intervals of shares, such as accuracy, that hold near 0 and 1 as well, where resampling finds no spread."""

from __future__ import annotations

from math import sqrt
from statistics import NormalDist


def wilson_interval(share: float, count: int, level: float = 0.95) -> tuple[float, float]:
    """Return the Wilson score interval of a share observed in ``count`` trials.

    >>> [round(bound, 3) for bound in wilson_interval(1.0, 20)]
    [0.839, 1.0]
    """
    z = NormalDist().inv_cdf((1 + level) / 2)
    centre = share + z * z / (2 * count)
    spread = z * sqrt(share * (1 - share) / count + z * z / (4 * count * count))
    scale = 1 + z * z / count
    low, high = (centre - spread) / scale, (centre + spread) / scale
    return max(0.0, min(low, share)), min(1.0, max(high, share))  # at 0 and 1 the share is a bound, up to rounding
