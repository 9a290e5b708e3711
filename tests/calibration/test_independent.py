"""Independent labels: the fit against a plain optimiser, thresholds against MAPIE, guarantees over many draws."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from scipy import optimize, special, stats
from sklearn.metrics import average_precision_score

from poise.calibration import Conditions, IndependentCalibration, LabelEvaluation, certify, fit_labels, upper_bound
from poise.calibration.independent import newton, no_below, read_calibration, truth_table, yes_from
from poise.errors import InvalidCalibrationError, InvalidOptionError
from poise.metrics.scoring import average_precision


def drawn(images: int, labels: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Cosines, labels and true probabilities; labels differ in their mean cosine and prevalence."""
    generator = np.random.default_rng(seed)
    cosines = 0.2 + 0.03 * generator.normal(size=labels) + 0.03 * generator.normal(size=(images, labels))
    slope = 100 * np.exp(0.2 * generator.normal(size=labels))
    chance = special.expit(slope * (cosines - cosines.mean(0)) - 1 + 0.7 * generator.normal(size=labels))
    return cosines, generator.random((images, labels)) < chance, chance


def made(cosines: np.ndarray, truth: np.ndarray, delta: float = 0.05) -> IndependentCalibration:
    names = tuple(f"label {at}" for at in range(cosines.shape[1]))
    conditions = Conditions(labels=names, independent=True, model="m", template="{}", fingerprint="f", init_hash="")
    return IndependentCalibration(
        conditions=conditions,
        settings={},
        cosines=cosines,
        truth=truth,
        scale=100.0,
        bias=0.0,
        start=None,
        delta=delta,
        images=tuple(f"{at}" for at in range(len(cosines))),
    )


def test_each_label_is_the_optimum_of_its_penalised_likelihood() -> None:
    generator = np.random.default_rng(0)
    u, own, spread = generator.normal(size=(60, 4)), np.array([1.5, -0.5]), np.array([0.4, 0.8])
    truth = generator.random((60, 4)) < special.expit(2 * u)
    theta = np.tile(own, (4, 1))
    for _ in range(20):
        theta, variance = newton(u, truth, theta, own, spread)
    for at in range(4):

        def loss(value: np.ndarray, at: int = at) -> float:
            sign = np.where(truth[:, at], 1, -1)
            fit = special.log_expit(sign * (value[0] * u[:, at] + value[1])).sum()
            return float(-fit + (((value - own) / spread) ** 2).sum() / 2)

        best = optimize.minimize(loss, own, method="BFGS", options={"gtol": 1e-8})
        np.testing.assert_allclose(theta[at], best.x, atol=1e-4)
        curvature = np.diag(1 / spread**2)
        for value in u[:, at]:
            p, row = special.expit(theta[at, 0] * value + theta[at, 1]), np.array([value, 1.0])
            curvature += p * (1 - p) * np.outer(row, row)
        np.testing.assert_allclose(variance[at], np.diag(np.linalg.inv(curvature)), rtol=1e-6)


def test_probabilities_are_near_the_true_ones_and_few_images_stay_near_the_others() -> None:
    cosines, truth, chance = drawn(3000, 6)
    for images, most in ((3000, 0.03), (100, 0.12)):
        fit = fit_labels(100 * cosines[:images], truth[:images])
        found = special.expit(fit.a * 100 * cosines + fit.b)
        assert np.abs(found - chance).mean() < most
    alone = truth[:100].copy()
    alone[:, 0] = False  # a label that no image has
    fit = fit_labels(100 * cosines[:100], alone)
    assert np.isfinite(fit.a).all()
    assert 0.3 < fit.a[0] / fit.shared[0] < 3
    assert special.expit(fit.a[0] * 100 * cosines[:100, 0] + fit.b[0]).mean() < 0.2


def test_shrinking_is_better_than_one_fit_for_all_and_than_one_fit_for_each() -> None:
    """Expected log loss under the true probabilities, over 10 draws of 60 images and 20 labels."""
    losses = np.zeros(3)
    for seed in range(10):
        cosines, truth, chance = drawn(2060, 20, seed)
        logits, few = 100 * cosines, slice(0, 60)
        u = logits - logits[few].mean(0)
        fit = fit_labels(logits[few], truth[few])
        own = np.array([fit.shared[0], fit.shared[1]])
        alone, _ = newton(u[few], truth[few], np.tile(own, (20, 1)), own, np.array([10.0, 10.0]))
        for _ in range(20):
            alone, _ = newton(u[few], truth[few], alone, own, np.array([10.0, 10.0]))
        scores = (fit.a * logits + fit.b, own[0] * u + own[1], alone[:, 0] * u + alone[:, 1])
        for at, score in enumerate(scores):
            p, q = chance[60:], score[60:]
            losses[at] -= (p * special.log_expit(q) + (1 - p) * special.log_expit(-q)).mean() / 10
    assert losses[0] < losses[1] - 0.005
    assert losses[0] < losses[2] - 0.005


