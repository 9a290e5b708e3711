"""The choice of a calibrator against a plain cross-validation, and at the edges."""

from __future__ import annotations

import numpy as np
import pytest

from poise.calibration import Beta, Temperature, choose, fit_beta, fit_temperature
from poise.calibration.choice import FEWEST, _held_out
from poise.errors import InvalidOptionError


def world(seed: int, images: int, curve: tuple[float, float, float] | None = None) -> tuple[np.ndarray, np.ndarray]:
    """Return probabilities of 5 classes; right with the stated probability, or by ``curve`` of the top label."""
    generator = np.random.default_rng(seed)
    logits = 2 * generator.standard_normal((images, 5))
    probs = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    labels = (np.cumsum(probs, 1) < generator.random((images, 1))).sum(1).clip(max=4)
    if curve is None:
        return probs, labels
    right = generator.random(images) < Beta(*curve).apply(probs).max(1)
    top = probs.argmax(1)
    return probs, np.where(right, top, (top + generator.integers(1, 5, images)) % 5)


def plain_losses(probs: np.ndarray, labels: np.ndarray, fit: object, held: np.ndarray) -> np.ndarray:
    """Fit without each part, and add up the log-loss of its images."""
    total, correct = np.zeros(len(labels)), probs.argmax(1) == labels
    for part in held.astype(bool):
        rest = ~part
        weights = rest.astype(float)
        calibrator = fit(probs, labels, weights)  # type: ignore[operator]
        for row in np.flatnonzero(part):
            q = float(np.clip(calibrator.apply(probs[row : row + 1]).max(), 1e-6, 1 - 1e-6))
            total[row] -= np.log(q if correct[row] else 1 - q)
    return total / held.sum(0)


@pytest.mark.parametrize("images", [2, 3, 7, 40])
def test_losses_equal_a_plain_cross_validation(images: int) -> None:
    probs, labels = world(0, images)
    found = choose(probs, labels, repeats=2, seed=3, resamples=20)
    held = _held_out(probs.argmax(1) == labels, labels, min(5, images), 2, 3)
    temperature, beta = (plain_losses(probs, labels, fit, held) for fit in (fit_temperature, fit_beta))
    # The calibrators keep the top label's confidence above that of the others, which matters only below 1 / C.
    np.testing.assert_allclose(found.losses["temperature"], temperature.mean(), rtol=1e-4)
    np.testing.assert_allclose(found.losses["beta"], beta.mean(), rtol=1e-2)
    np.testing.assert_allclose(found.difference, found.losses["temperature"] - found.losses["beta"], atol=1e-12)
    spread = (temperature - beta).std(ddof=1) / np.sqrt(images)
    np.testing.assert_allclose(found.standard_error, spread, rtol=0.05, atol=2e-3)
    clearly = images >= FEWEST and found.difference > 0
    assert (found.calibrator.name == "beta") == clearly


def test_parts_cover_every_image_once_and_spread_the_wrong_ones() -> None:
    correct, labels = np.arange(23) >= 5, np.arange(23) % 3
    held = _held_out(correct, labels, 5, 4, 0).reshape(4, 5, 23)
    assert (held.sum(1) == 1).all()
    assert (held[:, :, ~correct].sum(2) == 1).all()
    assert (held[0] != held[1]).any()


def test_a_curve_is_found_and_a_temperature_is_enough() -> None:
    assert isinstance(choose(*world(1, 1500, (1.0, 1.0, -2.0)), resamples=20).calibrator, Beta)
    found = [choose(*world(seed, 300), resamples=1) for seed in range(20)]  # a temperature of 1 is the truth
    assert all(isinstance(one.calibrator, Beta) == (one.difference > 0) for one in found)
    assert sum(isinstance(one.calibrator, Temperature) for one in found) >= 8


@pytest.mark.parametrize("curve", [None, (1.0, 1.0, -2.0)])
def test_the_calibrator_is_that_of_all_images_and_its_interval_holds_it(curve: tuple | None) -> None:
    probs, labels = world(3, 600, curve)
    found = choose(probs, labels, resamples=200)
    fit = fit_temperature if found.calibrator.name == "temperature" else fit_beta
    assert found.calibrator == fit(probs, labels)
    for name, interval in found.intervals.items():
        assert interval.low < interval.value < interval.high
        assert interval.value == getattr(found.calibrator, name)
    assert found.calibrator.name in found.reason
    assert choose(probs, labels, resamples=200) == found


@pytest.mark.parametrize(
    ("probs", "labels"),
    [
        ([[0.7, 0.3]], [0]),
        ([[0.7, 0.3]], [1]),
        ([[1.0]] * 3, [0] * 3),
        ([[0.6, 0.4]] * 20, [0] * 20),
        ([[0.6, 0.4]] * 20, [1] * 20),
        ([[0.5, 0.5]] * 6, [0, 1] * 3),
        ([[1.0, 0.0]] * 6, [0, 1] * 3),
    ],
)
def test_edges(probs: list, labels: list) -> None:
    found = choose(probs, labels, resamples=20)
    assert (found.calibrator.apply(probs).argmax(1) == 0).all()
    assert np.isfinite(list(found.losses.values())).all()


def test_what_is_refused() -> None:
    for options in ({"folds": 0}, {"repeats": 0}, {"resamples": 0}):
        with pytest.raises(InvalidOptionError):
            choose([[0.7, 0.3]], [0], **options)
    with pytest.raises(InvalidOptionError):
        choose([], [])
