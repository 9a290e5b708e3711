"""The metrics against hand-computed values, the published code's numbers, slow oracles and torchmetrics."""

from __future__ import annotations

import itertools
import json
import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from safetensors.numpy import load_file

from poise import metrics
from poise.errors import InvalidOptionError
from tests.oracles import metrics as oracle

GOLDEN = Path(__file__).parents[1] / "golden"
CASES = json.loads((GOLDEN / "metrics.json").read_text())


def random_probs(seed: int, images: int = 400, classes: int = 7, sharp: float = 3.0) -> tuple[np.ndarray, np.ndarray]:
    generator = np.random.default_rng(seed)
    logits = sharp * generator.standard_normal((images, classes))
    probs = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    return probs, (np.cumsum(probs, 1) < generator.random((images, 1))).sum(1).clip(max=classes - 1)


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"n{case['n']}")
def test_equals_the_published_code(case: dict[str, float]) -> None:
    tensors = load_file(GOLDEN / "metrics.safetensors")
    probs, labels = tensors[f"{case['n']}/probs"], tensors[f"{case['n']}/labels"]
    top = metrics.Sample.of(probs, labels)
    assert metrics.accuracy(probs, labels) == pytest.approx(case["accuracy"], abs=1e-12)
    assert metrics.ece(top.confidence, top.correct) == pytest.approx(case["ece"], abs=1e-12)
    assert metrics.sce(probs, labels) == pytest.approx(case["sce"], abs=1e-12)
    assert metrics.adaptive_ece(top.confidence, top.correct) == pytest.approx(case["aece"], abs=1e-12)
    assert metrics.mce(top.confidence, top.correct) == pytest.approx(case["mce"], abs=1e-12)


def test_ece_and_mce_by_hand() -> None:
    confidence = [0.92, 0.94, 0.62, 0.63, 0.64, 0.33]
    correct = [True, False, True, True, False, False]
    # (0.90, 0.95]: n 2, acc 1/2, conf 0.93; (0.60, 0.65]: n 3, acc 2/3, conf 0.63; (0.30, 0.35]: n 1, acc 0, conf 0.33
    by_hand = 2 / 6 * 0.43 + 3 / 6 * (2 / 3 - 0.63) + 1 / 6 * 0.33
    assert metrics.ece(confidence, correct) == pytest.approx(by_hand, abs=1e-15)
    assert metrics.mce(confidence, correct) == pytest.approx(0.43, abs=1e-15)
    bins = metrics.equal_width(confidence, correct)
    filled = bins.count > 0
    assert bins.count[filled].tolist() == [1, 3, 2]
    assert bins.accuracy[filled] == pytest.approx([0, 2 / 3, 0.5])
    assert bins.confidence[filled] == pytest.approx([0.33, 0.63, 0.93])
    assert (bins.lower[0], bins.upper[0], bins.count[0]) == (0, 0.05, 0)
    assert np.isnan([bins.accuracy[0], bins.confidence[0]]).all()


def test_sce_by_hand() -> None:
    probs, labels = [[0.62, 0.38], [0.64, 0.36]], [0, 1]
    # class 0: one bin, conf sum 1.26, hits 1; class 1: (0.35, 0.40], conf sum 0.74, hits 1
    assert metrics.sce(probs, labels) == pytest.approx((0.26 / 2 + 0.26 / 2) / 2, abs=1e-15)
    assert metrics.classwise_ece(probs, labels).tolist() == pytest.approx([0.13, 0.13], abs=1e-15)


def test_adaptive_ece_by_hand() -> None:
    confidence, correct = [0.3, 0.4, 0.8, 0.9], [False, True, True, True]
    # two bins, edges at ranks 0, 2, 3: [0.3, 0.8] and (0.8, 0.9]
    assert metrics.adaptive_ece(confidence, correct, bins=2) == pytest.approx((0.5 + 0.1) / 4, abs=1e-15)
    tied = metrics.equal_mass([0.5, 0.5, 0.5, 0.9], [1, 0, 0, 1], bins=4)
    assert tied.upper.tolist() == [0.9]
    assert tied.count.tolist() == [4]


