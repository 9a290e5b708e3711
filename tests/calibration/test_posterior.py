"""The fitted calibrator: equal to a plain quadrature, harmless on calibrated models, and able to find what is wrong."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.numpy import load_file
from scipy import special

from poise.calibration import Calibrator, Curve, calibrator_from, fit_calibrator, held_out
from poise.calibration.posterior import PRIOR, ImageTable, Prior
from poise.errors import InvalidOptionError
from tests.oracles import calibration as oracle


def world(
    images: int, classes: int, truth: Curve, generator: np.random.Generator
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return given probabilities, labels, and the chance that each top label is right."""
    spread = generator.uniform(1, 5, (images, 1))
    probs = np.asarray(special.softmax(generator.standard_normal((images, classes)) * spread, axis=1))
    right = Calibrator((truth,)).apply(probs)
    labels = (np.cumsum(right, axis=1) < generator.random((images, 1))).sum(1).clip(max=classes - 1)
    return probs, labels, right.max(1)


def loss(right: np.ndarray, stated: np.ndarray) -> float:
    """Expected log-loss of the top label."""
    stated = np.clip(stated, 1e-6, 1 - 1e-6)
    return float(-(right * np.log(stated) + (1 - right) * np.log(1 - stated)).mean())


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("sharper", [1.0, 3.0])
def test_the_mean_equals_a_plain_quadrature(seed: int, sharper: float) -> None:
    generator = np.random.default_rng(seed)
    probs, labels, _ = world(6, 3, Curve(1.0, sharper), generator)
    tests = [0.55, 0.7, 0.9, 0.99]
    expected = oracle.posterior_mean(probs.tolist(), labels.tolist(), PRIOR.unchanged, PRIOR.scales, tests)
    found = fit_calibrator(probs, labels).calibrator.apply([[c, 1 - c] for c in tests]).max(1)
    np.testing.assert_allclose(found, expected, atol=0.01)


def test_the_likelihood_equals_a_plain_loop() -> None:
    probs, labels, _ = world(9, 4, Curve(1.0), np.random.default_rng(0))
    images = ImageTable(probs, labels)
    for t, m, b in ((1.0, 0.0, 1.0), (2.0, -0.5, 0.7), (0.6, 1.0, 1.5)):
        total = 0.0
        for row, y in zip(probs.tolist(), labels.tolist(), strict=True):
            scaled, top = oracle.temperature(row, t), row.index(max(row))
            q = oracle.curve(scaled[top], b, b, m)
            share = 0.95 * scaled[y] / (1 - scaled[top]) + 0.05 / 3
            total += np.log(q if y == top else (1 - q) * share)
        found = images.log_likelihood(t, np.array([m]), np.array([b]), 1000.0)
        np.testing.assert_allclose(found, total, rtol=1e-5)


def added_loss(images: int, classes: int, draws: int) -> float:
    """Return how much the expected log-loss of a calibrated model rises, on average."""
    generator = np.random.default_rng([images, classes])
    tests, _, right = world(300, classes, Curve(1.0), generator)
    before, after = loss(right, tests.max(1)), []
    for _ in range(draws):
        probs, labels, _ = world(images, classes, Curve(1.0), generator)
        after.append(loss(right, fit_calibrator(probs, labels).calibrator.apply(tests).max(1)))
    return float(np.mean(after)) - before


@pytest.mark.parametrize("classes", [10, 100])
@pytest.mark.parametrize("images", [10, 25, 50, 100])
def test_a_calibrated_model_is_left_alone(images: int, classes: int) -> None:
    """Over 504 draws in all, the expected log-loss rises by at most 0.003 nats."""
    assert added_loss(images, classes, 63) <= 0.003


@pytest.mark.slow
@pytest.mark.parametrize("images", [10, 25, 50, 100])
def test_a_calibrated_model_is_left_alone_in_many_draws(images: int) -> None:
    """Few draws decide on the mean: with 10 labels, one of 900 cost 0.6 nats."""
    assert np.mean([added_loss(images, classes, 500) for classes in (10, 100)]) <= 0.003


@pytest.mark.data
@pytest.mark.parametrize("images", [10, 25, 50, 100])
def test_clip_is_left_alone(images: int, data_root: Path) -> None:
    """Stored features of a pretrained model, which is calibrated as it is: the mean log-loss of other images."""
    stored = load_file(data_root / "clip-features" / "imagenet_vit_b32.safetensors")
    few = np.random.default_rng(0).permutation(1000)[:200]  # of the labels, and of their images
    chosen = np.isin(stored["label"], few)
    classes = {label: at for at, label in enumerate(sorted(few.tolist()))}
    text, image = (stored[name].astype(np.float64) for name in ("text", "image"))
    probs = special.softmax(100 * image[chosen] @ text[sorted(few.tolist())].T, axis=1)
    labels = np.array([classes[label] for label in stored["label"][chosen].tolist()])
    right, before, after = probs.argmax(1) == labels, [], []
    for seed in range(60):
        order = np.random.default_rng([images, seed]).permutation(len(labels))
        given, rest = order[:images], order[images:]
        found = fit_calibrator(probs[given], labels[given]).calibrator.apply(probs[rest])
        before.append(loss(right[rest].astype(float), probs[rest].max(1)))
        after.append(loss(right[rest].astype(float), found.max(1)))
    assert np.mean(after) <= np.mean(before) + 0.003


