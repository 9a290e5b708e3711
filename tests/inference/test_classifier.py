"""`Classifier`: inputs, results, errors, and what must not change an answer."""

from __future__ import annotations

import dataclasses
import io
import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

import poise
from poise import methods
from poise.backbones import load_model
from poise.errors import InvalidLabelsError, InvalidOptionError, UnknownNameError, UnreadableImageError
from poise.prompts import files

LABELS = ["cat", "dog", "great white shark"]


@pytest.fixture(scope="module")
def encoder():
    return load_model("tiny", device="cpu")


def make_image(seed: int = 0, width: int = 40, height: int = 30) -> Image.Image:
    noise = np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)
    return Image.fromarray(noise).resize((width, height))


def classifier(encoder, labels=LABELS, method="kld+cats", **options):
    return poise.Classifier(labels, encoder, method, **{"views": 8, **options})


def test_fields_of_a_result(encoder) -> None:
    result = classifier(encoder)(make_image(), details=True)
    assert result.label in LABELS
    assert set(result.probabilities) == set(LABELS)
    values = list(result.probabilities.values())
    assert values == sorted(values, reverse=True)
    assert sum(values) == pytest.approx(1, abs=1e-6)
    assert result.confidence == values[0] == result.probabilities[result.label]
    assert result.margin == pytest.approx(values[0] - values[1])
    assert 0 <= result.entropy <= math.log(3) + 1e-6
    assert (result.method, result.fallback, result.degenerate) == ("kld+cats", False, False)
    details = result.details
    assert len(details.view_confidences) == len(details.view_temperatures) == 8
    assert details.view_temperatures == pytest.approx(
        [10 - 9.9 * alpha for alpha in details.view_confidences], abs=1e-4
    )
    assert len(details.view_labels) == 8
    assert sum(details.init_probabilities.values()) == pytest.approx(1, abs=1e-6)
    assert details.scale == pytest.approx(100, rel=1e-5)
    assert len(details.losses) == 1
    assert classifier(encoder)(make_image()).details is None


def test_every_kind_of_input_gives_the_same_answer(encoder, tmp_path: Path) -> None:
    image = make_image()
    path = tmp_path / "a.png"
    image.save(path)
    expected = classifier(encoder)(image).probabilities
    for source in (path, str(path), path.read_bytes(), np.asarray(image)):
        assert classifier(encoder)(source).probabilities == expected


def test_one_image_gives_a_result_and_a_list_gives_a_list(encoder) -> None:
    assert isinstance(classifier(encoder)(make_image()), poise.Result)
    answers = classifier(encoder)([make_image(0), make_image(1)])
    assert [type(answer) for answer in answers] == [poise.Result, poise.Result]
    assert classifier(encoder)([]) == []


def test_the_seed_determines_the_views(encoder) -> None:
    first = classifier(encoder)(make_image(), details=True)
    again = classifier(encoder)(make_image(), details=True)
    other = classifier(encoder, seed=1)(make_image(), details=True)
    assert first == again
    assert first.details.view_confidences[0] == other.details.view_confidences[0]
    assert first.details.view_confidences[1:] != other.details.view_confidences[1:]


@given(order=st.permutations(range(5)), size=st.integers(1, 5))
@settings(max_examples=8)
def test_order_and_batch_size_do_not_change_answers(encoder, order: list[int], size: int) -> None:
    alone = [classifier(encoder)(make_image(i)).probabilities for i in range(5)]
    together = classifier(encoder, batch_size=size)([make_image(i) for i in order])
    for result, i in zip(together, order, strict=True):
        assert result.probabilities == pytest.approx(alone[i], abs=1e-5)


@given(order=st.permutations(range(4)))
@settings(max_examples=6)
def test_permuting_labels_permutes_probabilities(encoder, order: list[int]) -> None:
    labels = ["cat", "dog", "great white shark", "cup"]
    straight = classifier(encoder, labels)(make_image()).probabilities
    permuted = classifier(encoder, [labels[i] for i in order])(make_image()).probabilities
    assert permuted == pytest.approx(straight, abs=1e-4)


@pytest.mark.parametrize("method", methods.names())
def test_every_method_returns_probabilities(encoder, method: str) -> None:
    values = list(classifier(encoder, method=method)(make_image()).probabilities.values())
    assert all(math.isfinite(value) for value in values)
    assert sum(values) == pytest.approx(1, abs=1e-6)


def test_zero_shot_needs_no_augmented_views(encoder) -> None:
    assert classifier(encoder, method="zero-shot")(make_image()).probabilities == pytest.approx(
        classifier(encoder)(make_image(), details=True).details.init_probabilities, abs=1e-6
    )


@pytest.mark.parametrize("labels", [["cat"], ["cat,dog"]])
def test_one_label_is_refused_before_a_model_is_loaded(labels: list[str]) -> None:
    with pytest.raises(InvalidLabelsError, match="is the only label, and its probability would be 1") as refused:
        poise.Classifier(labels, "no such model")
    assert ("commas" in refused.value.hint) == ("," in labels[0])


