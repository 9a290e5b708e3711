"""Calibrators keep predictions, give probabilities, and are read back from a dictionary."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from poise.calibration import Beta, Temperature, calibrator_from, fit_beta, fit_temperature
from poise.errors import InvalidOptionError

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
        None, [], "beta", {}, {"name": "beta"}, {"name": ["temperature"], "temperature": 1.0}, {"name": "isotonic"},
        {"name": "temperature", "temperature": float("nan")}, {"name": "temperature", "temperature": float("inf")},
        {"name": "temperature", "temperature": 0.0}, {"name": "temperature", "temperature": -1.0},
        {"name": "temperature", "temperature": True}, {"name": "temperature", "temperature": "1"},
        {"name": "temperature", "temperature": 1.0, "more": 1}, {"name": "temperature", "temperature": 10**400},
        {"name": "beta", "a": -0.1, "b": 1.0, "m": 0.0}, {"name": "beta", "a": 1.0, "b": None, "m": 0.0},
        {"name": "beta", "a": 1.0, "b": 1.0, "m": float("-inf")},
    ],
)  # fmt: skip
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
