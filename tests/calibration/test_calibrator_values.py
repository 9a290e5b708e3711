"""Calibrators on a few rows, number by number: ties, zeros, ones, one class, and both precisions."""

from __future__ import annotations

import math

import numpy as np
import pytest

from poise.calibration import (
    Beta,
    Temperature,
    certify,
    choose,
    fit_beta,
    fit_temperature,
    images_for_error,
    upper_bound,
)
from poise.calibration.certify import Certificate
from tests.oracles import calibration as oracle

ROWS = [
    [0.7, 0.2, 0.1],
    [0.2, 0.3, 0.5],
    [0.4, 0.4, 0.2],
    [1 / 3, 1 / 3, 1 / 3],
    [1.0, 0.0, 0.0],
    [0.0, 0.5, 0.5],
    [0.34, 0.33, 0.33],
    [0.98, 0.02, 0.0],
    [0.5, 0.49999, 0.00001],
]
CURVES = [(1.0, 1.0, 0.0), (1.0, 1.0, -1.0), (0.0, 0.0, -3.0), (2.0, 0.5, 1.0), (0.0, 3.0, -9.0), (1.0, 1.0, 9.0)]


@pytest.mark.parametrize("kind", [np.float16, np.float32, np.float64])
@pytest.mark.parametrize("temperature", [0.2, 1.0, 1.5, 30.0])
def test_temperatures(kind: type, temperature: float) -> None:
    given = np.array(ROWS, dtype=kind)
    out = Temperature(temperature).apply(given)
    close = {"rtol": 1e-9, "atol": 1e-12} if kind is np.float64 else {"rtol": 1e-4, "atol": 1e-6}
    assert out.dtype == (np.float64 if kind is np.float64 else np.float32)
    np.testing.assert_allclose(out, oracle.temperature(given.astype(np.float64).tolist(), temperature), **close)


@pytest.mark.parametrize("kind", [np.float32, np.float64])
@pytest.mark.parametrize("curve", CURVES)
def test_curves(kind: type, curve: tuple[float, float, float]) -> None:
    given = np.array(ROWS, dtype=kind)
    out, rows = Beta(*curve).apply(given), given.astype(np.float64).tolist()
    assert out.dtype == kind
    tolerance = 1e-12 if kind is np.float64 else 2e-6
    np.testing.assert_allclose(out, oracle.beta(rows, *curve), atol=tolerance)
    assert (out.argmax(1) == given.argmax(1)).all()
    both = Beta(*curve, 2.0).apply(given)
    np.testing.assert_allclose(both, oracle.beta(oracle.temperature(rows, 2.0), *curve), atol=tolerance)


def test_one_class_stays_certain() -> None:
    for calibrator in (Temperature(3.0), Beta(1.0, 1.0, -5.0)):
        for kind in (np.float32, np.float64):
            out = calibrator.apply(np.ones((2, 1), dtype=kind))
            assert out.tolist() == [[1.0], [1.0]]
            assert out.dtype == kind


def test_extreme_temperatures_are_finite_and_silent() -> None:
    """Also where the caller has made every floating-point warning an error."""
    with np.errstate(all="raise"):
        assert Temperature(1e-4).apply([[0.5, 0.3, 0.2], [0.1, 0.2, 0.7]]).tolist() == [[1, 0, 0], [0, 0, 1]]
        np.testing.assert_allclose(Temperature(1e4).apply([[0.5, 0.3, 0.2]]), 1 / 3, atol=1e-4)


def test_a_tie_that_rounding_makes_is_broken_in_favour_of_the_label() -> None:
    """Float32 can't tell these classes apart at a temperature of 1e4; the predicted one stays ahead by one step."""
    given = np.array([[0.2, 0.3, 0.5], [0.3, 0.5, 0.2], [0.5, 0.3, 0.2]], dtype=np.float32)
    near = np.array([[0.25, 0.25, 0.25, np.nextafter(np.float32(0.25), np.float32(1))]], dtype=np.float32)
    for table, temperature in ((given, 1e4), (near, 1e4), (near, 1e-4), (near, 1.0)):
        out = Temperature(temperature).apply(table)
        assert (out.argmax(1) == table.argmax(1)).all()
        np.testing.assert_allclose(out.sum(1), 1, atol=1e-6)


