"""Accuracy with unlabelled images: intervals that cover, and shorter ones where confidences say something."""

from __future__ import annotations

import numpy as np
import pytest

from poise.errors import InvalidOptionError
from poise.metrics.shares import wilson_interval
from poise.metrics.unlabelled import accuracy_with_unlabelled, enough

WORLDS = {  # probability to be right, by confidence
    "calibrated": lambda c: c,
    "over-confident": lambda c: np.clip(c - 0.2, 0, 1),
    "useless": lambda c: np.full_like(c, 0.7),
    "reversed": lambda c: 0.3 + 0.6 * (1 - c),
}


@pytest.mark.parametrize("world", WORLDS)
def test_intervals_cover(world: str) -> None:
    generator, covered, shorter, draws = np.random.default_rng(0), 0, 0.0, 500
    truth = WORLDS[world](generator.beta(2, 1, 100_000)).mean()
    for _ in range(draws):
        confidence, others = generator.beta(2, 1, 80), generator.beta(2, 1, 1000)
        correct = generator.random(80) < WORLDS[world](confidence)
        value, low, high = accuracy_with_unlabelled(confidence, correct, others)
        assert low <= value <= high
        covered += low <= truth <= high
        wilson = wilson_interval(float(correct.mean()), 80)
        shorter += (high - low) / (wilson[1] - wilson[0]) / draws
    assert covered / draws > 0.95 - 4 * np.sqrt(0.95 * 0.05 / draws)
    assert shorter < (0.95 if world == "calibrated" else 1.1)


def test_useless_confidences_leave_the_plain_accuracy() -> None:
    correct = [True, False] * 15
    value, _, _ = accuracy_with_unlabelled([0.5] * 30, correct, [0.9] * 50)
    assert value == pytest.approx(0.5, abs=0.2)
    assert accuracy_with_unlabelled([0.5] * 30, correct, [0.5] * 50)[0] == 0.5


def test_too_few_answers_of_a_kind_are_refused() -> None:
    assert enough([True] * 15 + [False] * 5)
    assert not enough([True] * 16 + [False] * 4)
    assert not enough([True, False] * 9)
    with pytest.raises(InvalidOptionError, match="20 of 20 answers are right"):
        accuracy_with_unlabelled([0.9] * 20, [True] * 20, [0.9])