def test_one_label_that_is_asked_for_is_certain_and_flagged(encoder) -> None:
    result = classifier(encoder, ["cat"], one_label=True)(make_image())
    assert (result.confidence, result.entropy, result.degenerate) == (1.0, 0.0, True)


def test_an_unreadable_file_does_not_affect_other_images(encoder, tmp_path: Path) -> None:
    bad = tmp_path / "bad.jpg"
    bad.write_text("not an image")
    outcomes = list(classifier(encoder).each([make_image(0), bad, make_image(1)]))
    assert [isinstance(outcome, poise.Failure) for outcome in outcomes] == [False, True, False]
    assert (outcomes[1].source, outcomes[1].code) == (str(bad), "unreadable_image")
    clean = list(classifier(encoder).each([make_image(0), make_image(1)]))
    assert [outcomes[0], outcomes[2]] == clean
    with pytest.raises(UnreadableImageError, match=r"bad\.jpg"):
        classifier(encoder)([make_image(0), bad])


@pytest.mark.parametrize("orientation", range(1, 9))
def test_exif_orientation_gives_the_same_answer(encoder, orientation: int) -> None:
    upright = make_image(3)
    undo = {1: None, 2: 0, 3: 3, 4: 1, 5: 5, 6: 2, 7: 6, 8: 4}[orientation]  # PIL's transpose for storing it
    stored = upright if undo is None else upright.transpose(Image.Transpose(undo))
    exif = Image.Exif()
    exif[0x0112] = orientation
    buffer = io.BytesIO()
    stored.save(buffer, "PNG", exif=exif)
    assert classifier(encoder)(buffer.getvalue()).probabilities == classifier(encoder)(upright).probabilities


@pytest.mark.parametrize("size", [(1, 1), (1, 5000), (5000, 1)])
def test_extreme_shapes_work(encoder, size: tuple[int, int]) -> None:
    assert math.isfinite(classifier(encoder)(make_image(0, *size)).confidence)


@pytest.fixture
def no_loading(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*arguments, **options):
        raise AssertionError("a model was loaded")

    monkeypatch.setattr("poise.inference.classifier.load_model", refuse)


@pytest.mark.usefixtures("no_loading")
@pytest.mark.parametrize("labels", [[], ["cat", "cat"], ["cat", " "], ["cat", 3], "cat", ["cat", None]])
def test_bad_labels_are_refused_before_a_model_is_loaded(labels) -> None:
    with pytest.raises(InvalidLabelsError):
        poise.Classifier(labels)


@pytest.mark.usefixtures("no_loading")
def test_names_and_options_are_refused_before_a_model_is_loaded() -> None:
    with pytest.raises(UnknownNameError, match="Did you mean 'tpt'"):
        poise.Classifier(LABELS, method="tptt")
    with pytest.raises(InvalidOptionError, match="brings its own template"):
        poise.Classifier(LABELS, template="a {}.", init="prompt.safetensors")


def test_several_methods_give_a_dict_of_results(encoder) -> None:
    several = classifier(encoder, method=["zero-shot", "kld+cats"])
    one = several(make_image())
    assert list(one) == ["zero-shot", "kld+cats"]
    assert all(isinstance(result, poise.Result) and result.method == name for name, result in one.items())
    assert several([make_image()]) == [one]
    assert list(several.each(iter([make_image()]))) == [one]
    assert list(classifier(encoder, method=["tpt"])(make_image())) == ["tpt"]


def test_predict_proba_is_in_the_order_of_the_labels(encoder) -> None:
    one = classifier(encoder)
    images = [make_image(0), make_image(1)]
    probs = one.predict_proba(images)
    assert probs.shape == (2, 3)
    for row, result in zip(probs, one(images), strict=True):
        assert row.tolist() == [result.probabilities[label] for label in one.labels]
    by_method = classifier(encoder, method=["zero-shot", "kld+cats"]).predict_proba(images)
    assert {name: values.shape for name, values in by_method.items()} == {"zero-shot": (2, 3), "kld+cats": (2, 3)}
    np.testing.assert_allclose(by_method["kld+cats"], probs, atol=1e-6)
    assert one.predict_proba([]).shape == (0, 3)
    with pytest.raises(UnreadableImageError):
        one.predict_proba(["missing.png"])


def test_representations_of_results_and_classifiers(encoder) -> None:
    one = classifier(encoder, ["<b>cat</b>", "dog", "tree"])
    result = one(make_image())
    assert result.top(2) == list(result.probabilities.items())[:2]
    shown = result._repr_html_()
    assert "&lt;b&gt;cat&lt;/b&gt;" in shown
    assert "<b>" not in shown
    assert "more" not in shown
    twelve = classifier(encoder, [f"thing {n}" for n in range(12)], "zero-shot")
    assert "and 2 more" in twelve(make_image())._repr_html_()
    for part in ("3 labels", "'dog'", "tiny", "kld+cats", "cpu"):
        assert part in repr(one)