@pytest.mark.parametrize("row", [[0.3325, 0.3325, 0.331], [0.33335, 0.3333, 0.3295], [0.332, 0.3321, 0.332]])
@pytest.mark.parametrize("m", [0.0, 0.004, 0.005, 0.0055])
def test_rows_that_sum_to_less_than_1_stay_probabilities(row: list[float], m: float) -> None:
    """As those of half precision do: the top label may be below 1 / C, or above it by less than the sum is short."""
    for kind in (np.float16, np.float32, np.float64):
        given = np.array([row], dtype=kind)
        out = Beta(1.0, 1.0, m).apply(given)
        assert ((out > 0.3) & (out < 0.4)).all()
        assert (out.argmax(1) == given.argmax(1)).all()
        assert abs(out.sum() - 1) < 5e-3


def test_weights_are_one_by_default() -> None:
    table, labels = [[0.9, 0.1], [0.6, 0.4], [0.3, 0.7]], [0, 1, 1]
    for fit in (fit_temperature, fit_beta):
        assert fit(table, labels) == fit(table, labels, [1, 1, 1]) == fit(table, labels, [True, True, True])
        assert fit(table, labels) != fit(table, labels, [2, 1, 1])


def test_certificates_say_what_was_asked() -> None:
    assert certify([0.5], [True], 0.1, delta=0.2) == Certificate(None, 0, 0, 1.0, 0.1, 0.2, 1)
    assert certify([0.5] * 9, [False] * 9, 0.1) == Certificate(None, 0, 0, 1.0, 0.1, 0.05, 9)
    found = certify([0.9] * 30 + [0.4] * 10, [True] * 30 + [False] * 10, 0.1)
    assert (found.threshold, found.answered, found.errors, found.images) == (0.9, 30, 0, 40)
    assert (found.max_error, found.delta) == (0.1, 0.05)
    assert found.bound == pytest.approx(1 - 0.05 ** (1 / 30), abs=1e-12)
    assert isinstance(found.errors, int)
    assert images_for_error(0.05) == images_for_error(0.05, 0.05) == 59


def test_bounds_of_small_integers() -> None:
    """Counts may come as any integers; 255 is the largest of these."""
    found = upper_bound(np.array([255], dtype=np.uint8), np.array([300], dtype=np.uint16), 0.05)
    np.testing.assert_allclose(found, oracle.upper_bound(255, 300, 0.05), atol=1e-10)


def calibrated(seed: int, sharper: float) -> tuple[np.ndarray, np.ndarray]:
    """Labels that are drawn by the probabilities, which are then raised to a power."""
    rng = np.random.default_rng(seed)
    probs = rng.dirichlet(np.full(3, 0.5), 60)
    labels = (np.cumsum(probs, 1) < rng.random((60, 1))).sum(1).clip(max=2)
    return probs**sharper / (probs**sharper).sum(1, keepdims=True), labels


def test_a_choice_says_why() -> None:
    seen = set()
    for seed in range(6):
        for sharper in (1.0, 3.0):
            probs, labels = calibrated(seed, sharper)
            found = choose(probs, labels, resamples=1)
            correct, top = probs.argmax(1) == labels, probs.max(1).clip(1e-6, 1 - 1e-6)
            plain = -np.mean([math.log(p if hit else 1 - p) for p, hit in zip(top, correct, strict=True)])
            assert found.losses["none"] == pytest.approx(plain, abs=1e-12)
            assert found.difference == pytest.approx(found.losses["temperature"] - found.losses["beta"], abs=1e-12)
            name, worse = found.calibrator.name, found.losses[found.calibrator.name] >= found.losses["none"]
            assert name == ("beta" if found.difference > 0 else "temperature")
            verdict = "lower" if name == "beta" else "not lower"
            assert found.reason == (
                f"{name}, because the held-out log-loss of beta is {verdict} than that of temperature "
                f"(difference {-found.difference:+.4f}, standard error {found.standard_error:.4f})"
                + ("; on these images, calibration does not lower the held-out log-loss" if worse else "")
            )
            seen.add((name, worse))
    assert len(seen) == 4  # all cases occur


def test_a_choice_of_few_images() -> None:
    probs, labels = calibrated(0, 1.0)
    few = choose(probs[:9], labels[:9], resamples=3)
    assert few.reason.startswith("temperature, because a comparison needs at least 10 images")
    assert few.calibrator == fit_temperature(probs[:9], labels[:9])
    one = choose(probs[:1], labels[:1], resamples=3)
    assert one.standard_error == math.inf
