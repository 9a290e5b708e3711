"""The Wilson interval against its definition, and how often it contains the share."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import optimize, stats

from poise.metrics.shares import wilson_interval


@pytest.mark.parametrize(("right", "count"), [(0, 1), (0, 20), (3, 7), (19, 20), (20, 20), (79, 111), (700, 1000)])
@pytest.mark.parametrize("level", [0.95, 0.99])
def test_bounds_are_where_the_score_test_rejects(right: int, count: int, level: float) -> None:
    share, z = right / count, stats.norm.ppf((1 + level) / 2)

    def statistic(p: float) -> float:
        return abs(share - p) - z * float(np.sqrt(p * (1 - p) / count))

    inner = min(max(share, 1e-9), 1 - 1e-9)  # the statistic is 0 at a share of 0 or 1 as well
    low = 0.0 if right == 0 else optimize.brentq(statistic, 1e-12, inner)
    high = 1.0 if right == count else optimize.brentq(statistic, inner, 1 - 1e-12)
    assert wilson_interval(share, count, level) == pytest.approx((low, high), abs=1e-9)


@pytest.mark.parametrize("count", [20, 100])
@pytest.mark.parametrize("share", [0.5, 0.7, 0.95])
def test_it_contains_the_share_about_as_often_as_it_says(count: int, share: float) -> None:
    inside = [low <= share <= high for low, high in (wilson_interval(k / count, count) for k in range(count + 1))]
    covered = stats.binom.pmf(np.arange(count + 1), count, share) @ np.array(inside, float)
    assert 0.915 < covered < 0.985  # the sums are exact; the bootstrap's are as low as 0.65 (20 images, 0.95)
