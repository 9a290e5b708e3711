"""The line that says how long a batch will take."""

from __future__ import annotations

import numpy as np
import pytest

from poise.serve.batch_times import BatchTimes


def test_nothing_is_known_before_the_first_batch() -> None:
    assert BatchTimes().of(100) == 0


def test_batches_of_one_size_are_proportional() -> None:
    times = BatchTimes()
    for _ in range(5):
        times.add(4, 2.0)
        assert times.of(4) == pytest.approx(2.0)
        assert times.of(40) == pytest.approx(20.0)
    assert times.of(0) == 0


def test_the_line_is_the_weighted_least_squares_line() -> None:
    rng = np.random.default_rng(0)
    costs, seconds = rng.integers(1, 64, 12).astype(float), rng.random(12) + 1
    times = BatchTimes()
    for cost, taken in zip(costs, seconds, strict=True):
        times.add(cost, taken)
    roots = np.sqrt(np.append(0.8 ** np.arange(11, -1, -1.0), 1.0))
    design = np.stack([np.ones(13), np.append(costs, 0.0)], axis=1)
    (start, slope), *_ = np.linalg.lstsq(roots[:, None] * design, roots * np.append(seconds, 0.0))
    assert slope > 0
    assert [times.of(cost) for cost in (1, 10, 100)] == pytest.approx([start + slope * cost for cost in (1, 10, 100)])


def test_a_slow_small_batch_gives_no_line_that_falls() -> None:
    times = BatchTimes()
    for cost, seconds in ((32, 1.0), (1, 50.0), (2, 40.0)):
        times.add(cost, seconds)
    assert times.of(1) <= times.of(64)


def test_an_old_batch_is_forgotten() -> None:
    times = BatchTimes()
    times.add(2, 100.0)
    for _ in range(30):
        times.add(2, 1.0)
    assert times.of(2) == pytest.approx(1.0, rel=0.1)