def test_a_model_with_a_sigmoid_starts_from_its_own_scale_and_bias() -> None:
    generator = np.random.default_rng(1)
    z = generator.normal(-2, 3, (40, 5))
    truth = generator.random((40, 5)) < special.expit(z)
    with_start, without = fit_labels(z, truth, (1.0, 0.0)), fit_labels(z, truth)
    chance = special.expit(z)
    errors = [np.abs(special.expit(fit.a * z + fit.b) - chance).mean() for fit in (with_start, without)]
    assert errors[0] < errors[1]
    none = fit_labels(z[:2], np.zeros((2, 5), dtype=bool), (1.0, 0.0))  # two images change little
    assert 0.6 < none.a.mean() < 1.4


def test_thresholds_for_precision_are_those_of_certify() -> None:
    cosines, truth, _ = drawn(300, 3)
    found = made(cosines, truth).thresholds(precision=0.8)
    for at in range(3):
        threshold = certify((cosines[:, at] + 1) / 2, truth[:, at], 0.2, delta=0.05 / 3).threshold
        assert found.yes[at] == (np.inf if threshold is None else pytest.approx(2 * threshold - 1))
    assert (found.no == -np.inf).all()
    both = made(cosines, truth).thresholds(0.8, 0.8)
    assert (both.no <= both.yes).all()
    said = both.outcomes(cosines[0])
    assert set(said) <= {"yes", "no", "unsure"}
    np.testing.assert_array_equal([word == "yes" for word in said], cosines[0] >= both.yes)


@pytest.mark.parametrize("seed", range(5))
def test_thresholds_for_recall_against_mapie(seed: int) -> None:
    """MAPIE counts the same misses; its bound (Hoeffding) is wider than the exact one, so its threshold is lower."""
    risk_control = pytest.importorskip("mapie.risk_control", reason="install the extra 'test'")
    generator = np.random.default_rng(seed)
    scores = np.sort(generator.beta(4, 2, 150).round(3))  # of images that have the label
    threshold = no_below(scores, np.ones(150, dtype=bool), 0.8, 0.05)
    grid = np.unique(scores)
    controller = risk_control.MultiLabelClassificationController(
        predict_function=lambda rows: np.asarray(rows),
        risk="recall",
        method="rcps",
        target_level=0.8,
        confidence_level=0.95,
        rcps_bound="hoeffding",
        predict_params=grid,
    )
    controller.calibrate(np.stack([scores, scores], 1), np.ones((150, 2)))
    misses = np.array([(scores <= level).mean() for level in grid])  # MAPIE takes scores above the level
    np.testing.assert_allclose(controller.r_hat, misses, atol=1e-12)
    assert controller.best_predict_param[0] <= threshold
    missed = int((scores < threshold).sum())
    assert upper_bound(missed, 150, 0.05) <= 0.2
    higher = scores[scores > threshold].min()
    assert upper_bound(int((scores < higher).sum()), 150, 0.05) > 0.2 or higher == scores.max()


def failures(images: int, labels: int, draws: int, level: float) -> tuple[int, int, int]:
    """In how many draws some label's precision, or recall, is below the level; and how many thresholds there were."""
    pool, truth, _ = drawn(20_000 if labels < 50 else 4000, labels, seed=labels)
    generator = np.random.default_rng(images)
    bad_precision = bad_recall = found = 0
    for _ in range(draws):
        rows = generator.integers(0, len(pool), images)
        calibration = made(pool[rows], truth[rows])
        try:
            limits = calibration.thresholds(level, level)
        except InvalidCalibrationError:
            continue
        yes, no = pool >= limits.yes, pool < limits.no
        found += int(np.isfinite(limits.yes).sum())
        said = np.maximum(yes.sum(0), 1)
        bad_precision += bool((np.isfinite(limits.yes) & ((yes & truth).sum(0) < level * said)).any())
        bad_recall += bool(((no & truth).sum(0) > (1 - level) * truth.sum(0)).any())
    return bad_precision, bad_recall, found


def test_all_labels_keep_their_promise_in_nearly_all_draws() -> None:
    precision, recall, found = failures(150, 8, 60, 0.7)
    assert max(precision, recall) <= stats.binom(60, 0.05).ppf(0.9999)
    assert found > 10


@pytest.mark.slow
@pytest.mark.parametrize("labels", [5, 50, 500])
@pytest.mark.parametrize("images", [20, 50, 100, 200])
def test_all_labels_keep_their_promise_in_many_draws(images: int, labels: int) -> None:
    draws = 1000 if labels < 500 else 100
    precision, recall, _ = failures(images, labels, draws, 0.7)
    assert precision + recall <= stats.binom(draws, 0.05).ppf(0.9999)


def test_average_precision_equals_scikit_learn() -> None:
    generator = np.random.default_rng(0)
    for size in (1, 5, 200):
        scores, truth = generator.integers(0, 10, size) / 10, generator.random(size) < 0.4
        truth[0] = True
        assert average_precision(scores, truth) == pytest.approx(average_precision_score(truth, scores))
    with pytest.raises(InvalidOptionError, match="no image has the label"):
        average_precision([0.5], [False])


