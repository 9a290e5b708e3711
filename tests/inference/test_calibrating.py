"""`Classifier.calibrate` and `Classifier(calibration=...)`: what is fitted, what is promised, what is refused."""

from __future__ import annotations

import json
import warnings
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import poise
from poise.backbones import load_model
from poise.calibration import Calibration
from poise.encoding.class_texts import ClassTexts
from poise.errors import CalibrationImageError, InvalidCalibrationError, InvalidLabelsError, InvalidOptionError
from poise.inference.classifier import Classifier
from poise.inference.guarantees import LIKE_KNOWN, uniform
from poise.inference.variants import only
from poise.inits import fpp
from poise.results import Failure

LABELS = ["cat", "dog", "rocket"]


@pytest.fixture(scope="module")
def encoder():
    return load_model("tiny", device="cpu")


def classifier(encoder, method="zero-shot", **options) -> Classifier:
    return Classifier(LABELS, encoder, method, **{"views": 4, **options})


def images(count: int, seed: int = 0) -> list[np.ndarray]:
    return list(np.random.default_rng(seed).integers(0, 256, (count, 24, 24, 3), dtype=np.uint8))


def truth(count: int) -> list[str]:
    return (LABELS * count)[:count]


@pytest.fixture(scope="module")
def calibration(encoder) -> Calibration:
    return classifier(encoder, ["zero-shot", "kld+cats"]).calibrate(images(60), truth(60), coverage=[0.9])


def test_labels_are_encoded_once_for_all_methods(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[int] = []
    make = ClassTexts.__init__

    def counted(self: ClassTexts, *given: Any, **options: Any) -> None:
        made.append(1)
        make(self, *given, **options)

    monkeypatch.setattr(ClassTexts, "__init__", counted)
    classify = Classifier(["cat", "dog"], model="tiny", method=["zero-shot", "tpt", "mta"], views=6, device="cpu")
    images = list(np.random.default_rng(0).integers(0, 256, (20, 32, 32, 3), np.uint8))
    expected = classify.predict_proba(images[:2])
    found = classify.calibrate(images, ["cat", "dog"] * 10)
    assert set(found.methods) == {"zero-shot", "tpt", "mta"}
    assert len(made) == 1
    for name in found.methods:
        np.testing.assert_allclose(only(classify, name).predict_proba(images[:2])[name], expected[name], atol=1e-6)


def test_it_holds_the_plain_answers_of_every_method(encoder, calibration):
    several = classifier(encoder, ["zero-shot", "kld+cats"])
    classes = np.array([LABELS.index(label) for label in truth(60)])
    for name, probs in several.predict_proba(images(60)).items():
        part = calibration.methods[name]
        np.testing.assert_array_equal(part.labels, classes)
        np.testing.assert_allclose(part.confidence, probs.max(1), atol=1e-6)
        np.testing.assert_array_equal(part.correct, probs.argmax(1) == classes)
        np.testing.assert_allclose(np.exp(-part.scores["lac"]), probs[np.arange(60), classes], atol=1e-6)
        assert part.delta == 0.05 / 2  # two methods share it
    assert len(calibration) == 60
    assert calibration.confidence == pytest.approx(0.95)
    assert calibration.recommended in calibration.methods
    assert calibration.recommended in calibration.reason


def test_results_are_calibrated_and_carry_sets_and_decisions(encoder, calibration):
    plain = classifier(encoder)
    part = calibration.methods["zero-shot"]
    error = next(level / 100 for level in range(1, 100) if part.certificate(level / 100).threshold is not None)
    guarded = classifier(encoder, calibration=calibration, coverage=0.9, max_error=error)
    for image in images(12, seed=1):
        before, after = plain(image), guarded(image)
        raw = np.array([before.probabilities[label] for label in LABELS])
        expected = part.calibrator.apply(raw[None])[0]
        assert after.label == before.label
        assert after.raw_confidence == pytest.approx(before.confidence, abs=1e-6)
        np.testing.assert_allclose([after.probabilities[label] for label in LABELS], expected, atol=1e-6)
        limit = np.sort(part.scores["lac"])[int(np.ceil(61 * 0.9)) - 1]
        members = {label for label, prob in before.probabilities.items() if -np.log(prob) <= limit + 1e-8}
        members = members or {before.label}
        assert set(after.prediction_set) == members
        assert after.prediction_set == after.set_at(0.9)
        assert after.prediction_set[0] == after.label
        assert (after.decision == "answer") == (before.confidence >= after.threshold)
        assert f"at most {100 * error:g} %" in after.guarantee
        assert "fails in at most 5 % of draws" in after.guarantee
        stored = json.loads(json.dumps(after.to_dict()))
        assert (stored["decision"], stored["threshold"]) == (after.decision, after.threshold)
        assert tuple(stored["prediction_set"]) == after.prediction_set
        assert "calibrated" not in stored


@pytest.mark.parametrize("score", ["lac", "aps", "raps"])
@pytest.mark.parametrize("per_class", [False, True])
def test_sets_grow_with_coverage(encoder, calibration, score, per_class):
    result = classifier(encoder, calibration=calibration)(images(1, seed=3)[0])
    sets = [set(result.set_at(level, score=score, per_class=per_class)) for level in (0.3, 0.6, 0.9, 0.98)]
    assert all(small <= large for small, large in pairwise(sets))
    assert result.decision is None
    assert result.prediction_set is None


def test_the_file_gives_the_same_answers(encoder, calibration, tmp_path: Path):
    calibration.save(tmp_path / "c.json")
    image = images(1, seed=5)[0]
    assert Calibration.load(tmp_path / "c.json").methods["zero-shot"].to_dict() == (
        calibration.methods["zero-shot"].to_dict()
    )
    results = [classifier(encoder, calibration=kept)(image) for kept in (calibration, tmp_path / "c.json")]
    assert results[0] == results[1]
    assert results[0].set_at(0.9, score="aps") == results[1].set_at(0.9, score="aps")


def test_calibration_images_are_refused_one_by_one(encoder, calibration):
    outcomes = list(classifier(encoder, calibration=calibration).each([images(60)[7], images(1, seed=9)[0]]))
    assert isinstance(outcomes[0], Failure)
    assert outcomes[0].code == "calibration_image"
    assert isinstance(outcomes[1], dict)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"views": 5}, ["views 4", "has 5"]),
        ({"seed": 3}, ["seed 0", "has 3"]),
        ({"augmix": True}, ["augmix False", "has True"]),
        ({"template": "art of a {}."}, ["'a photo of a {}.'", "'art of a {}.'"]),
        ({"labels": ["cat", "dog", "horse"]}, ["'rocket' at index 2", "'horse' at index 2"]),
        ({"labels": ["cat", "dog"]}, ["3 labels", "2 labels"]),
        ({"labels": ["dog", "cat", "rocket"]}, ["in another order", "the same labels"]),
        ({"context": "after", "template": "a photo of a {} here."}, ["'a photo of a {}.'"]),
        ({"method": "tpt"}, ["no method 'tpt'", "zero-shot, kld+cats"]),
        ({"method": poise.methods.get("kld+cats", lr=1e-2)}, ["lr 0.005", "has 0.01"]),
    ],
    ids=lambda value: str(value)[:30],
)
def test_other_conditions_are_refused_with_both_values(encoder, calibration, change, words):
    options = {"labels": LABELS, "method": "kld+cats", "views": 4, **change}
    with pytest.raises(InvalidCalibrationError) as caught:
        Classifier(model=encoder, calibration=calibration, **options)
    assert all(word in str(caught.value) for word in words), caught.value


