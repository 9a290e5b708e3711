"""The tables and steps of the fits: at the ends of their range, between the points of the table, and at bounds."""

from __future__ import annotations

import math

import numpy as np
import pytest

from poise.calibration import Temperature, fit_beta, fit_temperature
from poise.calibration.fits import BetaFit, TemperatureFit, _cubic_minimum

RNG = np.random.default_rng(4)
PROBS = RNG.dirichlet(np.full(4, 0.4), 50)
LABELS = np.where(RNG.random(50) < 0.6, PROBS.argmax(1), RNG.integers(0, 4, 50))


@pytest.mark.parametrize("theta", [-5.0, -4.99, -4.9, -0.3, 0.0, 0.06, 0.125, 2.2, 4.9, 4.99, 5.0])
def test_the_table_gives_the_confidences(theta: float) -> None:
    fit, temperature = TemperatureFit(PROBS, LABELS), math.exp(theta)
    expected = Temperature(temperature).apply(PROBS).max(1)
    np.testing.assert_allclose(fit.exact_confidences(temperature), expected, atol=1e-12)
    np.testing.assert_allclose(fit.confidences(np.array([[temperature]]))[0], expected, atol=1e-5)


def test_temperatures_end_at_the_ends_of_the_table() -> None:
    wrong = [[1.0, 0.0, 0.0]] * 300, [2] * 300  # wrong answers without doubt
    right = [[0.34, 0.33, 0.33]] * 5000, [0] * 5000  # right answers full of doubt
    for (probs, labels), theta in ((wrong, 5.0), (right, -5.0)):
        assert math.log(fit_temperature(probs, labels).temperature) == pytest.approx(theta, abs=1e-9)
        fit = TemperatureFit(np.array(probs), np.array(labels))
        found = fit.parameters(np.ones((1, len(labels))))
        assert math.log(found[0, 0]) == pytest.approx(theta, abs=1e-3)
        np.testing.assert_allclose(fit.confidences(found)[0], fit.exact_confidences(math.exp(theta)), atol=1e-3)


@pytest.mark.parametrize("scale", [0.02, 0.3, 1.0, 3.0, 40.0])
def test_the_table_is_close_to_the_refined_fit(scale: float) -> None:
    """Of images whose logits are ``scale`` times as far apart, so that temperatures from 0.1 to 30 are found."""
    probs = PROBS**scale / (PROBS**scale).sum(1, keepdims=True)
    weights = np.random.default_rng(1).integers(0, 3, (6, 50)).astype(float)
    fit, curves = TemperatureFit(probs, LABELS), BetaFit(probs, LABELS)
    for row, found, curve in zip(weights, fit.parameters(weights), curves.parameters(weights), strict=True):
        refined = fit.refined(found, row)
        assert math.log(found[0]) == pytest.approx(math.log(refined[0]), abs=1e-3)
        assert refined[0] == pytest.approx(fit_temperature(probs, LABELS, row).temperature, rel=1e-8)
        np.testing.assert_allclose(curve, curves.refined(curve, row), atol=5e-3, rtol=5e-3)
        gradient, curvature = fit._derivatives(math.log(refined[0]), row)
        assert abs(gradient) < 1e-6 * max(1, curvature)


def test_derivatives_are_those_of_the_objective() -> None:
    fit, weights, step = TemperatureFit(PROBS, LABELS), np.linspace(0, 2, 50), 1e-4

    def objective(theta: float) -> float:
        out = Temperature(math.exp(theta)).apply(PROBS)[np.arange(50), LABELS]
        return float(-weights @ np.log(out)) + theta**2 / 2

    for theta in (-1.0, 0.0, 0.7):
        below, at, above = (objective(theta + shift) for shift in (-step, 0, step))
        gradient, curvature = fit._derivatives(theta, weights)
        assert gradient == pytest.approx((above - below) / (2 * step), rel=1e-5, abs=1e-5)
        assert curvature == pytest.approx((above - 2 * at + below) / step**2, rel=1e-3, abs=1e-3)


def test_a_bounded_curve_is_the_best_one_within_its_bounds() -> None:
    """Confident images are wrong and the others right: a is 0, or b is, and the gradient pushes against the bound."""
    probs, labels, weights = np.array([[0.95, 0.05], [0.55, 0.45]]), np.array([1, 0]), np.array([6000.0, 6000.0])
    found = fit_beta(probs, labels, weights)
    top = Temperature(found.temperature).apply(probs).max(1)
    features = np.stack([np.log(top), -np.log1p(-top), np.ones(2)], 1)
    curve = np.array([found.a, found.b, found.m])
    chance = 1 / (1 + np.exp(-features @ curve))
    gradient = features.T @ (weights * (chance - (labels == 0))) + 4 * (curve - [1, 1, 0])
    for value, slack in zip(curve[:2], gradient[:2], strict=True):
        assert (value > 0 and abs(slack) < 1e-4) or (value == 0 and slack > 0)
    assert abs(gradient[2]) < 1e-4
    assert (curve[:2] == 0).any()


def test_the_minimum_of_a_cubic_polynomial_is_found() -> None:
    """Against 2001 points of [0, 1]; the gradients that the function takes are per unit of log T, 8 to a cell."""
    v0, v1, g0, g1 = np.random.default_rng(0).standard_normal((4, 300)) * [[1], [1], [3], [3]]
    found = _cubic_minimum(v0, v1, 8 * g0, 8 * g1)
    c2, c3 = 3 * (v1 - v0) - 2 * g0 - g1, 2 * (v0 - v1) + g0 + g1

    def value(t: np.ndarray) -> np.ndarray:
        return v0 + t * (g0 + t * (c2 + t * c3))

    grid = value(np.linspace(0, 1, 2001)[:, None]).min(0)
    assert ((found >= 0) & (found <= 1)).all()
    assert (value(found) <= grid + 1e-12).all()
    np.testing.assert_allclose(value(found), grid, atol=1e-5)
    flat = np.zeros(1)
    assert 0 <= _cubic_minimum(flat, flat, flat, flat)[0] <= 1
