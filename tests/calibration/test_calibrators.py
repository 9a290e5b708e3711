"""Calibrators keep predictions, give probabilities, equal a slow oracle, and are read back from a dictionary."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from poise.calibration import Calibrator, Curve, calibrator_from
from poise.errors import InvalidOptionError
from tests.oracles import calibration as oracle

ONE = st.builds(Curve, st.just(1.0), st.floats(0.01, 100), st.floats(0, 50), st.floats(0, 50), st.floats(-50, 50))
SEVERAL = st.lists(ONE, min_size=1, max_size=4).map(
    lambda curves: Calibrator(tuple(curve._replace(weight=1 / len(curves)) for curve in curves))
)
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
CURVES = [
    (Curve(1.0),),
    (Curve(1.0, 0.2),),
    (Curve(1.0, 30.0),),
    (Curve(1.0, 1.0, 1.0, 1.0, -1.0),),
    (Curve(1.0, 1.0, 0.0, 0.0, -3.0),),
    (Curve(1.0, 2.0, 2.0, 0.5, 1.0),),
    (Curve(1.0, 1.0, 0.0, 3.0, -9.0),),
    (Curve(0.5), Curve(0.25, 2.0, 0.7, 0.7, -0.3), Curve(0.25, 2.0, 1.2, 1.2, 0.4)),
    (Curve(0.2, 0.5, 1.0, 1.0, 9.0), Curve(0.8, 3.0, 0.0, 0.0, -3.0)),
]


@st.composite
def tables(draw: st.DrawFn) -> np.ndarray:
    """Rows with ties, zeros, ones and neighbouring floats."""
    shape = draw(st.tuples(st.integers(1, 6), st.integers(1, 9)))
    kind = draw(st.sampled_from([np.float32, np.float64]))
    entries = st.one_of(st.floats(0, 1, width=32), st.sampled_from([0.0, 1.0, 0.5, float(np.nextafter(0.5, 1))]))
    table = draw(arrays.arrays(np.float64, shape, elements=entries))
    table[:, 0] += table.sum(1) <= 0
    return (table / table.sum(1, keepdims=True)).astype(kind)


@given(SEVERAL, tables())
def test_predictions_stay_and_rows_are_probabilities(calibrator: Calibrator, probs: np.ndarray) -> None:
    out = calibrator.apply(probs)
    assert out.dtype == probs.dtype
    assert (out.argmax(1) == probs.argmax(1)).all()
    assert (out >= 0).all()
    np.testing.assert_allclose(out.sum(1), 1, atol=1e-5 if out.dtype == np.float32 else 1e-12)


@given(SEVERAL)
def test_a_calibrator_is_read_back(calibrator: Calibrator) -> None:
    assert calibrator_from(calibrator.to_dict()) == calibrator


@given(SEVERAL, st.lists(st.floats(0.51, 1), min_size=2, max_size=20))
def test_confidence_grows_with_confidence(calibrator: Calibrator, values: list[float]) -> None:
    top = np.sort(np.array(values))
    out = calibrator.apply(np.stack([top, 1 - top], axis=1))[:, 0]
    assert (np.diff(out) >= -1e-12).all()


@pytest.mark.parametrize("kind", [np.float16, np.float32, np.float64])
@pytest.mark.parametrize("curves", CURVES)
def test_rows_equal_the_oracle(kind: type, curves: tuple[Curve, ...]) -> None:
    given = np.array(ROWS, dtype=kind)
    out = Calibrator(curves).apply(given)
    assert out.dtype == (np.float64 if kind is np.float64 else np.float32)
    expected = [oracle.calibrated(row, curves) for row in given.astype(np.float64).tolist()]
    atol = {np.float64: 1e-12, np.float32: 3e-6, np.float16: 1e-3}[kind]  # rows of half precision do not sum to 1
    np.testing.assert_allclose(out, expected, atol=atol)
    assert (out.argmax(1) == given.argmax(1)).all()


def test_large_tables_equal_the_oracle(monkeypatch: pytest.MonkeyPatch) -> None:
    probs = np.random.default_rng(0).dirichlet(np.full(50, 0.2), 60)
    expected = [oracle.calibrated(row, CURVES[7]) for row in probs.tolist()]
    monkeypatch.setattr("poise.calibration.chunks.CHUNK", 1000)
    monkeypatch.setattr("poise.calibration.chunks.THREADED", 0)
    np.testing.assert_allclose(Calibrator(CURVES[7]).apply(probs), expected, atol=1e-12)


def test_as_it_is() -> None:
    probs = np.random.default_rng(1).dirichlet(np.full(7, 0.5), 30)
    np.testing.assert_allclose(Calibrator().apply(probs), probs, atol=1e-6)


@pytest.mark.parametrize(
    ("old", "curve"),
    [
        ({"name": "temperature", "temperature": 2.0}, Curve(1.0, 2.0)),
        ({"name": "beta", "a": 0.5, "b": 2.0, "m": -1.0, "temperature": 1.5}, Curve(1.0, 1.5, 0.5, 2.0, -1.0)),
    ],
)
def test_calibrators_of_the_first_format_are_read(old: dict, curve: Curve) -> None:
    assert calibrator_from(old) == Calibrator((curve,))


@pytest.mark.parametrize(
    "values",
    [
        None,
        [],
        "beta",
        {},
        {"name": "beta"},
        {"name": "code", "a": 1.0},
        {"name": "temperature", "temperature": 0.0},
        {"name": "temperature", "temperature": float("nan")},
        {"name": "temperature", "temperature": 1.0, "b": 1.0},
        {"name": "curves", "curves": []},
        {"name": "curves", "curves": [[0.5, 1.0, 1.0, 1.0, 0.0]]},
        {"name": "curves", "curves": [[1.0, 1.0, -1.0, 1.0, 0.0]]},
    ],
)
def test_other_dictionaries_are_refused(values: object) -> None:
    with pytest.raises(InvalidOptionError):
        calibrator_from(values)  # type: ignore[arg-type]


def test_one_class_stays_certain() -> None:
    for kind in (np.float32, np.float64):
        out = Calibrator((Curve(1.0, 3.0, 1.0, 1.0, -5.0),)).apply(np.ones((2, 1), dtype=kind))
        assert out.tolist() == [[1.0], [1.0]]
        assert out.dtype == kind


def test_extreme_temperatures_are_finite_and_silent() -> None:
    """Also where the caller has made every floating-point warning an error."""
    with np.errstate(all="raise"):
        cold = Calibrator((Curve(1.0, 0.007),)).apply([[0.5, 0.3, 0.2], [0.1, 0.2, 0.7]])
        np.testing.assert_allclose(cold, [[1, 0, 0], [0, 0, 1]], atol=1.1e-6)
        np.testing.assert_allclose(Calibrator((Curve(1.0, 148.0),)).apply([[0.5, 0.3, 0.2]]), 1 / 3, atol=5e-3)


def test_a_tie_that_rounding_makes_is_broken_in_favour_of_the_label() -> None:
    """Float32 can't tell these classes apart at a high temperature; the predicted one stays ahead by one step."""
    near = np.array([[0.25, 0.25, 0.25, np.nextafter(np.float32(0.25), np.float32(1))]], dtype=np.float32)
    for temperature in (148.0, 0.007, 1.0):
        out = Calibrator((Curve(1.0, temperature),)).apply(near)
        assert (out.argmax(1) == near.argmax(1)).all()
        np.testing.assert_allclose(out.sum(1), 1, atol=1e-6)


@pytest.mark.parametrize("row", [[0.3325, 0.3325, 0.331], [0.33335, 0.3333, 0.3295], [0.332, 0.3321, 0.332]])
@pytest.mark.parametrize("m", [0.0, 0.004, 0.005, 0.0055])
def test_rows_that_sum_to_less_than_1_stay_probabilities(row: list[float], m: float) -> None:
    """As those of half precision do: the top label may be below 1 / C, or above it by less than the sum is short."""
    for kind in (np.float16, np.float32, np.float64):
        given = np.array([row], dtype=kind)
        out = Calibrator((Curve(1.0, m=m),)).apply(given)
        assert ((out > 0.3) & (out < 0.4)).all()
        assert (out.argmax(1) == given.argmax(1)).all()
        assert abs(out.sum() - 1) < 5e-3
