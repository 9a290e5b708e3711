"""Mean confidence minus accuracy, with its exact p-value."""

from __future__ import annotations

import itertools
from fractions import Fraction

import numpy as np
import pytest

from poise.metrics import confidence_gap, gap_p_value
from poise.metrics.gap import combined_p


def slow_p_value(confidence: list[float], correct: list[bool]) -> float:
    """Return twice the smaller tail, over all outcomes, in exact fractions."""
    chances = [Fraction(0)] * (len(confidence) + 1)
    for outcome in itertools.product((False, True), repeat=len(confidence)):
        chance = Fraction(1)
        for value, right in zip(confidence, outcome, strict=True):
            chance *= Fraction(value) if right else 1 - Fraction(value)
        chances[sum(outcome)] += chance
    at = sum(correct)
    return float(min(1, 2 * min(sum(chances[: at + 1]), sum(chances[at:]))))


@pytest.mark.parametrize("seed", range(6))
def test_the_p_value_is_that_of_all_outcomes(seed: int) -> None:
    generator = np.random.default_rng(seed)
    confidence = generator.random(9).round(2).tolist()
    correct = (generator.random(9) < 0.5).tolist()
    assert gap_p_value(confidence, correct) == pytest.approx(slow_p_value(confidence, correct), rel=1e-9)


def test_certain_answers() -> None:
    assert gap_p_value([1.0] * 5, [True] * 5) == 1
    assert gap_p_value([1.0] * 5, [True] * 4 + [False]) == 0
    assert gap_p_value([0.0, 1.0, 0.5], [False, True, True]) == 1


def test_a_calibrated_model_is_rarely_accused() -> None:
    generator, found = np.random.default_rng(0), []
    for _ in range(1500):
        confidence = generator.beta(4, 1, 40)
        found.append(gap_p_value(confidence, generator.random(40) < confidence))
    for level in (0.01, 0.05, 0.2):
        assert np.mean(np.array(found) <= level) <= level + 4 * np.sqrt(level * (1 - level) / len(found))


def test_over_confidence_is_found_more_often_than_in_half_of_the_draws() -> None:
    generator, found = np.random.default_rng(1), 0
    for _ in range(200):
        truth = generator.beta(4, 2, 100)
        found += gap_p_value(np.minimum(truth + 0.1, 1), generator.random(100) < truth) < 0.05
    assert found > 100


def test_many_images() -> None:
    generator = np.random.default_rng(2)
    confidence = generator.random(20_000)
    correct = generator.random(20_000) < confidence
    assert 1e-4 < gap_p_value(confidence, correct) <= 1
    assert gap_p_value(confidence, np.ones(20_000, dtype=bool)) < 1e-12
    assert confidence_gap(confidence, np.ones(20_000, dtype=bool)) == pytest.approx(confidence.mean() - 1)


def test_the_same_answers_under_several_seeds_do_not_count_twice() -> None:
    assert combined_p([0.04]) == 0.04
    assert combined_p([0.04, 0.04]) == pytest.approx(0.08)
    assert combined_p([0.9, 0.9]) == 1
