"""Calibrators keep predictions, give probabilities, and are read back from a dictionary."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from scipy import optimize

from poise.calibration import Beta, Temperature, calibrator_from, fit_beta, fit_temperature
from poise.errors import InvalidOptionError
from tests.oracles import calibration as oracle

CALIBRATORS = st.one_of(
    st.builds(Temperature, st.floats(1e-4, 1e4)),
    st.builds(Beta, st.floats(0, 50), st.floats(0, 50), st.floats(-50, 50)),
)


@st.composite
def tables(draw: st.DrawFn) -> np.ndarray:
    """Rows with ties, zeros, ones and neighbouring floats."""
    shape = draw(st.tuples(st.integers(1, 6), st.integers(1, 9)))
    kind = draw(st.sampled_from([np.float32, np.float64]))
    entries = st.one_of(st.floats(0, 1, width=32), st.sampled_from([0.0, 1.0, 0.5, float(np.nextafter(0.5, 1))]))
    table = draw(arrays.arrays(np.float64, shape, elements=entries))
    table[:, 0] += table.sum(1) <= 0
    return (table / table.sum(1, keepdims=True)).astype(kind)


@given(CALIBRATORS, tables())
def test_predictions_stay_and_rows_are_probabilities(calibrator: Temperature | Beta, probs: np.ndarray) -> None:
    out = calibrator.apply(probs)
    assert out.dtype == probs.dtype
    assert (out.argmax(1) == probs.argmax(1)).all()
    assert (out >= 0).all()
    np.testing.assert_allclose(out.sum(1), 1, atol=1e-5 if out.dtype == np.float32 else 1e-12)


@given(CALIBRATORS)
def test_a_calibrator_is_read_back(calibrator: Temperature | Beta) -> None:
    assert calibrator_from(calibrator.to_dict()) == calibrator


@given(CALIBRATORS, st.lists(st.floats(0.51, 1), min_size=2, max_size=20))
def test_confidence_grows_with_confidence(calibrator: Temperature | Beta, values: list[float]) -> None:
    top = np.sort(np.array(values))
    out = calibrator.apply(np.stack([top, 1 - top], axis=1))[:, 0]
    assert (np.diff(out) >= -1e-12).all()


@pytest.mark.parametrize(
    "values",
    [
        None,
        [],
        "beta",
        {},
        {"name": "beta"},
        {"name": ["temperature"], "temperature": 1.0},
        {"name": "isotonic"},
        {"name": "temperature", "temperature": float("nan")},
        {"name": "temperature", "temperature": float("inf")},
        {"name": "temperature", "temperature": 0.0},
        {"name": "temperature", "temperature": -1.0},
        {"name": "temperature", "temperature": True},
        {"name": "temperature", "temperature": "1"},
        {"name": "temperature", "temperature": 1.0, "more": 1},
        {"name": "temperature", "temperature": 10**400},
        {"name": "beta", "a": -0.1, "b": 1.0, "m": 0.0},
        {"name": "beta", "a": 1.0, "b": None, "m": 0.0},
        {"name": "beta", "a": 1.0, "b": 1.0, "m": float("-inf")},
    ],
)
def test_hostile_dictionaries_are_refused(values: object) -> None:
    with pytest.raises(InvalidOptionError):
        calibrator_from(values)  # type: ignore[arg-type]


@pytest.mark.parametrize("fit", [fit_temperature, fit_beta])
@pytest.mark.parametrize(
    ("probs", "labels"),
    [
        ([[1.0]], [0]),
        ([[0.7, 0.3]], [0]),
        ([[0.7, 0.3]], [1]),
        ([[1.0, 0.0]], [0]),
        ([[1.0, 0.0]], [1]),
        ([[0.5, 0.5]] * 30, [0] * 30),
        ([[0.5, 0.5]] * 30, [1] * 30),
        ([[1.0, 0.0, 0.0]] * 300, [0] * 300),
        ([[1.0, 0.0, 0.0]] * 300, [2] * 300),
        ([[0.2, 0.8], [0.8, 0.2]] * 500, [1, 0] * 500),
        ([[0.2, 0.8], [0.8, 0.2]] * 500, [0, 1] * 500),
    ],
)
def test_fits_exist_at_the_edges(fit: object, probs: list, labels: list) -> None:
    found = fit(probs, labels)  # type: ignore[operator]
    assert np.isfinite(list(found.to_dict().values())[1:]).all()
    assert (found.apply(probs).argmax(1) == np.argmax(probs, axis=1)).all()


def test_no_weight_is_the_prior_and_whole_weights_are_repetitions() -> None:
    probs, labels = np.array([[0.9, 0.1], [0.6, 0.4], [0.3, 0.7]]), np.array([0, 1, 1])
    times = [2, 0, 3]
    for fit, rest in ((fit_temperature, Temperature(1.0)), (fit_beta, Beta(1.0, 1.0, 0.0))):
        prior = list(fit(probs, labels, [0, 0, 0]).to_dict().values())[1:]
        np.testing.assert_allclose(prior, list(rest.to_dict().values())[1:], atol=1e-12)
        weighted = fit(probs, labels, times).to_dict()
        repeated = fit(np.repeat(probs, times, axis=0), np.repeat(labels, times)).to_dict()
        np.testing.assert_allclose(list(weighted.values())[1:], list(repeated.values())[1:], rtol=1e-7)
        for bad in ([1, 2], [1, -1, 1], [1, np.nan, 1]):
            with pytest.raises(InvalidOptionError):
                fit(probs, labels, bad)


@given(tables(), st.floats(0.05, 20))
def test_temperature_equals_the_oracle(probs: np.ndarray, temperature: float) -> None:
    rows = probs.astype(np.float64).tolist()
    close = {"rtol": 1e-4, "atol": 1e-6} if probs.dtype == np.float32 else {"rtol": 1e-9, "atol": 1e-12}
    found = Temperature(temperature).apply(probs)
    np.testing.assert_allclose(found, oracle.temperature(rows, temperature), **close)


@given(tables(), st.floats(0, 5), st.floats(0, 5), st.floats(-8, 8))
def test_beta_equals_the_oracle(probs: np.ndarray, a: float, b: float, m: float) -> None:
    rows = probs.astype(np.float64).tolist()
    tolerance = 2e-6 if probs.dtype == np.float32 else 1e-12
    np.testing.assert_allclose(Beta(a, b, m).apply(probs), oracle.beta(rows, a, b, m), atol=tolerance)


def labelled(seed: int, images: int, classes: int = 4) -> tuple[np.ndarray, np.ndarray]:
    generator = np.random.default_rng(seed)
    probs = generator.dirichlet(np.full(classes, 0.4), images)
    return probs, np.where(generator.random(images) < 0.6, probs.argmax(1), generator.integers(0, classes, images))


@pytest.mark.parametrize("images", [1, 2, 5, 40])
def test_fits_minimise_the_oracles_objective(images: int) -> None:
    for seed in range(3):
        probs, labels = labelled(seed, images)
        rows, truth = probs.tolist(), labels.tolist()
        thetas = np.linspace(-5, 5, 81)
        start = min(thetas, key=lambda theta: oracle.temperature_objective(rows, truth, float(np.exp(theta))))
        best = optimize.minimize_scalar(
            lambda theta, rows=rows, truth=truth: oracle.temperature_objective(rows, truth, float(np.exp(theta))),
            bounds=(start - 0.2, start + 0.2),
            method="bounded",
            options={"xatol": 1e-9},
        )
        np.testing.assert_allclose(np.log(fit_temperature(probs, labels).temperature), best.x, atol=1e-6)
        found = fit_beta(probs, labels)
        assert found.temperature == fit_temperature(probs, labels).temperature
        rows = oracle.temperature(rows, found.temperature)
        least = optimize.minimize(
            lambda x, rows=rows, truth=truth: oracle.beta_objective(rows, truth, *x),
            [1.0, 1.0, 0.0],
            bounds=[(0, None), (0, None), (None, None)],
            options={"ftol": 1e-15, "gtol": 1e-9},
        )
        np.testing.assert_allclose([found.a, found.b, found.m], least.x, atol=1e-4)
        assert oracle.beta_objective(rows, truth, found.a, found.b, found.m) <= least.fun + 1e-9


def test_a_bound_of_beta_is_reached() -> None:
    """Confident images are wrong and the others right, so a curve that may fall would fall."""
    probs = np.concatenate([np.tile([0.95, 0.05], (6000, 1)), np.tile([0.55, 0.45], (6000, 1))])
    found = fit_beta(probs, np.repeat([1, 0], 6000))
    assert min(found.a, found.b) == 0


def test_a_large_sample_gives_its_temperature_back() -> None:
    generator = np.random.default_rng(0)
    logits = 3 * generator.standard_normal((4000, 6))
    probs = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    labels = (np.cumsum(probs, 1) < generator.random((4000, 1))).sum(1).clip(max=5)
    sharp = np.exp(0.5 * logits) / np.exp(0.5 * logits).sum(1, keepdims=True)
    assert abs(fit_temperature(sharp, labels).temperature - 0.5) < 0.05