def test_adaptive_ece_of_one_confidence_is_its_gap() -> None:
    assert metrics.adaptive_ece([0.9] * 10, [True] * 4 + [False] * 6) == pytest.approx(0.5)


def test_scores_by_hand() -> None:
    probs, labels = [[0.7, 0.2, 0.1], [0.1, 0.1, 0.8]], [0, 1]
    assert metrics.nll(probs, labels) == pytest.approx(-(math.log(0.7) + math.log(0.1)) / 2)
    assert metrics.brier(probs, labels) == pytest.approx((0.09 + 0.04 + 0.01 + 0.01 + 0.81 + 0.64) / 2)
    assert metrics.nll([[1.0, 0.0]], [1]) == pytest.approx(-math.log(metrics.NLL_FLOOR))
    assert metrics.nll([[1.0, 0.0]], [0]) == 0


def test_aurc_ties_are_the_mean_over_all_orders() -> None:
    confidence, correct = np.array([0.9, 0.5, 0.5, 0.5, 0.2]), np.array([True, False, True, True, False])
    areas = []
    for order in itertools.permutations([1, 2, 3]):
        nudged = confidence.copy()
        nudged[list(order)] -= np.array([1, 2, 3]) * 1e-6
        areas.append(oracle.aurc(nudged, correct))
    assert metrics.aurc(confidence, correct) == pytest.approx(np.mean(areas), abs=1e-14)
    curve = metrics.risk_coverage(confidence, correct)
    assert curve.coverage.tolist() == pytest.approx([0.2, 0.4, 0.6, 0.8, 1.0])
    assert curve.risk[-1] == pytest.approx(2 / 5)


def test_top_k() -> None:
    probs = np.array([[0.4, 0.3, 0.2, 0.1], [0.1, 0.2, 0.3, 0.4]])
    assert metrics.top_k(probs, [1, 0], 2) == 0.5
    assert metrics.top_k(probs, [3, 0], 5) == 1.0  # fewer classes than k
    assert metrics.top_k([[0.25] * 4], [1], 2) == 1.0  # ties: the first classes come first
    assert metrics.top_k([[0.25] * 4], [2], 2) == 0.0
    assert metrics.accuracy([[0.5, 0.5]], [0]) == 1.0


@pytest.mark.parametrize("seed", range(4))
def test_equals_the_oracles(seed: int) -> None:
    probs, labels = random_probs(seed)
    top = metrics.Sample.of(probs, labels)
    ece, mce = oracle.ece_and_mce(top.confidence.tolist(), top.correct.tolist())
    assert metrics.ece(top.confidence, top.correct) == pytest.approx(ece, abs=1e-12)
    assert metrics.mce(top.confidence, top.correct) == pytest.approx(mce, abs=1e-12)
    assert metrics.sce(probs, labels) == pytest.approx(oracle.sce(probs.tolist(), labels.tolist()), abs=1e-12)
    adaptive = oracle.adaptive_ece(top.confidence.tolist(), top.correct.tolist())
    assert metrics.adaptive_ece(top.confidence, top.correct) == pytest.approx(adaptive, abs=1e-12)
    assert metrics.aurc(top.confidence, top.correct) == pytest.approx(oracle.aurc(top.confidence, top.correct))


@pytest.mark.parametrize("count", [1, 2, 3, 19, 20, 21, 41, 60, 101, 500])
@pytest.mark.parametrize("levels", [2, 5, 40])
def test_ties_equal_the_oracles(count: int, levels: int) -> None:
    generator = np.random.default_rng(count * levels)
    confidence = np.round(generator.random(count) * levels) / levels
    confidence = confidence.astype(np.float32).astype(np.float64)  # as stored probabilities are
    correct = generator.random(count) < confidence
    ece, mce = oracle.ece_and_mce(confidence.tolist(), correct.tolist())
    assert metrics.ece(confidence, correct) == pytest.approx(ece, abs=1e-12)
    assert metrics.mce(confidence, correct) == pytest.approx(mce, abs=1e-12)
    adaptive = oracle.adaptive_ece(confidence.tolist(), correct.tolist())
    assert metrics.adaptive_ece(confidence, correct) == pytest.approx(adaptive, abs=1e-12)