@pytest.mark.filterwarnings("ignore:.*labels have no image")
def test_a_file_opens_the_classifier_that_it_was_made_with(encoder, tmp_path):
    labels = ["cat", "dog", "a b"]
    plain = Classifier(labels, encoder, "kld+cats", views=3, seed=5, template="art of a {}.")
    answered = [result.label for result in plain(images(60))]  # an easy task, which a low error can be certified for
    made = plain.calibrate(images(60), answered)
    made.save(tmp_path / "c.json")
    opened = Classifier.from_calibration(tmp_path / "c.json", max_error=0.25, coverage=0.9, device="cpu")
    assert (list(opened.labels), opened.options.views, opened.options.seed) == (labels, 3, 5)
    assert (opened.options.template, [method.name for method in opened.methods]) == ("art of a {}.", ["kld+cats"])
    given = {"views": 3, "seed": 5, "template": "art of a {}.", "max_error": 0.25, "coverage": 0.9}
    image = images(1, seed=9)[0]
    assert opened(image) == Classifier(labels, encoder, "kld+cats", calibration=made, **given)(image)
    with pytest.raises(InvalidCalibrationError, match="views 3, and this classifier has 4"):
        Classifier.from_calibration(made, views=4, device="cpu")


def test_the_tuned_words_have_to_be_the_same(encoder):
    options = {"method": "tpt", "template": "a photo of a {} in the wild."}
    made = classifier(encoder, context="before", **options).calibrate(images(20), truth(20))
    with pytest.raises(InvalidCalibrationError, match="context 'before', and this classifier has 'after'"):
        classifier(encoder, context="after", calibration=made, **options)


