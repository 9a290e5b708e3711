"""Intervals: weighted metrics equal the plain ones on the drawn images; seeded, paired."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from poise import metrics
from poise.errors import InvalidOptionError, UnknownNameError
from poise.metrics.bootstrap import bounds, interval, resampled_counts


def sample(seed: int, images: int = 150, classes: int = 4, decimals: int = 12) -> tuple[np.ndarray, np.ndarray]:
    generator = np.random.default_rng(seed)
    probs = generator.dirichlet(np.full(classes, 0.6), size=images).round(decimals)
    probs /= probs.sum(1, keepdims=True)
    return probs, generator.integers(0, classes, images)


def whole(probs: np.ndarray, labels: np.ndarray) -> metrics.Sample:
    """A sample with every part that a metric may need: sets of the classes above 0.2, answers from 0.5 on."""
    top = metrics.Sample.of(probs, labels)
    inside = probs > 0.2
    covered = inside[np.arange(len(labels)), labels]
    return dataclasses.replace(top, set_sizes=inside.sum(1), covered=covered, answered=top.confidence >= 0.5)


@pytest.mark.parametrize("decimals", [12, 1], ids=["distinct", "tied"])
@pytest.mark.parametrize("name", metrics.available(whole(*sample(3))))  # the others: test_independent_metrics.py
def test_weighted_equals_plain_on_the_drawn_images(name: str, decimals: int) -> None:
    probs, labels = sample(3, classes=7, decimals=decimals)
    metric, every = metrics.get(name), np.arange(len(labels))
    weighted = metric.on_counts(whole(probs, labels))
    (counts,) = resampled_counts(len(labels), 5, seed=11)
    assert counts.sum(1).tolist() == [len(labels)] * 5
    for row, value in zip([*counts, np.ones(len(labels))], weighted(np.vstack([counts, every * 0 + 1.0])), strict=True):
        drawn = np.repeat(every, row.astype(int))
        assert value == pytest.approx(metric.value(whole(probs[drawn], labels[drawn])), abs=1e-12)


def test_rows_have_the_values_of_their_functions() -> None:
    one = whole(*sample(4))
    of_probs = {
        "accuracy": metrics.accuracy,
        "top5": metrics.top_k,
        "sce": metrics.sce,
        "nll": metrics.nll,
        "brier": metrics.brier,
    }
    of_top = {
        "ece": metrics.ece,
        "aece": metrics.adaptive_ece,
        "mce": metrics.mce,
        "aurc": metrics.aurc,
        "auroc": metrics.auroc,
    }
    for name, function in of_probs.items():
        assert metrics.get(name).value(one) == function(one.probs, one.labels)
    for name, function in of_top.items():
        assert metrics.get(name).value(one) == function(one.confidence, one.correct)
    assert metrics.get("ece_floor").value(one) == metrics.ece_floor(one.confidence)


def test_a_metric_without_a_weighted_form_is_computed_on_the_drawn_images() -> None:
    one = metrics.Sample.of(*sample(5))
    fast = metrics.get("nll")
    (counts,) = resampled_counts(len(one), 4, seed=2)
    slow = dataclasses.replace(fast, weighted=None).on_counts(one)
    assert slow(counts).tolist() == pytest.approx(fast.on_counts(one)(counts).tolist(), abs=1e-12)


def test_standard_deviation_over_seeds() -> None:
    confidence = np.full(4, 0.5)
    samples = [metrics.Sample.of_top(confidence, np.arange(4) < right) for right in (1, 2, 3)]
    found = metrics.estimate(samples, names=["accuracy"], resamples=20)["accuracy"]
    assert (found.value, found.std) == pytest.approx((0.5, 0.25))
    assert metrics.estimate(samples[:1], names=["accuracy"], resamples=20)["accuracy"].std is None


def test_an_interval_contains_its_value() -> None:
    rare = np.repeat([0.0, 1.0], [980, 20])  # the middle 95 % of the draws are 0, and so is their mean after the move
    assert interval(0.02, rare) == (0.02, 0.0, 0.02)
    assert bounds(-0.02, -rare) == (-0.02, 0.0)


def test_interval_of_a_signed_metric_may_be_negative() -> None:
    assert interval(-0.1, np.linspace(-0.3, 0.1, 100)).low < -0.2
    assert interval(0.01, np.linspace(0, 0.1, 100)).low == 0


def test_estimates_are_seeded_and_contain_the_value() -> None:
    one = whole(*sample(1))
    first, again, other = (metrics.estimate([one], resamples=200, seed=seed) for seed in (4, 4, 5))
    assert set(first) == set(metrics.available(one))
    assert [each.interval for each in first.values()] == [each.interval for each in again.values()]
    assert [each.interval for each in first.values()] != [each.interval for each in other.values()]
    found = first["accuracy"].interval
    assert found.low <= found.value <= found.high


def test_accuracy_interval_is_the_binomial_one() -> None:
    correct = np.arange(1000) < 700
    one = metrics.Sample.of_top(np.full(1000, 0.7), correct)
    found = metrics.estimate([one], names=["accuracy"], resamples=4000)["accuracy"].interval
    half = 1.96 * np.sqrt(0.7 * 0.3 / 1000)
    assert (found.low, found.high) == pytest.approx((0.7 - half, 0.7 + half), abs=0.003)


def test_mean_over_seeds_draws_the_same_images() -> None:
    probs, labels = sample(2)
    one = metrics.Sample.of(probs, labels)
    flipped = metrics.Sample.of_top(one.confidence, ~one.correct)
    straight = metrics.Sample.of_top(one.confidence, one.correct)
    both = metrics.estimate([straight, flipped], names=["accuracy"])["accuracy"].interval
    # right and wrong cancel image by image, so the mean is 1/2 in every resample
    assert (both.low, both.value, both.high) == pytest.approx((0.5, 0.5, 0.5))
    alone, twice = (metrics.estimate(each, names=["ece"], resamples=50)["ece"] for each in ([one], [one, one]))
    assert twice.interval.high == pytest.approx(alone.interval.high)


def test_every_interval_contains_its_value() -> None:
    for seed in range(5):
        probs, labels = sample(seed, images=60)
        for name, each in metrics.estimate([whole(probs, labels)], resamples=200).items():
            found = each.interval
            assert (-1 if name == "gap" else 0) <= found.low <= found.value <= found.high, name
            assert found.high <= 1 or name in ("nll", "brier", "set_size")


def test_errors_name_what_is_missing() -> None:
    top_only = metrics.Sample.of_top([0.5, 0.7], [True, False])
    assert "sce" not in metrics.available(top_only)
    with pytest.raises(InvalidOptionError, match="'nll' needs all probabilities"):
        metrics.estimate([top_only], names=["nll"])
    with pytest.raises(InvalidOptionError, match="does not contain what the metric needs"):
        metrics.get("nll").value(top_only)
    with pytest.raises(UnknownNameError, match="aurc"):
        metrics.get("aurk")
    with pytest.raises(InvalidOptionError):
        metrics.estimate([top_only, metrics.Sample.of_top([0.5], [True])])
