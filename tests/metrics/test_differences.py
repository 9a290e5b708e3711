"""When two estimates differ clearly, and intervals of shares."""

from __future__ import annotations

import numpy as np
import pytest

from poise.metrics import Sample, estimate
from poise.metrics.bootstrap import clearly_different
from poise.metrics.shares import wilson_interval


def pair(seed: int, images: int = 150) -> tuple[Sample, Sample]:
    """Return two perfectly calibrated predictions with different floors: one sure, one not."""
    generator = np.random.default_rng(seed)
    sure, unsure = generator.beta(40, 1, images), generator.uniform(0.3, 0.7, images)
    return (
        Sample.of_top(sure, generator.random(images) < sure),
        Sample.of_top(unsure, generator.random(images) < unsure),
    )


def test_perfect_predictions_do_not_differ_because_their_floors_do() -> None:
    plain = with_floors = 0
    for seed in range(40):
        one, two = (estimate([each], names=["ece", "ece_floor"], resamples=200) for each in pair(seed))
        plain += clearly_different(one["ece"], two["ece"])
        with_floors += clearly_different(one["ece"], two["ece"], (one["ece_floor"], two["ece_floor"]))
    assert plain > 30
    assert with_floors < 8


def test_a_real_difference_is_still_clear() -> None:
    generator = np.random.default_rng(0)
    confidence = generator.uniform(0.6, 1, 400)
    right = generator.random(400) < confidence
    samples = Sample.of_top(confidence, right), Sample.of_top(np.full(400, 0.99), right)
    one, two = (estimate([each], names=["ece", "ece_floor"], resamples=200) for each in samples)
    assert clearly_different(one["ece"], two["ece"], (one["ece_floor"], two["ece_floor"]))


def test_the_interval_of_a_share_has_a_width_if_all_are_right() -> None:
    sample = Sample.of_top([0.9] * 20, [True] * 20)
    found = estimate([sample], names=["accuracy"])["accuracy"]
    assert found.interval == (1.0, *wilson_interval(1.0, 20))
    assert estimate([sample, sample], names=["accuracy"])["accuracy"].trials == 20  # two seeds are no more images


def test_the_interval_of_few_right_answers_is_the_same_under_one_seed_and_several() -> None:
    few, others = (Sample.of_top(np.full(48, 0.5), np.isin(np.arange(48), right)) for right in ([3, 30], [4, 30]))
    three = estimate([few, few, few], names=["accuracy", "ece"])
    assert three["accuracy"].interval == pytest.approx((2 / 48, *wilson_interval(2 / 48, 48)))
    assert three["accuracy"].interval.low > 0.01
    assert three["ece"].trials is None
    assert estimate([few, others], names=["accuracy"])["accuracy"].trials is None  # other answers, as many right
