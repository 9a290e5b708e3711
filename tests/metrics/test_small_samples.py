"""Values by hand for one image, one answer, one pair and other edges that larger samples hide."""

from __future__ import annotations

import numpy as np
import pytest

from poise.metrics import ece_floor, nll, risk_coverage
from poise.metrics.binning import assign, equal_mass, equal_width, mass_positions
from poise.metrics.bootstrap import Estimate, bounds, estimate, interval, resampled_counts
from poise.metrics.decisions import (
    answered_error,
    classwise_coverage,
    weighted_answered_error,
    weighted_classwise_coverage,
)
from poise.metrics.sample import Sample
from poise.metrics.selective import auroc, weighted_auroc


@pytest.mark.parametrize("at_once", [1, 3, 1000])
def test_every_image_is_drawn_equally_often(monkeypatch: pytest.MonkeyPatch, at_once: int) -> None:
    monkeypatch.setattr("poise.metrics.bootstrap.BLOCK", at_once * 5)
    blocks = list(resampled_counts(5, 400, seed=1))
    assert max(map(len, blocks)) == min(at_once, 400)
    counts = np.concatenate(blocks)
    assert counts.shape == (400, 5)
    assert counts.dtype == np.float64
    assert (counts.sum(1) == 5).all()
    np.testing.assert_allclose(counts.mean(0), 1, atol=0.25)  # five standard deviations of a mean of 400 draws


def test_resamples_have_documented_defaults() -> None:
    sample = Sample.of_top([0.9, 0.6, 0.2], [True, False, True])
    draws = estimate([sample], names=["ece"])["ece"].draws
    np.testing.assert_array_equal(draws, estimate([sample], names=["ece"], resamples=1000, seed=0)["ece"].draws)
    assert len(draws) == 1000


def test_a_thousand_resamples_of_seed_0_by_default() -> None:
    np.testing.assert_array_equal(next(resampled_counts(3)), next(resampled_counts(3, 1000, 0)))
    assert not np.array_equal(next(resampled_counts(3)), next(resampled_counts(3, seed=1)))
    assert len(next(resampled_counts(3))) == 1000


@pytest.mark.parametrize(
    ("value", "replicates", "low", "high"),
    [
        (0.5, np.linspace(0, 1, 41), 0.025, 0.975),  # the middle 95 %
        (0.7, np.linspace(0, 1, 41), 0.225, 1.0),  # moved by 0.2, and no higher than the largest resample
        (0.1, np.linspace(0.1, 0.5, 41), 0.0, 0.29),  # moved by -0.2, and not below 0
        (1.1, np.linspace(1.2, 2.2, 41), 0.625, 1.575),  # moved by -0.6
        (-0.5, np.linspace(0, 1, 41), -0.5, -0.025),  # a value below all resamples is still inside
        (1.5, np.linspace(0, 1, 41), 1.025, 1.5),  # and so is one above
    ],
)
def test_intervals_by_hand(value: float, replicates: np.ndarray, low: float, high: float) -> None:
    found = interval(value, replicates)
    assert found == pytest.approx((value, low, high), abs=1e-12)


def test_bounds_by_hand() -> None:
    """The quantiles, moved to the mean, and extended to the value where they would miss it."""
    assert bounds(0.7, np.linspace(0, 1, 41)) == pytest.approx((0.225, 1.175), abs=1e-12)
    assert bounds(0.7, np.linspace(-1, 1, 41)) == pytest.approx((-0.25, 1.65), abs=1e-12)
    few = np.array([0.0] * 99 + [100.0])  # the mean is 1, and all quantiles are 0
    assert bounds(5.0, few) == pytest.approx((4.0, 5.0), abs=1e-12)
    assert bounds(-5.0, -few) == pytest.approx((-5.0, -4.0), abs=1e-12)


def test_estimates_are_subtracted_and_averaged_seed_by_seed() -> None:
    first, second = Estimate((1.0, 3.0), np.array([1.0, 2.0])), Estimate((0.5, 0.0), np.array([4.0, 0.0]))
    assert (first - second).by_seed == (0.5, 3.0)
    np.testing.assert_array_equal((first - second).draws, [-3, 2])
    assert Estimate.mean([first, second]).by_seed == (0.75, 1.5)
    np.testing.assert_array_equal(Estimate.mean([first, second]).draws, [2.5, 1])
    single = Estimate((0.5,), np.array([4.0, 0.0]))  # another number of seeds: the means are combined
    assert (first - single).by_seed == (1.5,)


