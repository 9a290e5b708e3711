"""From answers to a calibration: what is stored, what is recommended and why, and what is refused with which words."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from poise.calibration import (
    Answers,
    Calibration,
    Calibrator,
    Conditions,
    Curve,
    assess,
    certify,
    fit_calibrator,
    held_out,
)
from poise.calibration.assess import AFTER, BEFORE, recommend
from poise.calibration.conformal import scores
from poise.calibration.stored import content_hash
from poise.errors import InvalidCalibrationError
from poise.metrics import Sample, estimate
from poise.metrics.bootstrap import Estimate, Interval, mean_interval
from poise.metrics.shares import wilson_interval

CONDITIONS = Conditions(
    model="m",
    fingerprint="f",
    labels=("a", "b", "ç"),
    template="{}",
    context="auto",
    init="template",
    init_hash="",
    views=2,
    augmix=False,
    seed=7,
)
RNG = np.random.default_rng(5)
LABELS, U = RNG.integers(0, 3, 60), RNG.random(60)
PROBS = {name: RNG.dirichlet(np.ones(3), 60) for name in ("one", "two")}


@pytest.fixture  # not of the module: mutation runs ask each test which functions it reaches
def made() -> Calibration:
    answers = {name: Answers({"steps": 1}, probs, [0.1, 0.2, 0.6], U) for name, probs in PROBS.items()}
    return assess(CONDITIONS, answers, LABELS, U, [f"key {at}" for at in range(60)], delta=0.2)


def test_every_part_holds_what_its_probabilities_give(made: Calibration) -> None:
    for name, probs in PROBS.items():
        part, sample, fit = made.methods[name], Sample.of(probs, LABELS), fit_calibrator(probs, LABELS)
        calibrated = Sample.of(held_out(probs, LABELS), LABELS)
        assert part.settings == {"steps": 1}
        assert part.delta == 0.1  # two methods share it
        np.testing.assert_array_equal(part.labels, LABELS)
        np.testing.assert_array_equal(part.confidence, probs.max(1))
        np.testing.assert_array_equal(part.correct, probs.argmax(1) == LABELS)
        np.testing.assert_array_equal(part.predicted, probs.argmax(1))
        assert set(part.scores) == set(scores)
        for score, values in part.scores.items():
            np.testing.assert_array_equal(values, scores.get(score).of_labels(probs, LABELS, U))
        assert (part.calibrator, part.intervals, part.unchanged) == (fit.calibrator, fit.intervals, fit.unchanged)
        before = {row: each.interval for row, each in estimate([sample], names=BEFORE).items()}
        share = sample.correct.mean()
        assert part.before == before | {"accuracy": Interval(share, *wilson_interval(share, len(sample)))}
        after = estimate([calibrated], names=AFTER)
        assert part.after == {row: after[row].interval for row in ("nll", "brier")}
        assert part.seconds is not None
        assert part.seconds.value == pytest.approx(0.3)
        assert part.certificate(0.9) == certify(probs.max(1), probs.argmax(1) == LABELS, 0.9, delta=0.1)
    assert made.confidence == pytest.approx(0.8)
    assert made.images == {f"key {at}" for at in range(60)}


def test_a_threshold_may_fail_with_probability_five_percent_by_default() -> None:
    part = assess(CONDITIONS, {"one": Answers({}, PROBS["one"], [0.1])}, LABELS, U, ["k"]).methods["one"]
    assert part.delta == 0.05


def test_time_per_image_is_a_mean_with_an_interval() -> None:
    found = mean_interval([0.1, 0.2, 0.6])
    assert found.value == pytest.approx(0.3)
    assert 0.1 <= found.low < found.value < found.high <= 0.6
    many = mean_interval([0.0, 1.0] * 200)  # the mean of 400 fair coins: 0.5 with a standard error of 0.025
    assert many.low == pytest.approx(0.5 - 1.96 * 0.025, abs=0.008)
    assert many.high == pytest.approx(0.5 + 1.96 * 0.025, abs=0.008)
    assert mean_interval([0.25]) == Interval(0.25, 0.25, 0.25)


def method(brier: float, accuracy: float, spread: float = 0.01) -> dict[str, Estimate]:
    """Estimates whose resamples are spread evenly around the value; those of two methods move together."""
    noise = spread * np.linspace(-1, 1, 1001)
    return {"brier": Estimate((brier,), brier + noise), "accuracy": Estimate((accuracy,), accuracy - noise)}


def noisy(brier: float, accuracy: float) -> dict[str, Estimate]:
    """Estimates that are too uncertain to be different from any other."""
    return method(brier, accuracy, spread=1.0)


def test_the_recommendation_in_words() -> None:
    seconds = {"cheap": 0.123456, "dear": 2.0, "middle": 1.0}
    best = method(0.2, 0.9)
    assert recommend(seconds, {"cheap": method(0.4, 0.9), "dear": best, "middle": method(0.3, 0.9)}) == (
        "dear",
        "dear has the best Brier score 0.200; cheap, middle cost less, but are significantly worse.",
    )
    assert recommend(seconds, {"cheap": best, "dear": method(0.4, 0.9)}) == (
        "cheap",
        "cheap has the best Brier score 0.200 and costs least.",
    )
    assert recommend(seconds, {"dear": best}) == ("dear", "dear is the only method, with the Brier score 0.200.")
    chosen, reason = recommend(seconds, {"cheap": noisy(0.3003, 0.9), "dear": best, "middle": noisy(0.21, 0.9)})
    assert chosen == "cheap"
    low, high = 0.1003 - 0.95 * 0.99, 0.1003 + 0.95 * 0.99
    assert reason == (
        "cheap takes 0.123 s per image instead of 2 s, and is not significantly worse than dear, which has the best "
        f"Brier score 0.200 (difference +0.100, 95 % confidence interval {low:+.3f} to {high:+.3f})."
    )


def test_the_cheapest_is_not_the_first_by_name() -> None:
    best = method(0.2, 0.9)
    assert recommend({"a": 2.0, "b": 0.1}, {"a": best, "b": noisy(0.3, 0.9)})[0] == "b"
    assert recommend({"b": 2.0, "a": 0.1}, {"b": best, "a": noisy(0.3, 0.9)})[0] == "a"


def test_worse_in_one_of_two_metrics_is_worse() -> None:
    seconds = {"cheap": 0.1, "dear": 2.0}
    best = method(0.2, 0.9)
    for other, chosen in (
        (method(0.3, 0.9), "dear"),  # a clearly higher Brier score
        (method(0.2 + 1e-4, 0.8), "dear"),  # a clearly lower accuracy
        (method(0.2 + 1e-4, 0.95), "dear"),  # 1e-4 is clear where both resamples move together
        ({**best, "brier": noisy(0.25, 0.9)["brier"]}, "cheap"),
        ({"brier": noisy(0.25, 0.9)["brier"], "accuracy": method(0.2, 0.95)["accuracy"]}, "cheap"),  # better accuracy
        ({"brier": noisy(0.25, 0.9)["brier"], "accuracy": method(0.2, 0.85)["accuracy"]}, "dear"),
    ):
        assert recommend(seconds, {"cheap": other, "dear": best})[0] == chosen


def test_the_options_are_those_of_a_classifier(made: Calibration) -> None:
    assert made.options() == {
        "labels": ("a", "b", "ç"),
        "parents": (),
        "groups": (),
        "independent": False,
        "model": "m",
        "method": [made.recommended],
        "template": "{}",
        "context": "auto",
        "init": "template",
        "views": 2,
        "augmix": False,
        "seed": 7,
    }
    assert len(made) == 60
    assert repr(made) == "Calibration(60 images, 3 labels, methods one, two)"


def test_other_methods_and_settings_are_refused_and_named(made: Calibration) -> None:
    assert made.method("two", {"steps": 1}) is made.methods["two"]
    hint = "Use the same settings, or run `poise calibrate` again."
    for settings, key, then, now in (
        ({"steps": 2}, "steps", 1, 2),
        ({}, "steps", 1, None),
        ({"steps": 1, "lr": 0.5}, "lr", None, 0.5),
        ({"lr": 0.5}, "lr", None, 0.5),  # the first by name
    ):
        with pytest.raises(InvalidCalibrationError) as problem:
            made.method("one", settings)
        assert str(problem.value) == (
            f"The calibration was made with one's {key} {then!r}, and this classifier has {now!r}. {hint}"
        )
    with pytest.raises(InvalidCalibrationError) as problem:
        made.method("three", {})
    assert str(problem.value) == "The calibration has no method 'three'. It has: one, two."


def test_sets_contain_labels_as_often_as_asked(made: Calibration) -> None:
    """On the calibration images themselves: k = ceil((n + 1) coverage) of n scores are at most the quantile."""
    part = made.methods["one"]
    for score in scores:
        found = part.sets(PROBS["one"], 0.8, U, score=score)
        assert (found.members | found.empty[:, None])[np.arange(60), LABELS].sum() >= math.ceil(61 * 0.8)
        expected = scores.get(score).sets(PROBS["one"], sorted(part.scores[score])[math.ceil(61 * 0.8) - 1], U)
        np.testing.assert_array_equal(found.members, expected.members)
    lac = part.sets(PROBS["one"], 0.8, U)
    np.testing.assert_array_equal(lac.members, part.sets(PROBS["one"], 0.8, U, score="lac").members)
    own = part.sets(PROBS["one"], 0.8, U, per_class=True)
    for label in range(3):
        mine = np.flatnonzero(label == LABELS)
        limit = sorted(part.scores["lac"][mine])[math.ceil((len(mine) + 1) * 0.8) - 1]
        np.testing.assert_array_equal(
            (own.members & ~own.empty[:, None])[:, label],
            (-np.log(PROBS["one"][:, label]) <= limit + 1e-8) & ~own.empty,
        )


def test_ten_bins_by_default(made: Calibration) -> None:
    bins = made.methods["one"].reliability()
    assert len(bins.count) == 10
    assert bins.count.sum() == 60


DAMAGED = {
    ("format",): (1, "its format is 1, and this version of poise reads 'poise-calibration/2'"),
    ("recommended",): ("three", "the recommended method 'three' is not in it"),
    ("images",): (["x"], "it does not have one answer per image"),
    ("conditions", "labels"): (["a", "b"], "it has more classes than labels"),
    ("methods", "two", "labels"): ([[0]] * 60, "'labels' and 'predicted' must be whole numbers"),
    ("methods", "one", "predicted"): ([True] * 60, "'labels' and 'predicted' must be whole numbers"),
    ("methods", "one", "match"): ([0.5], "its lists have different lengths"),
    ("methods", "one", "confidence"): ([2.0] * 60, "it has numbers that are not valid"),
    ("methods", "one", "delta"): (1.0, "'delta' is 1.0, not between 0 and 1"),
    ("methods", "one", "before"): (None, "'before' is missing"),
}


def sealed(values: dict) -> dict:
    """Return an edited file with the checksum that it would have."""
    return {**values, "checksum": content_hash({key: part for key, part in values.items() if key != "checksum"})}


@pytest.mark.parametrize("path", DAMAGED, ids="/".join)
def test_damage_is_named(made: Calibration, path: tuple[str, ...], tmp_path: Path) -> None:
    value, text = DAMAGED[path]
    made.save(tmp_path / "c.json")
    values = json.loads((tmp_path / "c.json").read_text("utf-8"))
    inner = values
    for name in path[:-1]:
        inner = inner[name]
    if value is None:
        del inner[path[-1]]
    else:
        inner[path[-1]] = value
    (tmp_path / "c.json").write_text(json.dumps(sealed(values)), "utf-8")
    with pytest.raises(InvalidCalibrationError) as problem:
        Calibration.load(tmp_path / "c.json")
    assert str(problem.value) == (
        f"'{tmp_path / 'c.json'}' is not a calibration that can be used: {text}. "
        "Give the file that `poise calibrate --out` or `Calibration.save` wrote."
    )


def changed(made: Calibration, path: Path, *keys: str, value: object) -> Path:
    """Save the calibration with another value at the place that ``keys`` name."""
    values = made.to_dict()
    inner = values
    for name in keys[:-1]:
        inner = inner[name]
    inner[keys[-1]] = value
    path.write_text(json.dumps(sealed(values)), "utf-8")
    return path


EDITS: dict[str, Callable[[dict], None]] = {
    "all are correct": lambda part: part.update(predicted=part["labels"]),
    "scores of 0": lambda part: part["scores"].update(lac=[0.0] * 60, aps=[0.0] * 60, raps=[0.0] * 60),
    "labels in another order": lambda part: part.update(labels=part["labels"][::-1]),
    "higher confidences": lambda part: part.update(confidence=[min(1.0, c + 0.1) for c in part["confidence"]]),
}


@pytest.mark.parametrize("edit", EDITS.values(), ids=EDITS.keys())
def test_an_edited_file_is_refused(made: Calibration, edit: Callable[[dict], None], tmp_path: Path) -> None:
    values = made.to_dict()
    edit(values["methods"]["one"])
    for content, text in ((values, "its checksum is another one"), (sealed(values), "scores contradict its confid")):
        (tmp_path / "c.json").write_text(json.dumps(content), "utf-8")
        with pytest.raises(InvalidCalibrationError, match=text):
            Calibration.load(tmp_path / "c.json")


def test_another_calibrator_is_refused(made: Calibration, tmp_path: Path) -> None:
    values = made.to_dict()
    values["methods"]["one"]["calibrator"] = {"name": "temperature", "temperature": 0.01}
    (tmp_path / "c.json").write_text(json.dumps(values), "utf-8")
    with pytest.raises(InvalidCalibrationError, match="its checksum is another one"):
        Calibration.load(tmp_path / "c.json")


def first_format(made: Calibration) -> dict:
    """Return what a file of the first format would contain."""
    values = made.to_dict() | {"format": "poise-calibration/1"}
    del values["checksum"]
    for name, part in values["methods"].items():
        part["correct"] = made.methods[name].correct.tolist()
        part["held_out"], part["reason"] = part["confidence"], "temperature, because"
        part["scores"]["lac"] = (1 - np.exp(-np.array(part["scores"]["lac"]))).tolist()
        part["calibrator"] = {"name": "beta", "a": 1.0, "b": 0.5, "m": 0.1, "temperature": 2.0}
        part["after"] |= {"accuracy": [0.5, 0.4, 0.6], "ece": [0.1, 0.0, 0.2], "ece_floor": [0.1, 0.0, 0.2]}
        for key in ("predicted", "match", "unchanged"):
            del part[key]
    return values


def test_files_of_the_first_format_are_read(made: Calibration, tmp_path: Path) -> None:
    (tmp_path / "c.json").write_text(json.dumps(first_format(made)), "utf-8")
    old = Calibration.load(tmp_path / "c.json")
    for name, part in old.methods.items():
        now = made.methods[name]
        np.testing.assert_array_equal(part.correct, now.correct)
        np.testing.assert_allclose(part.scores["lac"], now.scores["lac"], atol=1e-9)
        np.testing.assert_array_equal(part.sets(PROBS[name], 0.8, U).members, now.sets(PROBS[name], 0.8, U).members)
        assert part.certificate(0.9) == now.certificate(0.9)
        assert part.calibrator == Calibrator((Curve(1.0, 2.0, 1.0, 0.5, 0.1),))
    old.save(tmp_path / "new.json")
    assert Calibration.load(tmp_path / "new.json").to_dict() == old.to_dict()
    values = first_format(made)
    values["methods"]["one"]["correct"] = [True] * 60
    (tmp_path / "c.json").write_text(json.dumps(values), "utf-8")
    with pytest.raises(InvalidCalibrationError, match="contradict"):
        Calibration.load(tmp_path / "c.json")


def test_long_reasons_are_cut_and_end_with_one_full_stop(made: Calibration, tmp_path: Path) -> None:
    for name, shown in (("x" * 300, "x" * (200 - len("the recommended method '"))), ("X" * 150 + "." * 300, "X" * 150)):
        with pytest.raises(InvalidCalibrationError) as problem:
            Calibration.load(changed(made, tmp_path / "c.json", "recommended", value=name))
        assert problem.value.message.endswith(f"can be used: the recommended method '{shown}.")


def test_whole_numbers_are_read(made: Calibration, tmp_path: Path) -> None:
    path = changed(made, tmp_path / "c.json", "methods", "one", "match", value=[0, 1] * 30)
    part = Calibration.load(path).methods["one"]
    assert part.match is not None
    assert part.match.dtype == np.float64


def test_numbers_that_json_does_not_have_are_not_written(made: Calibration, tmp_path: Path) -> None:
    parts = {"one": replace(made.methods["one"], seconds=Interval(math.nan, 0.0, 1.0))}
    with pytest.raises(ValueError, match="JSON"):
        replace(made, methods=parts).save(tmp_path / "c.json")
    assert not (tmp_path / "c.json").exists()


def test_the_file_is_readable_text(made: Calibration, tmp_path: Path) -> None:
    made.save(tmp_path / "c.json")
    text = (tmp_path / "c.json").read_text("utf-8")
    assert "ç" in text
    assert text.endswith("}\n")
    again = Calibration.load(tmp_path / "c.json")
    assert again.to_dict() == made.to_dict()
    assert (again.reason, again.recommended, again.images) == (made.reason, made.recommended, made.images)
    for name, part in again.methods.items():
        for field in ("settings", "calibrator", "intervals", "unchanged", "before", "after", "seconds", "delta"):
            assert getattr(part, field) == getattr(made.methods[name], field)
        for field in ("labels", "confidence", "predicted", "correct"):
            np.testing.assert_array_equal(getattr(part, field), getattr(made.methods[name], field))


def test_the_interval_of_accuracy_has_a_width_even_if_every_answer_is_right() -> None:
    calibration = assess(
        CONDITIONS,
        {"one": Answers({}, np.tile([0.9, 0.1], (20, 1)))},
        np.zeros(20, int),
        np.zeros(20),
        list("abcdefghijklmnopqrst"),
    )
    accuracy = calibration.methods["one"].before["accuracy"]
    assert (accuracy.value, accuracy.high) == (1.0, 1.0)
    assert accuracy.low == pytest.approx(0.8389, abs=1e-4)