def test_a_result_survives_json(encoder) -> None:
    result = classifier(encoder)(make_image(), details=True)
    decided = dataclasses.replace(result, prediction_set=("cat",), decision="answer")
    assert poise.Result.from_dict(json.loads(json.dumps(decided.to_dict()))) == decided
    assert poise.Result.from_dict({**decided.to_dict(), "of a newer version": 1}) == decided


def test_numbers_that_are_not_finite_are_none_in_json(encoder) -> None:
    result = classifier(encoder)(make_image(), details=True)
    broken = dataclasses.replace(result, details=dataclasses.replace(result.details, losses=(math.nan,)))
    assert broken.to_dict()["details"]["losses"] == [None]
    assert math.isnan(poise.Result.from_dict(broken.to_dict()).details.losses[0])
    assert result.to_dict()["confidence"] == result.confidence


def test_a_result_is_printed_in_one_short_line(encoder) -> None:
    result = classifier(encoder)(make_image(), details=True)
    assert str(result) == f"<image>: {result.label} {result.confidence:.3f} (kld+cats)"
    decided = dataclasses.replace(result, raw_confidence=0.9, prediction_set=("a", "b"), decision="abstain")
    assert str(decided).endswith("(kld+cats; calibrated; {a, b}; abstain)")
    many = dataclasses.replace(result, prediction_set=tuple("abcdefgh"))
    for shown in (str(many), many._repr_html_()):
        assert "{a, b, c, d, e and 3 more}" in shown


def test_an_init_file_has_its_own_template_and_long_labels_follow_the_option(encoder, tmp_path: Path) -> None:
    facts = files.Facts(kind="coop", model=encoder.name, template="a photo of a {}.")
    context = encoder.embed(torch.arange(4)) + 0.01
    files.save(tmp_path / "prompt", files.StoredPrompt({"context": context}, facts))
    long = ["cat", "word " * 90]
    with pytest.raises(InvalidLabelsError):
        classifier(encoder, long, init=tmp_path / "prompt")
    with pytest.warns(UserWarning, match="Cut to"):
        assert classifier(encoder, long, init=tmp_path / "prompt", on_long_label="truncate")(make_image()).label in long
    with pytest.raises(InvalidOptionError, match="brings its own template"):
        classifier(encoder, init=tmp_path / "prompt", template="a photo of a {}.")


def test_the_error_for_a_long_label_names_it_and_its_length(encoder) -> None:
    with pytest.raises(InvalidLabelsError, match=r"(?s)word word.*\d+.*77"):
        classifier(encoder, ["cat", "word " * 90])


def test_unknown_names_and_options_are_refused(encoder) -> None:
    with pytest.raises(UnknownNameError, match="Did you mean 'tpt'"):
        classifier(encoder, method="tptt")
    with pytest.raises(UnknownNameError, match="Did you mean 'ViT-B-16"):
        poise.Classifier(LABELS, "ViT-B-16x/openai")
    for options in (
        {"views": 0},
        {"views": 2.5},
        {"views": True},
        {"batch_size": 0},
        {"batch_size": 1.5},
        {"method": []},
    ):
        with pytest.raises(InvalidOptionError):
            classifier(encoder, **options)


def test_model_output_that_is_not_finite_gives_a_failure(encoder, monkeypatch: pytest.MonkeyPatch) -> None:
    encode = type(encoder).encode_images
    monkeypatch.setattr(type(encoder), "encode_images", lambda self, views: encode(self, views) * float("nan"))
    (outcome,) = classifier(encoder).each([make_image()])
    assert isinstance(outcome, poise.Failure)
    assert outcome.code == "non_finite"


def test_a_method_that_tunes_needs_words_to_tune() -> None:
    with pytest.raises(InvalidOptionError, match=r"context='none' leaves no words to tune"):
        poise.Classifier(["a", "b"], model="tiny", method=["zero-shot", "tpt"], views=2, context="none", device="cpu")
    plain = poise.Classifier(["a", "b"], model="tiny", method="zero-shot", context="none", device="cpu")
    assert plain(np.zeros((32, 32, 3), np.uint8)).label in plain.labels


AUGMENTED = methods.Method(name="m", terms=(methods.Term("entropy"),), include_plain=False)


@pytest.mark.parametrize(("method", "least"), [("zero-shot | cots", 2), ("mta", 5), (AUGMENTED, 2)])
def test_too_few_views_are_refused_before_the_model_is_loaded(method: str | methods.Method, least: int) -> None:
    with pytest.raises(InvalidOptionError, match=f"needs {least} views per image, and views is 1. Use {least} views"):
        poise.Classifier(["cat", "dog"], "no-such-model", method, views=1)
