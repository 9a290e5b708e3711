"""What calibrators, scores and certificates refuse, and in which words."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from poise.calibration import Calibrator, Curve, calibrator_from, certify, upper_bound
from poise.calibration.certify import images_for_error
from poise.calibration.conformal import class_quantiles, images_for_coverage, quantile, scores
from poise.calibration.levels import exact_level
from poise.errors import InvalidOptionError

LEVEL = "Give a number between 0 and 1, such as 0.9 or 0.05."
PROBS = [[0.5, 0.5], [0.2, 0.8]]
RANDOM = "APS and RAPS need random numbers u in [0, 1], one per image. Draw 2 numbers from a seeded generator."
BOUND = "Numbers of errors outside of 0 to the number of images were given. Give counts of the same images."
PARAMETERS = "does not have exactly its parameters."
REFUSED: list[tuple[Callable[[], object], str]] = [
    (
        lambda: Calibrator((Curve(1.0, 0.0),)),
        "temperature = 0.0 was given to a curve of a calibrator. Give a number from 0.006 to 150.",
    ),
    (
        lambda: Calibrator((Curve(1.0, b=-1.0),)),
        "b = -1.0 was given to a curve of a calibrator. Give a number from 0 to 10000.",
    ),
    (
        lambda: Calibrator((Curve(0.5), Curve(0.4))),
        "A calibrator with 2 curves was given, or their weights do not add up to 1. Give 1 to 10000 curves.",
    ),
    (
        lambda: calibrator_from({"name": "isotonic" * 9}),
        "No calibrator has the name 'isotonicisotonicisotonicisotonicisotonic'. Known: curves, temperature, beta.",
    ),
    (lambda: calibrator_from(None), "No calibrator has the name 'None'. Known: curves, temperature, beta."),  # type: ignore[arg-type]
    (
        lambda: calibrator_from({"name": "temperature"}),
        f"The calibrator 'temperature' {PARAMETERS} Give name, temperature.",
    ),
    (
        lambda: calibrator_from({"name": "beta", "a": 1.0, "b": 1.0, "m": 0.0}),
        f"The calibrator 'beta' {PARAMETERS} Give name, a, b, m, temperature.",
    ),
    (lambda: upper_bound(3, 2, 0.1), BOUND),
    (lambda: upper_bound(-1, 2, 0.1), BOUND),
    (lambda: upper_bound(1, np.inf, 0.1), BOUND),
    (lambda: upper_bound(0, 2, 1.0), f"delta is 1.0. {LEVEL}"),
    (lambda: images_for_error(0.0), f"max_error is 0.0. {LEVEL}"),
    (lambda: images_for_error(0.1, 0), f"delta is 0. {LEVEL}"),
    (lambda: images_for_coverage(1.0), f"coverage is 1.0. {LEVEL}"),
    (lambda: certify([0.5], [True], 0.1, start=0), "start = 0 was given. Give a whole number of at least 1."),
    (
        lambda: certify([0.5], [], 0.1),
        "Confidences of shape (1,) and outcomes of shape (0,) were given. "
        "Give two vectors of the same length, at least 1.",
    ),
    (lambda: exact_level("coverage", True), f"coverage is True. {LEVEL}"),
    (lambda: exact_level("coverage", "0.9"), f"coverage is '0.9'. {LEVEL}"),  # type: ignore[arg-type]
    (lambda: exact_level("coverage", 1), f"coverage is 1. {LEVEL}"),
    (
        lambda: quantile([[0.5]], 0.9),
        "Scores of shape (1, 1) were given, or some are not numbers. Give the scores of the true classes, "
        "one per image.",
    ),
    (
        lambda: quantile([np.nan], 0.9),
        "Scores of shape (1,) were given, or some are not numbers. Give the scores of the true classes, one per image.",
    ),
    (lambda: quantile([0.5], 0.0), f"coverage is 0.0. {LEVEL}"),
    (lambda: class_quantiles([0.5], [3], 2, 0.9), "Labels run from 3 to 3. For 2 classes they lie in 0..1."),
    (
        lambda: scores.get("lac").sets(PROBS, [0.1, 0.2, 0.3]),
        "Quantiles of shape (3,) were given, or some are not numbers. Give one number, or one for each of 2 classes.",
    ),
    (
        lambda: scores.get("lac").sets(PROBS, np.nan),
        "Quantiles of shape () were given, or some are not numbers. Give one number, or one for each of 2 classes.",
    ),
    (lambda: scores.get("raps").sets(PROBS, 0.9), RANDOM),
    (lambda: scores.get("aps").of_labels(PROBS, [0, 1], [0.5, 1.5]), RANDOM),
    (lambda: scores.get("aps").of_labels(PROBS, [0, 1], [0.5, -0.5]), RANDOM),
    (lambda: scores.get("aps").of_labels(PROBS, [0, 1], [0.5]), RANDOM),
    (
        lambda: scores.get("lac").of_labels([0.5], [0]),
        "Probabilities of shape (1,) were given. Give [images, classes].",
    ),
]


@pytest.mark.parametrize("at", range(len(REFUSED)))
def test_what_is_refused_and_in_which_words(at: int) -> None:
    refused, text = REFUSED[at]
    with pytest.raises(InvalidOptionError) as problem:
        refused()
    assert str(problem.value) == text


def test_what_is_just_accepted() -> None:
    assert Calibrator((Curve(1.0, 0.006, 0.0, 1e4, -1e4),)).curves[0].b == 1e4
    for u in ([0.0, 1.0], [1, 0]):
        assert scores.get("aps").of_labels(PROBS, [0, 1], u).shape == (2,)
    assert upper_bound(2, 2, 0.1) == 1
    assert exact_level("coverage", np.float32(0.5)) == 0.5