def test_an_evaluation_by_hand() -> None:
    probs = np.array([[0.9, 0.2], [0.8, 0.6], [0.3, 0.7], [0.2, 0.1]])
    truth = np.array([[True, False], [False, True], [False, True], [False, False]])
    outcomes = np.array([["yes", "no"], ["yes", "unsure"], ["no", "unsure"], ["no", "no"]])
    found = LabelEvaluation(
        labels=("a", "b"), probs=probs, truth=truth, outcomes=outcomes, precision=0.9, recall=0.5, left_out={"lost": 1}
    )
    numbers = found.metrics()
    assert numbers["map"].value == pytest.approx(1)
    assert numbers["yes"].value == 0.25
    assert numbers["no"].value == 0.5
    assert numbers["label_brier"].value == pytest.approx(((probs - truth) ** 2).mean())
    assert numbers["precision"].value == 0.5
    assert numbers["recall"].value == 1
    assert found.by_label()["a"]["precision"].value == 0.5
    assert found.by_label()["b"] == {"recall": found.by_label()["b"]["recall"]}  # no yes was said
    assert found.by_label()["b"]["recall"].value == 1
    assert found.label_rows()[0][:3] == ["a", "1", "50.0 % (1.3 to 98.7)"]
    assert "Left out: 1 lost." in found.summary()
    assert json.loads(json.dumps(found.to_dict()))["labels"]["a"]["precision"]["value"] == 0.5
    page = found._repr_html_()
    assert page.count("<table>") == page.count("<svg") == 2
    plain = LabelEvaluation(labels=("a<b", "b"), probs=probs, truth=truth)
    assert plain._repr_html_().count("<svg") == 1
    assert "precision" not in plain.metrics()


def test_labels_that_break_their_promise_are_named_and_chance_is_not() -> None:
    truth = np.zeros((400, 2), dtype=bool)
    truth[:200, 0], truth[:170, 1] = True, True  # of 200 yes each, 200 and 170 are right
    outcomes = np.full((400, 2), "unsure")
    outcomes[:200] = "yes"
    found = LabelEvaluation(
        labels=("good", "bad"), probs=np.full((400, 2), 0.5), truth=truth, outcomes=outcomes, precision=0.95
    )
    assert any("1 label: bad" in note for note in found.notes())


def test_files_are_read_back_and_damaged_ones_refused(tmp_path: Path) -> None:
    cosines, truth, _ = drawn(30, 3)
    calibration = made(cosines, truth)
    calibration.save(tmp_path / "c.json")
    read = read_calibration(tmp_path / "c.json")
    assert isinstance(read, IndependentCalibration)
    np.testing.assert_array_equal(read.truth, truth)
    np.testing.assert_array_equal(read.fit.a, calibration.fit.a)
    assert "30 images" in read.summary()
    values = json.loads((tmp_path / "c.json").read_text("utf-8"))
    from poise.calibration.stored import content_hash

    for change in (
        {"cosines": [[2.0] * 3] * 30},
        {"cosines": [[0.1] * 2] * 30},
        {"truth": [[5]] + [[]] * 29},
        {"truth": [[]]},
        {"scale": -1},
        {"delta": 0},
        {"conditions": {}},
    ):
        damaged = {**{key: part for key, part in values.items() if key != "checksum"}, **change}
        (tmp_path / "d.json").write_text(json.dumps({**damaged, "checksum": content_hash(damaged)}), "utf-8")
        with pytest.raises(InvalidCalibrationError, match="not a calibration that can be used"):
            read_calibration(tmp_path / "d.json")
    (tmp_path / "d.json").write_text(json.dumps({**values, "delta": 0.5}), "utf-8")
    with pytest.raises(InvalidCalibrationError, match="checksum"):
        read_calibration(tmp_path / "d.json")


def test_too_few_images_and_labels_that_do_not_exist() -> None:
    cosines, truth, _ = drawn(20, 5)
    with pytest.raises(InvalidCalibrationError, match="No label has a certified threshold"):
        made(cosines, truth).thresholds(precision=0.99)
    with pytest.raises(InvalidOptionError, match="precision"):
        made(cosines, truth).thresholds(precision=1.5)
    with pytest.raises(InvalidOptionError, match="'fox', which the classifier has not"):
        truth_table(["cat", "dog"], [["cat"], ["fox"]])
    with pytest.raises(InvalidOptionError, match="list of labels per image"):
        truth_table(["cat"], ["cat"])
    assert truth_table(["wild_cat", "dog"], [["wild cat", "dog"], []]).tolist() == [[True, True], [False, False]]
    assert yes_from(cosines[:, 0], truth[:, 0], 0.9, 1e-6) == np.inf
    assert no_below(cosines[:, 0], np.zeros(20, dtype=bool), 0.9, 0.05) == -np.inf
