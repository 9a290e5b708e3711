"""The parts of a choice by plain fits, and small prediction sets and sequences by the oracle."""

from __future__ import annotations

import numpy as np
import pytest

from poise.calibration import Beta, Temperature, certify, choose, fit_beta, fit_temperature
from poise.calibration.certify import _room
from poise.calibration.choice import _held_out
from poise.calibration.conformal import quantile, scores
from poise.errors import InvalidOptionError
from poise.metrics.bootstrap import resampled_counts
from tests.oracles import calibration as oracle

FITS = {"temperature": (fit_temperature, Temperature), "beta": (fit_beta, Beta)}


def world(seed: int, images: int, right: float = 0.5) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    probs = rng.dirichlet(np.full(3, 0.5), images)
    return probs, np.where(rng.random(images) < right, probs.argmax(1), (probs.argmax(1) + 1) % 3)


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_every_image_is_held_out_of_its_own_fit(seed: int) -> None:
    probs, labels = world(seed, 24)
    found = choose(probs, labels, folds=4, repeats=2, seed=9, resamples=2)
    fit, _ = FITS[found.calibrator.name]
    for part in _held_out(probs.argmax(1) == labels, labels, 4, 2, 9)[:4].astype(bool):
        expected = fit(probs, labels, (~part).astype(float)).apply(probs[part])
        np.testing.assert_allclose(found.held_out[part], expected, atol=1e-3)
        if fit(probs, labels).temperature != pytest.approx(fit(probs, labels, (~part).astype(float)).temperature, 0.02):
            assert not np.allclose(found.held_out[part], fit(probs, labels).apply(probs[part]), atol=1e-3)


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_intervals_are_the_middle_of_the_fits_to_resamples(seed: int) -> None:
    probs, labels = world(seed, 30)
    found = choose(probs, labels, resamples=41, seed=7)
    fit, _ = FITS[found.calibrator.name]
    draws = [fit(probs, labels, counts).to_dict() for counts in next(resampled_counts(30, 41, 7))]
    for name, interval in found.intervals.items():
        values = [draw[name] for draw in draws]
        low, high = np.quantile(values, [0.025, 0.975])
        value = getattr(found.calibrator, name)
        assert interval == pytest.approx((value, min(low, value), max(high, value)), rel=2e-3, abs=2e-3)


def test_the_documented_defaults() -> None:
    probs, labels = world(3, 40)
    found = choose(probs, labels)
    assert found == choose(probs, labels, folds=5, repeats=4, seed=0, resamples=500)
    for other in ({"folds": 6}, {"repeats": 5}, {"seed": 1}, {"resamples": 501}):
        assert found != choose(probs, labels, **other)
    assert choose(probs, labels, seed=1) == choose(probs, labels, seed=1)


def test_ten_images_are_compared_and_nine_are_not() -> None:
    """Where the curve is better: three images in four are wrong, whatever their confidence."""
    better = [seed for seed in range(12) if choose(*world(seed, 10, 0.25), resamples=1).difference > 0.05]
    assert better
    for seed in better:
        probs, labels = world(seed, 10, 0.25)
        found = choose(probs, labels, resamples=1)
        assert isinstance(found.calibrator, Beta)
        assert found.reason.startswith(
            "beta, because the held-out log-loss of beta is lower than that of temperature ("
        )
        few = choose(probs[:9], labels[:9], resamples=1)
        assert isinstance(few.calibrator, Temperature)
        assert few.reason.startswith("temperature, because a comparison needs at least 10 images")
        assert few.intervals.keys() == {"temperature"}


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"folds": 0}, "folds = 0 was given. Give a whole number of at least 1."),
        ({"repeats": 0}, "repeats = 0 was given. Give a whole number of at least 1."),
        ({"resamples": 0}, "resamples = 0 was given. Give a whole number of at least 1."),
    ],
)
def test_errors(options: dict, text: str) -> None:
    with pytest.raises(InvalidOptionError) as problem:
        choose([[0.7, 0.3]], [0], **options)
    assert str(problem.value) == text


@pytest.mark.parametrize("images", [1, 28, 29, 73, 74, 75, 160, 500])
def test_sequences_have_room(images: int) -> None:
    for max_error in ("0.1", "0.2", "0.5"):
        for delta in ("0.05", "0.2"):
            assert _room(images, float(max_error), float(delta)) == oracle.room(images, max_error, delta)


