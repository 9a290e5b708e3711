"""Prediction sets against golden numbers, MAPIE and slow oracles, and at the edges."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from safetensors.numpy import load_file

from poise.calibration import class_quantiles, images_for_coverage, quantile, scores
from poise.calibration.conformal import Raps
from poise.errors import InvalidOptionError
from tests.oracles import calibration as oracle

GOLDEN = Path(__file__).parents[1] / "golden"
TENSORS = load_file(GOLDEN / "conformal.safetensors")
CASES = [case for case in json.loads((GOLDEN / "conformal.json").read_text())["cases"] if case["method"] != "selective"]


def random_table(seed: int, images: int, classes: int, dtype: type = np.float64) -> tuple[np.ndarray, np.ndarray]:
    generator = np.random.default_rng(seed)
    probs = generator.dirichlet(np.full(classes, 0.3), images)
    labels = (np.cumsum(probs, 1) < generator.random((images, 1))).sum(1).clip(max=classes - 1)
    return probs.astype(dtype), labels


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["id"])
def test_golden_sets(case: dict) -> None:
    given_tensors = {role: TENSORS[name] for role, name in (case["inputs"] | case["outputs"]).items()}
    probs, labels = given_tensors["cal"], given_tensors["cal_labels"].astype(np.int64)
    few = case["settings"].get("n", len(labels))
    settings = case["settings"]
    score = Raps(settings["lam"], settings["k_reg"]) if "lam" in settings else scores.get(case["method"])
    found = score.of_labels(probs[:few], labels[:few], given_tensors.get("u_cal"))
    q = quantile(found, 1 - settings["alpha"])
    plain = (lambda score: 1 - np.exp(-score)) if case["method"] == "lac" else np.asarray  # golden LAC scores are 1 - p
    if "scores" in given_tensors:
        np.testing.assert_allclose(plain(found), given_tensors["scores"], atol=1e-12)
    np.testing.assert_allclose(q if np.isinf(q) else plain(q), float(case["values"]["q"]), atol=1e-12)
    members, empty = score.sets(given_tensors["test"], q, given_tensors.get("u_test"))
    expected = given_tensors["sets"].astype(bool)
    assert (members[~empty] == expected[~empty]).all()
    assert not expected[empty].any()


@pytest.mark.parametrize("name", scores.names())
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize(("images", "classes"), [(25, 2), (30, 7), (4, 200)])
def test_scores_and_sets_equal_the_oracle(name: str, dtype: type, images: int, classes: int) -> None:
    probs, labels = random_table(1, images, classes, dtype)
    probs[: images // 3] = np.round(probs[: images // 3] * 4) / 4  # ties
    probs[: images // 3, -1] += 1 - probs[: images // 3].sum(1)
    probs[probs.min(1) < 0] = np.eye(classes, dtype=dtype)[-1]
    u = np.random.default_rng(2).random(images)
    score, rows = scores.get(name), probs.astype(np.float64).tolist()
    found = score.of_labels(probs, labels, u)
    slow = [oracle.SCORES[name](row, y, noise) for row, y, noise in zip(rows, labels.tolist(), u.tolist(), strict=True)]
    np.testing.assert_allclose(found, slow, atol=1e-12)
    for limit in (-1.0, 0.3, 0.71, 0.93, 2.0, np.inf):
        members, empty = oracle.sets(name, rows, [limit] * classes, u.tolist())
        got = score.sets(probs, limit, u)
        np.testing.assert_array_equal(got.members, members)
        np.testing.assert_array_equal(got.empty, empty)
    limits = np.random.default_rng(3).uniform(0.2, 1.1, classes)
    np.testing.assert_array_equal(
        score.sets(probs, limits, u).members, oracle.sets(name, rows, limits.tolist(), u.tolist())[0]
    )


@pytest.mark.parametrize("name", scores.names())
def test_chunks_and_threads_change_nothing(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    probs, labels = random_table(4, 500, 150, np.float32)
    u = np.random.default_rng(5).random(500)
    score = scores.get(name)
    whole = score.sets(probs, 0.97, u), score.of_labels(probs, labels, u)
    monkeypatch.setattr("poise.calibration.chunks.CHUNK", 1000)
    monkeypatch.setattr("poise.calibration.chunks.THREADED", 0)
    parts = score.sets(probs, 0.97, u), score.of_labels(probs, labels, u)
    np.testing.assert_array_equal(whole[0].members, parts[0].members)
    np.testing.assert_array_equal(whole[1], parts[1])
    probs[400, 0] = np.nan
    with pytest.raises(InvalidOptionError, match="not finite"):
        score.sets(probs, 0.97, u)


@pytest.mark.parametrize("name", ["lac", "aps"])
@pytest.mark.parametrize("coverage", [0.3, 0.8, 0.9, 0.95])
def test_sets_equal_mapie(name: str, coverage: float) -> None:
    pytest.importorskip("mapie", reason="install the 'test' extra")
    from mapie.classification import SplitConformalClassifier
    from sklearn.base import BaseEstimator, ClassifierMixin

    class Given(ClassifierMixin, BaseEstimator):
        """Returns the probabilities that it gets as features."""

        classes_ = np.arange(8)

        def fit(self, x: np.ndarray, y: np.ndarray) -> Given:
            return self

        def predict_proba(self, x: np.ndarray) -> np.ndarray:
            return x

        def predict(self, x: np.ndarray) -> np.ndarray:
            return x.argmax(1)

        def __sklearn_is_fitted__(self) -> bool:
            return True

    probs, labels = random_table(6, 160, 8)
    labels[:8] = np.arange(8)  # MAPIE needs every class among the labels
    judge = SplitConformalClassifier(Given(), confidence_level=coverage, conformity_score=name, random_state=7)
    judge.conformalize(probs[:100], labels[:100])
    options = {"include_last_label": "randomized"} if name == "aps" else {}
    _, expected = judge.predict_set(probs[100:], conformity_score_params=options)
    u = np.random.RandomState(7).uniform(size=100)  # MAPIE draws the same numbers for calibration and prediction
    score = scores.get(name)
    q = quantile(score.of_labels(probs[:100], labels[:100], u), coverage)
    members, empty = score.sets(probs[100:], q, u[:60])
    np.testing.assert_array_equal(members[~empty], expected[~empty, :, 0])
    assert not expected[empty].any()


@pytest.mark.parametrize("coverage", ["0.5", "0.7", "0.8", "0.9", "0.95", "0.99", "0.123456789"])
def test_quantiles_equal_the_oracle(coverage: str) -> None:
    values = np.random.default_rng(8).random(120).round(2)
    for images in (0, 1, 2, 8, 9, 10, 18, 19, 20, 98, 99, 100, 120):
        expected = oracle.quantile(values[:images].tolist(), coverage)
        assert quantile(values[:images], float(coverage)) == expected
        assert np.isfinite(expected) == (images >= images_for_coverage(float(coverage)))


def test_ranks_are_not_moved_by_rounding() -> None:
    assert 1 - 0.1 - 0.6 != 0.3 != 0.1 + 0.2
    values = np.arange(1.0, 10.0)
    for coverage in (0.3, 0.1 + 0.2, 1 - 0.1 - 0.6):
        assert quantile(values, coverage) == 3.0
    assert [images_for_coverage(c) for c in (0.5, 0.75, 0.8, 0.9, 0.95, 0.99, 0.999)] == [1, 3, 4, 9, 19, 99, 999]


def test_class_quantiles_equal_the_oracle() -> None:
    generator = np.random.default_rng(9)
    labels = np.repeat(np.arange(5), [30, 9, 8, 1, 0])
    values = generator.random(len(labels))
    found = class_quantiles(values, labels, 5, 0.9)
    np.testing.assert_array_equal(found.values, oracle.class_quantiles(values.tolist(), labels.tolist(), 5, "0.9"))
    assert found.own.tolist() == [True, True, False, False, False]
    nothing = class_quantiles([], [], 3, 0.9)
    assert np.isinf(nothing.values).all()
    assert not nothing.own.any()


def test_an_empty_set_keeps_the_first_top_label() -> None:
    members, empty = scores.get("lac").sets([[0.4, 0.4, 0.2], [0.1, 0.8, 0.1]], -np.log(0.7))
    assert members.tolist() == [[True, False, False], [False, True, False]]
    assert empty.tolist() == [True, False]


def test_the_label_on_the_quantile_is_inside() -> None:
    probs, labels = random_table(10, 99, 6, np.float32)
    u = np.random.default_rng(11).random(99)
    for name in scores:
        score = scores.get(name)
        found = score.of_labels(probs, labels, u)
        for row in range(0, 99, 7):
            members, _ = score.sets(probs[row : row + 1], found[row], u[row : row + 1])
            assert members[0, labels[row]]


@given(arrays.arrays(np.float64, (4, 6), elements=st.integers(0, 8).map(float)), st.floats(0, 1.2), st.floats(0, 1.2))
def test_sets_grow_with_the_quantile(weights: np.ndarray, first: float, second: float) -> None:
    probs = (weights + 1e-9) / (weights + 1e-9).sum(1, keepdims=True)
    u = np.array([0.0, 0.3, 0.7, 1.0])
    for name in scores:
        small, large = (scores.get(name).sets(probs, q, u).members for q in sorted((first, second)))
        assert (small <= large).all()


def test_what_is_refused() -> None:
    probs = [[0.5, 0.5]]
    for wrong in ([0.5, 0.6], None, [1.5], [-0.1], [np.nan]):
        with pytest.raises(InvalidOptionError, match="random numbers"):
            scores.get("aps").sets(probs, 0.9, wrong)
    for limit in (np.nan, [0.1, 0.2, 0.3]):
        with pytest.raises(InvalidOptionError, match="Quantiles"):
            scores.get("lac").sets(probs, limit)
    for coverage in (0, 1, -0.1, 1.1, float("nan")):
        with pytest.raises(InvalidOptionError, match="coverage"):
            quantile([0.5], coverage)
    for table in ([], [[]], [0.5, 0.5], [[0.5, 0.2]], [[np.nan, 1.0]], [[-0.5, 1.5]]):
        with pytest.raises(InvalidOptionError):
            scores.get("lac").of_labels(table, [0])
    with pytest.raises(InvalidOptionError, match="Scores"):
        quantile([[0.5]], 0.9)
    with pytest.raises(InvalidOptionError, match="Labels run"):
        scores.get("lac").of_labels(probs, [2])