def test_equals_torchmetrics_away_from_the_edges() -> None:
    torch = pytest.importorskip("torch")
    classification = pytest.importorskip("torchmetrics.classification")
    probs, labels = random_probs(5)
    top = metrics.Sample.of(probs, labels)
    for bins, norm, ours in ((20, "l1", metrics.ece), (15, "l1", metrics.ece), (20, "max", metrics.mce)):
        metric = classification.MulticlassCalibrationError(probs.shape[1], n_bins=bins, norm=norm)
        theirs = metric(torch.from_numpy(probs), torch.from_numpy(labels))
        assert ours(top.confidence, top.correct, bins) == pytest.approx(float(theirs), abs=1e-6)


def test_torchmetrics_differs_at_confidence_one() -> None:
    """torchmetrics 1.9 puts 1.0 into a bin of its own; here it shares the last bin with 0.96, so the gaps cancel."""
    torch = pytest.importorskip("torch")
    classification = pytest.importorskip("torchmetrics.classification")
    probs, labels = np.array([[1.0, 0.0], [0.96, 0.04]]), np.array([1, 0])
    theirs = classification.MulticlassCalibrationError(2, n_bins=20)(torch.from_numpy(probs), torch.from_numpy(labels))
    top = metrics.Sample.of(probs, labels)
    assert metrics.ece(top.confidence, top.correct) == pytest.approx(0.98 - 0.5)
    assert float(theirs) == pytest.approx((1.0 + 0.04) / 2, abs=1e-6)


@given(
    arrays.arrays(np.float64, st.integers(1, 60), elements=st.floats(0, 1)),
    st.integers(0, 2**32 - 1),
    st.integers(1, 40),
)
@settings(max_examples=150, deadline=None)
def test_invariants(confidence: np.ndarray, seed: int, bins: int) -> None:
    generator = np.random.default_rng(seed)
    correct = generator.random(len(confidence)) < 0.5
    ece, mce = metrics.ece(confidence, correct, bins), metrics.mce(confidence, correct, bins)
    assert 0 <= ece <= mce + 1e-12
    assert mce <= 1
    assert metrics.ece(confidence, correct, 1) <= ece + 1e-12  # finer bins never lower the error
    assert metrics.equal_width(confidence, correct, bins).count.sum() == len(confidence)
    assert metrics.equal_mass(confidence, correct, bins).count.sum() == len(confidence)
    shuffled = generator.permutation(len(confidence))
    for metric in (metrics.ece, metrics.mce, metrics.adaptive_ece):
        assert metric(confidence[shuffled], correct[shuffled], bins) == pytest.approx(metric(confidence, correct, bins))
    assert metrics.aurc(confidence[shuffled], correct[shuffled]) == pytest.approx(metrics.aurc(confidence, correct))
    assert metrics.ece(correct.astype(float), correct, bins) == 0


@pytest.mark.parametrize(
    ("probs", "labels"),
    [
        ([[0.5, 0.6]], [0]),
        ([[50.0, 50.0]], [0]),
        ([[0.5, float("nan")]], [0]),
        ([[0.5, 0.5]], [2]),
        ([[0.5, 0.5]], [-1]),
        ([[0.5, 0.5]], [0, 1]),
        ([[0.5, 0.5]], [0.5]),
        ([0.5, 0.5], [0]),
        (np.zeros((0, 3)), []),
    ],
)
def test_bad_probabilities_are_refused(probs: object, labels: object) -> None:
    with pytest.raises(InvalidOptionError):
        metrics.accuracy(probs, labels)


@pytest.mark.parametrize(
    ("confidence", "correct", "bins"),
    [([1.2], [1], 20), ([0.5], [1, 0], 20), ([], [], 20), ([0.5], [2], 20), ([float("nan")], [1], 20), ([0.5], [1], 0)],
)
def test_bad_confidences_are_refused(confidence: list[float], correct: list[int], bins: int) -> None:
    with pytest.raises(InvalidOptionError):
        metrics.ece(confidence, correct, bins)