def test_bins_of_equal_mass_have_these_edges() -> None:
    found = equal_mass([0.1, 0.2, 0.4, 0.8, 0.9], [True] * 5, bins=2)
    np.testing.assert_array_equal(found.lower, [0.1, 0.4])
    np.testing.assert_array_equal(found.upper, [0.4, 0.9])
    np.testing.assert_array_equal(found.count, [3, 2])
    one = equal_mass([0.3, 0.3], [True, False], bins=2)
    np.testing.assert_array_equal((one.lower, one.upper), ([0.3], [0.3]))
    two = equal_mass([0.3, 0.5], [True, False], bins=1)
    np.testing.assert_array_equal((two.lower, two.upper, two.count), ([0.3], [0.5], [2]))
    np.testing.assert_array_equal(mass_positions(101, 4), [0, 25, 50, 75, 100])
    assert len(mass_positions(7)) == 21
    # 0.1 and 0.7 in float32, times 5 in float32: the products are rounded to 0.5 and 3.5, and these to even numbers.
    assert mass_positions(6, 20)[[2, 14]].tolist() == [0, 4]


def test_confidences_beyond_the_range_by_rounding_are_in_the_outer_bins() -> None:
    assert assign([-1e-9, 0.0, 1.0, 1 + 1e-9]).tolist() == [0, 0, 19, 19]
    assert assign([1 + 1e-9], bins=1).tolist() == [0]


def test_bins_of_equal_width_have_these_edges() -> None:
    found = equal_width([0.1, 0.9, 0.95], [True, False, True], bins=4)
    np.testing.assert_array_equal(found.lower, [0, 0.25, 0.5, 0.75])
    np.testing.assert_array_equal(found.upper, [0.25, 0.5, 0.75, 1])
    np.testing.assert_array_equal(found.count, [1, 0, 0, 2])
    np.testing.assert_array_equal(found.accuracy, [1, np.nan, np.nan, 0.5])
    np.testing.assert_allclose(found.confidence, [0.1, np.nan, np.nan, 0.925], rtol=1e-12)
    assert found.count.dtype == np.int64


def test_one_answered_image() -> None:
    assert answered_error([True, False], [False, True]) == 1
    assert answered_error([1, 0], [0, 1]) == 1
    assert answered_error([False], [False]) == 0
    error = weighted_answered_error(np.array([True, False]), np.array([False, True]))
    np.testing.assert_array_equal(error(np.array([[1.0, 1.0], [0.0, 2.0], [2.0, 0.0]])), [1, 0, 1])


@pytest.mark.parametrize(("worst", "values"), [(False, [0.5, 0.0, 1.0]), (True, [0.0, 0.0, 1.0])])
def test_classes_with_one_image_and_classes_that_a_resample_lacks(worst: bool, values: list[float]) -> None:
    coverage = weighted_classwise_coverage(np.array([False, True]), np.array([3, 7]), worst=worst)
    np.testing.assert_array_equal(coverage(np.array([[1.0, 1.0], [2.0, 0.0], [0.0, 2.0]])), values)
    np.testing.assert_array_equal(classwise_coverage([0, 1, 1], [3, 7, 3]), [0.5, 1])


def test_one_pair_of_a_right_and_a_wrong_answer() -> None:
    assert auroc([0.9, 0.4], [True, False]) == 1
    assert auroc([0.4, 0.9], [True, False]) == 0
    area = weighted_auroc(np.array([0.9, 0.4]), np.array([True, False]))
    np.testing.assert_array_equal(area(np.array([[1.0, 1.0], [2.0, 0.0]])), [1, 0.5])


def test_risk_and_coverage_of_tied_answers() -> None:
    curve = risk_coverage([0.5, 0.9, 0.5], [True, False, False])
    np.testing.assert_allclose(curve.coverage, [1 / 3, 2 / 3, 1])
    np.testing.assert_allclose(curve.risk, [1, 0.75, 2 / 3])
    np.testing.assert_array_equal(curve.threshold, [0.9, 0.5, 0.5])


def test_parameters_reach_what_they_are_for() -> None:
    values = [0.55, 0.65, 0.75, 0.85]
    assert ece_floor(values, bins=1) != ece_floor(values, bins=4)
    assert ece_floor([0.5], bins=3) == pytest.approx(0.5)
    probs = [[1.0, 0.0]]
    assert nll(probs, [1], floor=0.25) == pytest.approx(np.log(4))
