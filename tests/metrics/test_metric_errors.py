"""What metrics refuse, in which words, and the number of bins where none is given."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from poise import metrics
from poise.errors import InvalidOptionError
from poise.metrics import Sample, estimate
from poise.metrics.binning import assign, edges, equal_mass, equal_width, mass_positions
from poise.metrics.calibration import (
    adaptive_ece,
    classwise_ece,
    ece,
    mce,
    sce,
    weighted_adaptive_ece,
    weighted_ece,
    weighted_mce,
    weighted_sce,
)
from poise.metrics.floor import ece_floor, weighted_ece_floor
from poise.metrics.sample import checked_count, checked_labels, checked_probs, checked_top, in_top
from poise.metrics.scoring import top_k

NOT_PROBS = (
    "The rows are not probabilities: entries lie in [0, 1] and each row sums to 1. "
    "Apply a softmax to logits; divide percentages by 100."
)
NO_INDEX = "Labels are class indices. Give whole numbers from 0."
NOT_IN_RANGE = "Some confidences are not in [0, 1]. Divide percentages by 100."
VECTORS = "Give two vectors of the same length, at least 1."
REFUSED: list[tuple[Callable[[], object], str]] = [
    (lambda: checked_probs([0.5, 0.5], [0]), "Probabilities of shape (2,) were given. Give [images, classes]."),
    (lambda: checked_probs([[]], [0]), "Probabilities of shape (1, 0) were given. Give [images, classes]."),
    (lambda: checked_probs([[np.nan, 1.0]], [0]), "Some probabilities are not finite. Leave failed images out."),
    (lambda: checked_probs([[np.inf, 0.0]], [0]), "Some probabilities are not finite. Leave failed images out."),
    (lambda: checked_probs([[0.5, 0.51]], [0]), NOT_PROBS),
    (lambda: checked_probs([[0.5, 0.49]], [0]), NOT_PROBS),
    (lambda: checked_probs([[-0.1, 1.1]], [0]), NOT_PROBS),
    (lambda: checked_probs([[-1e-9, 1.0]], [0]), NOT_PROBS),
    (lambda: checked_labels([0.5], 1, 2), NO_INDEX),
    (lambda: checked_labels([0, 1], 1, 2), "2 labels were given for 1 images. Give one label per image."),
    (lambda: checked_labels([[0]], 1, 2), "1 labels were given for 1 images. Give one label per image."),
    (lambda: checked_labels([0, 2], 2, 2), "Labels run from 0 to 2. For 2 classes they lie in 0..1."),
    (lambda: checked_labels([-1, 1], 2, 2), "Labels run from -1 to 1. For 2 classes they lie in 0..1."),
    (
        lambda: checked_top([0.5], [True, False]),
        f"Confidences of shape (1,) and outcomes of shape (2,) were given. {VECTORS}",
    ),
    (lambda: checked_top([], []), f"Confidences of shape (0,) and outcomes of shape (0,) were given. {VECTORS}"),
    (
        lambda: checked_top([[0.5]], [[True]]),
        f"Confidences of shape (1, 1) and outcomes of shape (1, 1) were given. {VECTORS}",
    ),
    (lambda: checked_top([-0.1], [True]), NOT_IN_RANGE),
    (lambda: checked_top([1.1], [True]), NOT_IN_RANGE),
    (lambda: checked_top([np.nan], [True]), NOT_IN_RANGE),
    (lambda: checked_top([0.5], [2]), "Outcomes other than true and false were given. Give prediction == label."),
    (lambda: checked_count("bins", 0), "bins = 0 was given. Give a whole number of at least 1."),
    (lambda: checked_count("bins", 1.5), "bins = 1.5 was given. Give a whole number of at least 1."),  # type: ignore[arg-type]
    (lambda: in_top([[1.0]], [0], k=0), "k = 0 was given. Give a whole number of at least 1."),
    (lambda: edges(0), "bins = 0 was given. Give a whole number of at least 1."),
    (lambda: mass_positions(3, 0), "bins = 0 was given. Give a whole number of at least 1."),
    (lambda: classwise_ece([[1.0]], [0], 0), "bins = 0 was given. Give a whole number of at least 1."),
    (
        lambda: list(metrics.bootstrap.resampled_counts(3, 0)),
        "resamples = 0 was given. Give a whole number of at least 1.",
    ),
    (
        lambda: estimate([Sample.of_top([0.5], [True]), Sample.of_top([0.5, 0.6], [True, True])]),
        "Samples of different lengths were given. Give the same images for every seed.",
    ),
    (lambda: estimate([]), "Samples of different lengths were given. Give the same images for every seed."),
    (
        lambda: metrics.get("nll").value(Sample.of_top([0.5], [True])),
        "The sample does not contain what the metric needs. "
        "Use Sample.of(probs, labels), or give the part by its name.",
    ),
    (
        lambda: metrics.get("nll").on_counts(Sample.of_top([0.5], [True])),
        "The metric 'nll' needs all probabilities and the labels, which the sample does not contain. "
        "Available here: accuracy, ece, ece_floor, gap, aece, mce, aurc, auroc.",
    ),
    (
        lambda: metrics.get("answered_error").on_counts(
            Sample(np.array([0.5]), np.array([True]), answered=np.array([False]))
        ),
        "The metric 'answered_error' needs at least one answered image, which the sample does not contain. "
        "Available here: accuracy, ece, ece_floor, gap, aece, mce, aurc, auroc, answered.",
    ),
]


@pytest.mark.parametrize("at", range(len(REFUSED)))
def test_what_is_refused_and_in_which_words(at: int) -> None:
    refused, text = REFUSED[at]
    with pytest.raises(InvalidOptionError) as problem:
        refused()
    assert str(problem.value) == text


def test_what_is_just_accepted() -> None:
    table, labels = checked_probs([[0.5, 0.5049], [1.004, 0.0]], [1.0, 0.0])  # type: ignore[list-item]
    assert table.max() == 1  # entries above 1 by rounding are cut
    assert (table.dtype, labels.dtype) == (np.float64, np.int64)
    assert checked_labels(np.array([0, 1], dtype=np.uint8), 2, 2).dtype == np.int64
    assert checked_labels([], 0, 3).tolist() == []
    values, hits = checked_top([0, 1], [0, 1])
    assert (values.dtype, hits.dtype) == (np.float64, bool)
    assert checked_count("bins", 1) == 1
    assert isinstance(checked_count("bins", 2.0), int)  # type: ignore[arg-type]
    six = np.full((1, 6), 1 / 6)
    assert in_top(six, [4]).all()  # of tied classes the first rank higher: five of them by default
    assert not in_top(six, [5]).any()
    assert (top_k(six, [4]), top_k(six, [5])) == (1, 0)
    assert Sample.of(six, [5]).top5.tolist() == [False]
    table = np.array([[0.5, 0.1, 0.1, 0.1, 0.1, 0.1], [0.4, 0.2, 0.1, 0.1, 0.1, 0.1]])
    assert in_top(table, [5, 2], k=3).tolist() == [False, True]  # ties of one image don't count for another
    assert in_top(table, [2, 5], k=3).tolist() == [True, False]


def test_twenty_bins_where_none_are_given() -> None:
    rng = np.random.default_rng(0)
    confidence, correct = 0.2 + 0.7 * rng.random(400), rng.random(400) < 0.5
    probs = np.stack([confidence, 1 - confidence], 1)
    labels = rng.integers(0, 2, 400)
    counts = rng.integers(0, 3, (2, 400)).astype(np.float64)
    for function, inputs in (
        (ece, (confidence, correct)),
        (mce, (confidence, correct)),
        (adaptive_ece, (confidence, correct)),
        (sce, (probs, labels)),
        (classwise_ece, (probs, labels)),
        (ece_floor, (confidence,)),
        (assign, (confidence,)),
    ):
        np.testing.assert_array_equal(function(*inputs), function(*inputs, 20))
        assert not np.array_equal(function(*inputs, 20), function(*inputs, 21))
    for weighted, inputs in (
        (weighted_ece, (confidence, correct)),
        (weighted_mce, (confidence, correct)),
        (weighted_adaptive_ece, (confidence, correct)),
        (weighted_sce, (probs, labels)),
        (weighted_ece_floor, (confidence,)),
    ):
        np.testing.assert_array_equal(weighted(*inputs)(counts), weighted(*inputs, 20)(counts))
        assert not np.array_equal(weighted(*inputs, 20)(counts), weighted(*inputs, 21)(counts))
    assert len(edges()) == len(mass_positions(7)) == 21
    assert len(equal_width(confidence, correct)) == len(equal_mass(confidence, correct)) == 20