def test_views_do_not_matter_to_methods_that_do_not_read_them(encoder, calibration):
    result = classifier(encoder, views=9, seed=3, augmix=True, calibration=calibration)(images(1, seed=9)[0])
    assert result.raw_confidence is not None
    with pytest.raises(InvalidCalibrationError, match="views"):
        classifier(encoder, "kld+cats", views=9, calibration=calibration)


def test_a_fitted_init_is_restored(encoder, monkeypatch):
    monkeypatch.setitem(fpp.PUBLISHED, "fpp", fpp.Flatness(steps=20))  # it is fitted three times
    made = classifier(encoder, "tpt", init="fpp").calibrate(images(20), truth(20))
    assert made.conditions.init == "fpp"
    assert made.conditions.init_hash
    options = {**made.options(), "model": encoder}
    assert Classifier(**options, calibration=made)(images(1, seed=9)[0])["tpt"].raw_confidence is not None
    with pytest.raises(InvalidCalibrationError, match="init 'fpp', and this classifier has 'template'"):
        classifier(encoder, "tpt", calibration=made)


def test_another_model_is_refused_by_its_fingerprint(encoder, calibration):
    other = replace(calibration, conditions=replace(calibration.conditions, fingerprint="0" * 16))
    with pytest.raises(InvalidCalibrationError, match="fingerprint '0000000000000000'"):
        classifier(encoder, calibration=other)


def test_too_few_images_are_refused_before_any_work(encoder):
    plain = classifier(encoder)
    with pytest.raises(InvalidCalibrationError, match=r"8 images are too few: at least 9 are needed for pred"):
        plain.calibrate(["missing.png"] * 8, truth(8), coverage=[0.9])
    with pytest.raises(InvalidCalibrationError, match=r"59 are needed .* of at most 0\.05 with confidence 0\.95"):
        plain.calibrate(["missing.png"] * 58, truth(58), max_error=[0.05])
    with pytest.raises(InvalidCalibrationError, match="72 are needed for an error"):  # 0.025 for each of two methods
        classifier(encoder, ["zero-shot", "tpt"]).calibrate(["missing.png"] * 58, truth(58), max_error=[0.05])


def test_what_is_refused(encoder, calibration):
    plain = classifier(encoder)
    with pytest.raises(InvalidOptionError, match="labels that the classifier has not: 'horse'"):
        plain.calibrate(images(2), ["cat", "horse"])
    with pytest.raises(InvalidOptionError, match="2 images and 3 labels"):
        plain.calibrate(images(2), truth(3))
    with pytest.raises(InvalidOptionError, match="need a calibration"):
        classifier(encoder, coverage=0.9)
    with pytest.raises(InvalidOptionError, match="has no calibration"):
        plain(images(1)[0]).set_at(0.9)
    with pytest.raises(InvalidCalibrationError, match="need 99 calibration images"):
        classifier(encoder, calibration=calibration, coverage=0.99)
    with pytest.raises(InvalidOptionError, match="coverage"):
        classifier(encoder, calibration=calibration, coverage=1.5)
    with pytest.raises(InvalidCalibrationError, match="no confidence threshold"):
        classifier(encoder, calibration=calibration, max_error=0.001)
    for level in (1.5, 0, "0.9", True, None, float("nan")):
        with pytest.raises(InvalidOptionError):
            plain.calibrate(images(12), truth(12), coverage=[level])
        with pytest.raises(InvalidOptionError):
            plain.calibrate(images(12), truth(12), confidence=level)
        with pytest.raises(InvalidOptionError):
            classifier(encoder, calibration=calibration)(images(1, seed=8)[0]).set_at(level)
    with pytest.raises(InvalidOptionError, match=r"max_error is '0\.5'"):
        classifier(encoder, calibration=calibration, max_error="0.5")
    with pytest.raises(InvalidOptionError, match="reject and max_error"):
        classifier(encoder, calibration=calibration, max_error=0.5, reject=0.1)
    with pytest.raises(CalibrationImageError):
        classifier(encoder, calibration=calibration)(images(60)[0])
    with pytest.raises(InvalidLabelsError):
        Classifier([], encoder, calibration=calibration)


