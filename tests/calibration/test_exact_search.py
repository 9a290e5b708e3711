"""No distribution of confidences and errors was found under which a wrong threshold is certified too often.

The probability of a wrong certificate is computed exactly, level by level, for confidences with a few values (ties),
and a search tries to raise it. Without ties there is a proof (docs/calibration.md).
"""

from __future__ import annotations

from collections import defaultdict

import numpy as np
import pytest
from scipy import stats

from poise.calibration import certify
from poise.calibration.certify import ROUNDING, starts, upper_bound

DELTA = 0.2


def failure(weights: np.ndarray, errors: np.ndarray, images: int, max_error: float) -> float:
    """Return the probability that the certified threshold has a higher error rate than promised."""
    sequences, table = starts(images, max_error, DELTA), stats.binom
    passes = np.zeros((len(sequences), images + 1, images + 1), dtype=bool)
    for at, (_, delta) in enumerate(sequences):
        for n in range(1, images + 1):
            passes[at, n, : n + 1] = upper_bound(np.arange(n + 1), np.full(n + 1, n), delta) <= max_error + ROUNDING
    wrong = np.cumsum(weights * errors) / np.cumsum(weights) > max_error + 1e-12
    # answered, errors, which sequences have not ended, the last level that passed
    states = {(0, 0, (True,) * len(sequences), -1): 1.0}
    for level, (weight, error) in enumerate(zip(weights, errors, strict=True)):
        left = float(weights[level:].sum())
        following: dict[tuple[int, int, tuple[bool, ...], int], float] = defaultdict(float)
        for (answered, found, running, last), chance in states.items():
            rest = images - answered
            drawn = table.pmf(np.arange(rest + 1), rest, min(1.0, weight / left))
            for more in range(rest + 1):
                if more == 0 or not any(running):  # a level without images is not a threshold
                    following[answered + more, found, running, last] += chance * drawn[more]
                    continue
                for bad, part in enumerate(table.pmf(np.arange(more + 1), more, error)):
                    now = answered + more, found + bad
                    begun = [now[0] >= start for start, _ in sequences]
                    going = tuple(
                        on and (not begun[at] or bool(passes[at, now[0], now[1]])) for at, on in enumerate(running)
                    )
                    passed = any(on and begun[at] for at, on in enumerate(going))
                    following[(*now, going, level if passed else last)] += chance * drawn[more] * part
        states = following
    return sum(chance for (*_, last), chance in states.items() if last >= 0 and wrong[last])


def test_the_probability_equals_a_simulation() -> None:
    weights, errors, generator = np.array([0.3, 0.3, 0.4]), np.array([0.2, 0.6, 0.3]), np.random.default_rng(0)
    wrong = np.cumsum(weights * errors) / np.cumsum(weights) > 0.4
    failed = 0
    for _ in range(1500):
        level = generator.choice(3, 12, p=weights)
        found = certify(0.9 - 0.1 * level, generator.random(12) >= errors[level], 0.4, delta=DELTA)
        failed += found.threshold is not None and bool(wrong[round((0.9 - found.threshold) / 0.1)])
    expected = failure(weights, errors, 12, 0.4)
    assert abs(failed / 1500 - expected) < 4 * np.sqrt(expected * (1 - expected) / 1500) + 1e-3


@pytest.mark.parametrize(("images", "max_error", "levels"), [(8, 0.4, 2), (12, 0.5, 2), (8, 0.4, 3), (10, 0.5, 3)])
def test_no_distribution_exceeds_delta(images: int, max_error: float, levels: int) -> None:
    generator = np.random.default_rng(levels)
    best, where = 0.0, (np.full(levels, 1 / levels), np.full(levels, max_error + 1e-6))
    for step in range(60):
        weights, errors = where
        if step:
            weights = np.abs(weights + generator.normal(0, 0.15, levels)) + 1e-3
            errors = np.clip(errors + generator.normal(0, 0.1, levels), 0, 1)
        weights = weights / weights.sum()
        chance = failure(weights, errors, images, max_error)
        assert chance <= DELTA + 1e-9
        if chance >= best:
            best, where = chance, (weights, errors)
    assert best > DELTA / 4  # the search has found distributions that come close
