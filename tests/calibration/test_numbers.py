"""Calibration of given probabilities and features, in Python."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

import poise
from poise.calibration import (
    Calibration,
    calibrate_probabilities,
    certify,
    fit_calibrator,
    probabilities_of_features,
    quantile,
)
from poise.errors import InvalidCalibrationError, InvalidLabelsError, InvalidOptionError, PoiseError

LABELS = ("cat", "dog", "fox")


def world(seed: int, images: int = 200, classes: int = 3) -> tuple[np.ndarray, np.ndarray]:
    """Return sharpened probabilities, and classes drawn from the ones before."""
    random = np.random.default_rng(seed)
    right = random.dirichlet(np.full(classes, 0.3), images)
    truth = np.array([random.choice(classes, p=row) for row in right])
    sharp = np.maximum(right, 1e-9) ** 2
    return sharp / sharp.sum(1, keepdims=True), truth


def test_a_calibration_of_arrays_says_what_its_parts_say_and_survives_its_file(tmp_path):
    probs, truth = world(0)
    others, _ = world(1)
    made = calibrate_probabilities(probs, truth, labels=LABELS, coverage=0.9, max_error=[0.3])
    made.save(tmp_path / "c.json")
    for calibration in (made, Calibration.load(tmp_path / "c.json")):
        assert calibration.conditions.given
        assert calibration.conditions.labels == LABELS
        assert len(calibration) == 200
        assert "given probabilities" in calibration.summary()
        found = calibration.apply(others, coverage=0.9, max_error=0.3)
        assert_allclose(found.probabilities, fit_calibrator(probs, truth).calibrator.apply(others), atol=1e-12)
        scores = -np.log(probs[np.arange(200), truth])
        expected = -np.log(others) <= quantile(scores, 0.9)
        expected[np.arange(200), others.argmax(1)] |= ~expected.any(1)
        assert_array_equal(found.sets, expected)
        threshold = certify(probs.max(1), probs.argmax(1) == truth, 0.3).threshold
        assert found.threshold == threshold
        assert_array_equal(found.answered, others.max(1) >= threshold)
        assert (calibration.apply(others).sets, calibration.apply(others).answered) == (None, None)


def test_promises_hold_for_other_images():
    covered, wrong = [], []
    for seed in range(60):
        probs, truth = world(seed, 2000)
        found = calibrate_probabilities(probs[:100], truth[:100]).apply(probs[100:], coverage=0.9)
        covered.append(found.sets[np.arange(1900), truth[100:]].mean())
        certified = certify(probs[:100].max(1), probs[:100].argmax(1) == truth[:100], 0.3).threshold
        answered = np.zeros(1900, bool) if certified is None else probs[100:].max(1) >= certified
        wrong.append(answered.any() and (probs[100:].argmax(1) != truth[100:])[answered].mean() > 0.3)
    assert np.mean(covered) > 0.88  # four standard errors below 0.9 are 0.884
    assert np.mean(wrong) < 0.17  # 0.05 and four standard errors


def test_rows_in_half_precision_equal_rows_and_impossible_labels(tmp_path):
    probs, truth = world(2)
    half = np.concatenate([probs[:50].astype(np.float16), np.tile([[1.0, 0.0, 0.0]], (50, 1))])
    made = calibrate_probabilities(half, np.concatenate([truth[:50], np.arange(50) % 3]))
    made.save(tmp_path / "c.json")
    assert len(Calibration.load(tmp_path / "c.json")) == 100
    assert made.conditions.labels == ("0", "1", "2")


@pytest.mark.parametrize(
    ("probs", "truth", "said"),
    [
        ([0.5, 0.5], [0], r"shape \(2,\)"),
        (np.zeros((0, 3)), [], r"shape \(0, 3\)"),
        ([[0.5, np.nan]] * 3, [0] * 3, "not finite"),
        ([[0.5, 0.6]] * 3, [0] * 3, "not probabilities"),
        ([[5.0, -4.0]] * 3, [0] * 3, "not probabilities"),
        ([["a", "b"]] * 3, [0] * 3, "not an array of numbers"),
        ([[0.5, 0.5], [1.0]], [0] * 2, "not an array of numbers"),
        ([[0.5 + 1j, 0.5]] * 3, [0] * 3, "not an array of numbers"),
        ([[0.5, 0.5]] * 3, [0, 1], "2 labels were given for 3 images"),
        ([[0.5, 0.5]] * 3, [0, 1, 2], "run from 0 to 2"),
        ([[0.5, 0.5]] * 3, [0, -1, 0], "run from -1 to 0"),
        ([[0.5, 0.5]] * 3, [0, 0.5, 0], "class indices"),
        ([[0.5, 0.5]] * 3, [0, np.nan, 0], "class indices"),
        ([[0.5, 0.5]] * 3, ["cat", "dog", "cat"], "not an array of numbers"),
        ([[1.0]] * 3, [0] * 3, "1 labels for 1 columns"),
        ([[0.5, 0.5]], [0], "1 image is too few"),
    ],
)
def test_arrays_that_are_something_else(probs, truth, said):
    with pytest.raises(PoiseError, match=said):
        calibrate_probabilities(probs, truth)


@pytest.mark.filterwarnings("ignore:.* say little")
def test_labels_levels_and_methods_that_do_not_fit():
    probs, truth = world(3, 30)
    for labels in (["cat", "dog"], ["cat", "cat", "dog"], ["a_b", "a b", "c"], ["cat", "", "dog"]):
        with pytest.raises(InvalidLabelsError):
            calibrate_probabilities(probs, truth, labels=labels)
    with pytest.raises(InvalidCalibrationError, match="30 images are too few"):
        calibrate_probabilities(probs, truth, coverage=0.99)
    with pytest.raises(InvalidOptionError, match="confidence"):
        calibrate_probabilities(probs, truth, confidence=1.5)
    with pytest.warns(UserWarning, match="12 images say little"):
        calibrate_probabilities(probs[:12], truth[:12])
    made = calibrate_probabilities(probs, truth)
    with pytest.raises(InvalidOptionError, match="of 2 labels were given"):
        made.apply([[0.5, 0.5]])
    with pytest.raises(InvalidOptionError, match="not probabilities"):
        made.apply([[3.0, 0.5, 0.1]])
    with pytest.raises(InvalidCalibrationError, match="need 99"):
        made.apply(probs, coverage=0.99)
    with pytest.raises(InvalidCalibrationError, match="no confidence threshold is certain"):
        made.apply(probs, max_error=0.001)
    with pytest.raises(InvalidCalibrationError, match="no method 'tpt'"):
        made.apply(probs, method="tpt")


def test_a_classifier_refuses_a_calibration_of_numbers(tmp_path):
    pytest.importorskip("torch")  # `make other` has none
    made = calibrate_probabilities(*world(4), labels=LABELS)
    made.save(tmp_path / "c.json")
    with pytest.raises(InvalidCalibrationError, match="given as numbers"):
        poise.Classifier(LABELS, "tiny", "zero-shot", device="cpu", calibration=tmp_path / "c.json")
    with pytest.raises(InvalidCalibrationError, match="given as numbers"):
        made.options()


def test_features_give_the_softmax_of_scaled_cosines():
    random = np.random.default_rng(0)
    image, text = random.normal(size=(7, 5)) * 1e200, random.normal(size=(3, 5)) * 1e-200
    rows = []
    for one in image / 1e200:
        cosines = [one @ other / np.sqrt((one @ one) * (other @ other)) for other in text * 1e200]
        powers = np.exp(20 * np.array(cosines))
        rows.append(powers / powers.sum())
    assert_allclose(probabilities_of_features(image, text, 20), rows, rtol=1e-9)


@pytest.mark.parametrize(
    ("image", "text", "scale", "said"),
    [
        ([[1.0, 0.0]], [[1.0, 0.0, 0.0]], 100, "2 dimensions, and text features 3"),
        ([[0.0, 0.0]], [[1.0, 0.0]], 100, "zero or not finite"),
        ([[1.0, np.inf]], [[1.0, 0.0]], 100, "zero or not finite"),
        ([[1.0, 0.0]], [[np.nan, 0.0]], 100, "zero or not finite"),
        ([1.0, 0.0], [[1.0, 0.0]], 100, r"shape \(2,\)"),
        ([[1.0, 0.0]], [[1.0, 0.0]], 0, "scale is 0"),
        ([[1.0, 0.0]], [[1.0, 0.0]], np.nan, "scale is nan"),
        ([["a"]], [[1.0]], 1, "not an array of numbers"),
    ],
)
def test_features_that_are_something_else(image, text, scale, said):
    with pytest.raises(InvalidOptionError, match=said):
        probabilities_of_features(image, text, scale)
