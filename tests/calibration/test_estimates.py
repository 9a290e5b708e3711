"""Estimates for images on which nothing can be certified."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from poise.calibration import certify
from poise.calibration.estimates import images_needed, lowest_error, surest


def test_the_interval_is_that_of_clopper_and_pearson() -> None:
    confidence, correct = np.linspace(1, 0.1, 100), np.arange(100) % 7 != 3
    found = surest(confidence, correct, 0.4)
    expected = stats.binomtest(found.errors, 40).proportion_ci(0.95, method="exact")
    assert (found.answered, found.errors) == (40, int((~correct[:40]).sum()))
    assert (found.low, found.high) == pytest.approx(tuple(expected), abs=1e-9)
    assert surest([0.5, 0.9], [False, True], 0.5)[:4] == (1, 0, 0.0, 0.0)


def test_the_lowest_error_is_the_lowest() -> None:
    confidence, correct = np.linspace(1, 0.1, 100), np.arange(100) % 7 != 3
    lowest = lowest_error(confidence, correct, 0.05)
    assert lowest is not None
    assert certify(confidence, correct, lowest).threshold is not None
    assert certify(confidence, correct, lowest - 0.01).threshold is None
    assert lowest_error([0.9] * 30, [False] * 30, 0.05) is None


def test_so_many_images_would_certify_it() -> None:
    confidence, correct = np.linspace(1, 0.1, 50), np.arange(50) % 20 != 10  # 5 % are wrong
    assert certify(confidence, correct, 0.1).threshold is None
    needed = images_needed(confidence, correct, 0.1, 0.05)
    assert needed is not None
    times = needed // 50
    assert certify(np.tile(confidence, times), np.tile(correct, times), 0.1).threshold is not None
    assert images_needed(confidence, np.zeros(50), 0.1, 0.05) is None
