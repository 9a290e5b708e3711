"""What is promised about coverage and certified errors holds over many draws of calibration images."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

from poise.calibration import certify, class_quantiles, quantile, scores

DRAWS = 2000


@pytest.mark.parametrize("name", scores.names())
@pytest.mark.parametrize("images", [20, 50])
def test_coverage_is_that_of_a_beta_binomial(name: str, images: int) -> None:
    """Given n images, coverage is Beta(k, n + 1 - k), so covered test images are beta-binomial."""
    tests, classes, coverage = 30, 6, 0.9
    generator = np.random.default_rng(0)
    probs = generator.dirichlet(np.full(classes, 0.5), DRAWS * (images + tests))
    labels = (np.cumsum(probs, 1) < generator.random((len(probs), 1))).sum(1).clip(max=classes - 1)
    u = generator.random(len(probs))
    score = scores.get(name)
    found = score.of_labels(probs, labels, u)
    covered = np.empty(DRAWS)
    for draw in range(DRAWS):
        first = draw * (images + tests)
        q = quantile(found[first : first + images], coverage)
        rest = slice(first + images, first + images + tests)
        members, empty = score.sets(probs[rest], q, u[rest])
        covered[draw] = (members & ~empty[:, None])[np.arange(tests), labels[rest]].sum()
    rank = math.ceil((images + 1) * coverage - 1e-9)
    expected = stats.betabinom(tests, rank, images + 1 - rank)
    assert abs(covered.mean() - expected.mean()) < 4 * expected.std() / math.sqrt(DRAWS)
    assert abs(covered.std() / expected.std() - 1) < 0.15
    assert expected.mean() / tests >= coverage


@pytest.mark.parametrize("images", [100, 300])
@pytest.mark.parametrize("world", ["even", "easy frequent, hard rare"])
def test_one_quantile_per_class_keeps_coverage_over_all_images(world: str, images: int) -> None:
    """Classes with few images share a quantile; neither they nor the frequent ones by themselves lose coverage."""
    draws, classes, coverage = 400, 30, 0.9
    generator = np.random.default_rng(images)
    share = np.ones(classes) if world == "even" else 1 / np.arange(1, classes + 1) ** 1.2
    hard = np.zeros(classes) if world == "even" else np.linspace(0, 3, classes)
    share /= share.sum()
    all_covered, of_frequent = [], []
    for _ in range(draws):
        labels = generator.choice(classes, images, p=share)
        found = class_quantiles(generator.exponential(1, images) + hard[labels], labels, classes, coverage).values
        chance = 1 - np.exp(-np.maximum(found - hard, 0))  # that a new image of each class is covered
        all_covered.append(share @ chance)
        of_frequent.append(chance[0])
    error = 4 / math.sqrt(draws)
    assert np.mean(all_covered) >= coverage - error * np.std(all_covered)
    assert np.mean(of_frequent) >= coverage - error * np.std(of_frequent)


@pytest.mark.parametrize("images", [20, 50, 300])
@pytest.mark.parametrize("kind", ["rising", "steps", "constant"])
def test_certified_errors_are_rarely_exceeded(kind: str, images: int) -> None:
    """An image of confidence c is right with probability c ("steps": c has ten values), or with a constant one."""
    max_error, delta = 0.2, 0.05
    generator = np.random.default_rng(1)
    confidence = generator.uniform(0.3, 1, (DRAWS, images))
    if kind == "steps":
        confidence = confidence.round(1)
    chance = np.full_like(confidence, 1 - max_error - 1e-6) if kind == "constant" else confidence
    correct = generator.random((DRAWS, images)) < chance
    levels = np.sort(generator.uniform(0.3, 1, 200_000).round(1 if kind == "steps" else 9))
    exceeded = 0
    for row in range(DRAWS):
        found = certify(confidence[row], correct[row], max_error, delta=delta)
        if found.threshold is not None:
            assert found.bound <= max_error + 1e-12
            answered = levels[np.searchsorted(levels, found.threshold - 1e-12) :]
            error = max_error + 1e-6 if kind == "constant" else 1 - answered.mean()
            exceeded += error > max_error
    assert exceeded <= stats.binom(DRAWS, delta).ppf(0.9999)
    if kind == "constant":
        assert exceeded > 0  # the bound is not idle