def test_labels_without_an_image_are_a_warning(encoder):
    several = (image for image in images(20))
    with pytest.warns(UserWarning, match=r"1 of 3 labels have no image: 'rocket'\. In a random sample"):
        made = classifier(encoder).calibrate(several, ["cat", "dog"] * 10, coverage=0.9)
    assert len(made) == 20
    with pytest.warns(UserWarning, match="10 images say little"):
        classifier(encoder).calibrate(images(10), truth(10))


@pytest.mark.filterwarnings("ignore:.*labels have no image")
def test_a_set_without_a_probable_label_says_so(encoder):
    plain = classifier(encoder)
    predicted = [result.label for result in plain(images(40))]
    made = plain.calibrate(images(40), predicted)  # every answer is right
    results = [classifier(encoder, calibration=made, coverage=0.5)(image) for image in images(12, seed=2)]
    limit = np.sort(made.methods["zero-shot"].scores["lac"])[20]  # the ceil(41 * 0.5)-th
    assert {-np.log(result.raw_confidence) > limit + 1e-8 for result in results} == {True, False}
    for result in results:
        assert any("no label is probable enough" in note for note in result.notes) == (
            -np.log(result.raw_confidence) > limit + 1e-8
        )
        assert result.prediction_set[0] == result.label


def test_bad_images_and_copies_cost_one_row_each(encoder, tmp_path: Path):
    (tmp_path / "broken.png").write_bytes(b"no image")
    several = [*images(30), tmp_path / "broken.png", images(30)[0]]
    with warnings.catch_warnings(record=True) as notes:
        warnings.simplefilter("always")
        made = classifier(encoder).calibrate(several, [*truth(30), "cat", "cat"])
    assert len(made) == 30
    assert [word in str(note.message) for note, word in zip(notes, ("broken.png", "copy"), strict=True)] == [True] * 2
    with pytest.raises(InvalidCalibrationError, match="same image with different labels"):
        classifier(encoder).calibrate(several[:30] + several[31:], [*truth(30), "dog"])


def smooth(number: int, seed: int = 0) -> list[Image.Image]:
    """Return images with structure that survives resizing."""
    cells = np.random.default_rng(seed).integers(0, 256, (number, 8, 8, 3), np.uint8)
    return [Image.fromarray(each).resize((96, 96), Image.Resampling.BICUBIC) for each in cells]


def test_near_copies_are_noticed(encoder, tmp_path: Path):
    given = smooth(30)
    copy = given[3].resize((64, 64))
    with pytest.warns(UserWarning, match=r"1 image may be a copy.*<image> like <image>\. Copies are no new draws"):
        made = classifier(encoder).calibrate([*given, copy], [*truth(30), truth(30)[3]])
    assert (len(made), len(made.looks)) == (31, 31)
    with pytest.warns(UserWarning, match="Their labels differ"):
        classifier(encoder).calibrate([*given, copy], [*truth(30), truth(30)[4]])
    made.save(tmp_path / "c.json")
    several = [given[5].resize((200, 200)), *smooth(3, seed=1)]
    calibrated = classifier(encoder, calibration=tmp_path / "c.json")
    assert [LIKE_KNOWN in result.notes for result in calibrated(several)] == [True, False, False, False]
    found = calibrated.evaluate(several, truth(4))
    assert found.copies == 1
    assert "another size or encoding: 1 image." in found.summary()
    assert calibrated.evaluate(several[1:], truth(3)).copies == 0


@pytest.mark.filterwarnings("ignore:.*labels have no image")
@pytest.mark.parametrize("which", ["right", "wrong"])
def test_all_right_and_all_wrong(encoder, which):
    plain = classifier(encoder)
    predicted = [result.label for result in plain(images(40))]
    given = predicted if which == "right" else [LABELS[LABELS.index(label) - 1] for label in predicted]
    made = plain.calibrate(images(40), given)
    part = made.methods["zero-shot"]
    result = classifier(encoder, calibration=made)(images(1, seed=4)[0])
    assert 0 < result.confidence <= 1
    assert (part.certificate(0.2).threshold is None) == (which == "wrong")
    assert part.before["accuracy"].value == (which == "right")


def test_streams_are_refused(encoder):
    plain = classifier(encoder)
    plain.tuner = type("Stream", (), {"ordered": True})()
    with pytest.raises(InvalidCalibrationError, match="depend on the images before"):
        plain.calibrate(images(3), truth(3))


def test_random_numbers_depend_on_the_image_alone():
    numbers = [uniform(str(key)) for key in range(2000)]
    assert uniform("a") == uniform("a") != uniform("b")
    assert 0 <= min(numbers) < 0.01
    assert 0.99 < max(numbers) < 1
    assert abs(np.mean(numbers) - 0.5) < 0.03