@pytest.mark.parametrize(
    "truth", [Curve(1.0, 3.0), Curve(1.0, 0.4), Curve(1.0, m=-2.0), Curve(1.0, 1.5, 0.7, 0.7, -1.0)]
)
def test_what_is_wrong_is_found(truth: Curve) -> None:
    generator = np.random.default_rng(1)
    tests, _, right = world(2000, 5, truth, generator)
    least, before = loss(right, right), loss(right, tests.max(1))
    for images, left in ((25, 0.7), (200, 0.2), (2000, 0.04)):
        probs, labels, _ = world(images, 5, truth, generator)
        fit = fit_calibrator(probs, labels)
        after = loss(right, fit.calibrator.apply(tests).max(1))
        assert after - least < left * (before - least)
    assert fit.unchanged < 1e-6
    for name, value in (("temperature", truth.temperature), ("slope", truth.a), ("shift", truth.m)):
        low, high = fit.intervals[name].low, fit.intervals[name].high
        assert low - (high - low) / 2 < value < high + (high - low) / 2


@settings(max_examples=30)
@given(st.integers(0, 10**6), st.integers(1, 6), st.integers(1, 12))
def test_any_images_can_be_fitted(seed: int, classes: int, images: int) -> None:
    generator = np.random.default_rng(seed)
    probs = generator.dirichlet(np.full(classes, generator.uniform(0.01, 3)), images)
    labels = generator.integers(0, classes, images)
    fit = fit_calibrator(probs, labels)
    out = fit.calibrator.apply(probs)
    assert (out.argmax(1) == probs.argmax(1)).all()
    np.testing.assert_allclose(out.sum(1), 1, atol=1e-9)
    assert 0 <= fit.unchanged <= 1
    assert calibrator_from(fit.calibrator.to_dict()) == fit.calibrator
    for interval in fit.intervals.values():
        assert interval.low <= interval.value <= interval.high


@pytest.mark.parametrize(
    ("probs", "labels"),
    [
        ([[0.7, 0.3]], [0]),
        ([[0.7, 0.3]], [1]),
        ([[1.0]] * 3, [0] * 3),
        ([[0.6, 0.4]] * 20, [0] * 20),
        ([[0.6, 0.4]] * 200, [1] * 200),
        ([[0.5, 0.5]] * 6, [0, 1] * 3),
        ([[1.0, 0.0]] * 300, [1] * 300),
        ([[0.34, 0.33, 0.33]] * 3000, [0] * 3000),
    ],
)
def test_edges(probs: list, labels: list) -> None:
    fit = fit_calibrator(probs, labels)
    out = fit.calibrator.apply(probs)
    assert (out.argmax(1) == 0).all()
    assert np.isfinite(out).all()


def test_a_prior_without_a_share_of_unchanged_models() -> None:
    probs, labels, _ = world(30, 4, Curve(1.0), np.random.default_rng(3))
    never, always = (fit_calibrator(probs, labels, prior=Prior(share)) for share in (0.0, 1 - 1e-12))
    assert never.unchanged < 1e-12
    np.testing.assert_allclose(always.calibrator.apply(probs), probs, atol=1e-5)


def test_each_image_is_held_out_of_its_own_fit() -> None:
    probs, labels, _ = world(24, 3, Curve(1.0, 3.0), np.random.default_rng(2))
    found = held_out(probs, labels, folds=24)
    for at in range(24):
        rest = np.arange(24) != at
        expected = fit_calibrator(probs[rest], labels[rest]).calibrator.apply(probs[at : at + 1])[0]
        np.testing.assert_allclose(found[at], expected, atol=1e-9)
    assert held_out(probs, labels).tolist() == held_out(probs, labels, folds=10, seed=0).tolist()
    assert held_out(probs, labels, seed=1).tolist() != held_out(probs, labels).tolist()
    np.testing.assert_array_equal(held_out(probs[:1], labels[:1]), probs[:1])


def test_what_is_refused() -> None:
    for arguments in (([], []), ([[0.5, 0.6]], [0]), ([[0.5, 0.5]], [2])):
        with pytest.raises(InvalidOptionError):
            fit_calibrator(*arguments)
    with pytest.raises(InvalidOptionError):
        held_out([[0.5, 0.5]], [0], folds=0)