@pytest.mark.parametrize(
    ("max_error", "delta", "starts", "wrong"),
    [
        ("0.3", "0.2", 2, [4, 5, 20, 43]),
        ("0.2", "0.2", 2, [4, 5, 20, 43]),
        ("0.2", "0.1", 3, [26, 30, 32, 39]),
    ],
)
def test_sequences_start_at_twice_as_many_images(max_error: str, delta: str, starts: int, wrong: list[int]) -> None:
    """Sequences that started elsewhere would come to another threshold here."""
    confidence, correct = np.linspace(1, 0.5, 60), ~np.isin(np.arange(60), wrong)
    found = certify(confidence, correct, float(max_error), delta=float(delta), starts=starts)
    assert found.threshold == oracle.certified(confidence.tolist(), correct.tolist(), max_error, delta, starts)


SMALL = [
    [0.125] * 8,
    [0.5, 0.5, 0, 0, 0, 0, 0, 0],
    [0.3, 0.1, 0.1, 0.1, 0.1, 0.1, 0.1, 0.1],
    [0, 0, 0, 0, 0, 0, 0, 1.0],
    [0.05, 0.05, 0.2, 0.2, 0.2, 0.1, 0.1, 0.1],
    [0.9, 0.1, 0, 0, 0, 0, 0, 0],
]


@pytest.mark.parametrize("name", list(scores))
@pytest.mark.parametrize("kind", [np.float32, np.float64])
def test_small_sets_with_ties(name: str, kind: type) -> None:
    given = np.array(SMALL, dtype=kind)
    rows, u = given.astype(np.float64).tolist(), [0.0, 0.25, 0.5, 0.75, 1.0, 0.4]
    score = scores.get(name)
    for label in range(8):
        expected = [oracle.SCORES[name](row, label, noise) for row, noise in zip(rows, u, strict=True)]
        np.testing.assert_allclose(score.of_labels(given, [label] * 6, u), expected, atol=1e-7)
    for limit in (-0.5, 0.003, 0.061, 0.13, 0.333, 0.47, 0.71, 0.957, 1.5):  # none of them is a score
        members, empty = score.sets(given, limit, u)
        plain, none = oracle.sets(name, rows, [limit] * 8, u)
        assert (members.tolist(), empty.tolist()) == (plain, none)
    limits = [0.333, 0.957, 0.13, 0.71, 0.47, 0.061, 1.5, 0.22]
    members, empty = score.sets(given, limits, u)
    plain, none = oracle.sets(name, rows, limits, u)
    assert (members.tolist(), empty.tolist()) == (plain, none)


def test_of_many_tied_classes_the_first_are_inside() -> None:
    tied = np.full((1, 200), 1 / 200)
    for limit in (0.4024, np.full(200, 0.4024)):  # 80 ranks, and a bit
        members, _ = scores.get("aps").sets(tied, limit, [0.0])
        assert members[0].tolist() == [True] * 80 + [False] * 120


def test_sets_of_one_class() -> None:
    for name in scores:
        members, empty = scores.get(name).sets([[1.0], [1.0]], 0.5, [0.2, 0.9])
        assert members.tolist() == [[True], [True]]
        assert empty.tolist() == ([False, False] if name == "lac" else [True, False])


def test_the_quantile_of_many_scores_is_that_of_sorted_scores() -> None:
    for seed in range(20):
        values = np.random.default_rng(seed).random(2000)
        for coverage, rank in ((0.0004, 1), (0.1, 201), (0.5, 1001), (0.9, 1801)):
            assert quantile(values, coverage) == np.sort(values)[rank - 1]


def test_a_limit_between_two_numbers_of_single_precision_is_exact() -> None:
    """A class at 0.3 in float32 is outside where the limit is above it, however little, in float64."""
    given = np.array([[0.3, 0.7]], dtype=np.float32)
    p = float(given[0, 0])
    for above, inside in ((2e-8, False), (0.0, True)):  # of which 1e-8 is slack
        for limit in (1 - p - above, np.full(2, 1 - p - above)):
            assert scores.get("lac").sets(given, limit).members[0].tolist() == [inside, True]
            assert scores.get("lac").sets(given.astype(np.float64), limit).members[0].tolist() == [inside, True]
