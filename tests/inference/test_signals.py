"""What is said about an answer without a labelled image: match, and the label `unknown`."""

from __future__ import annotations

import csv
import io
import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.numpy import load_file
from typer.testing import CliRunner

import poise
from poise import methods
from poise.backbones import load_model
from poise.cli.app import app
from poise.errors import InvalidLabelsError, InvalidOptionError
from poise.inference.heuristics import check_reject, match
from poise.prompts import tokenise
from poise.tuning import make_tuner
from tests.backbones.saved import save_siglip

GOLDEN = Path(__file__).parents[1] / "golden"
LABELS = ["cat", "dog", "great white shark"]
ALWAYS = 1.9  # cosines of one image differ by less, so that every image is rejected


def make_image(seed: int = 0) -> Image.Image:
    return Image.fromarray(np.random.default_rng(seed).integers(0, 256, (40, 30, 3), dtype=np.uint8))


def mcm(cosines: list[float]) -> float:
    """Maximum concept matching, by definition."""
    return max(math.exp(cosine) for cosine in cosines) / math.fsum(math.exp(cosine) for cosine in cosines)


class PlainEncoder:
    """A third party's encoder: the protocol and nothing else, with its own scale and bias."""

    name, activation, scale, bias = "theirs", "softmax", 30.0, 4.0

    def __init__(self) -> None:
        self._inner = load_model("tiny", device="cpu", dtype="float64")
        for fact in ("image", "context_length", "fixed_length", "pad_id", "device", "dtype"):
            setattr(self, fact, getattr(self._inner, fact))
        for work in ("token_ids", "embed", "encode_images", "encode_classes"):
            setattr(self, work, getattr(self._inner, work))

    def logits(self, image_features: torch.Tensor, text_features: torch.Tensor) -> torch.Tensor:
        return self.scale * image_features @ text_features.transpose(-1, -2) + self.bias


@pytest.mark.parametrize("part", ["inside", "outside"])
@pytest.mark.parametrize(("scale", "bias"), [(1.0, 0.0), (100.0, 0.0), (112.0, -16.5)])
def test_match_is_the_published_mcm_on_a_scale_without_the_number_of_labels(
    part: str, scale: float, bias: float
) -> None:
    """The published code returns minus the score."""
    stored = load_file(GOLDEN / "mcm.safetensors")
    cosines = stored[part] @ stored["text"].T
    values = np.array([match(scale * row + bias, scale, bias) for row in cosines])
    assert np.exp(values) / len(stored["text"]) == pytest.approx(-stored[f"score_{part}"], abs=1e-12)
    assert ((values > 0) & (values < 2)).all()


def test_match_needs_a_difference_between_labels() -> None:
    assert match(np.array([25.0]), 100.0, 0.0) == 0
    assert match(np.full(7, -3.0), 100.0, -16.0) == pytest.approx(0, abs=1e-12)
    once, thrice = np.array([30.0, 10.0]), np.array([30.0, 10.0] * 3)
    assert match(once, 100.0, 0.0) == pytest.approx(match(thrice, 100.0, 0.0))
    assert match(once + 7, 100.0, 0.0) == pytest.approx(match(once, 100.0, 0.0))  # an offset of the image cancels


@pytest.mark.parametrize("method", ["zero-shot", "tpt", "kld+cats"])
@pytest.mark.parametrize("make", [lambda: load_model("tiny", device="cpu", dtype="float64"), PlainEncoder])
def test_signals_of_a_result_follow_from_the_features(method: str, make) -> None:
    """A slow loop over views and labels, from the features of the tuner's answer."""
    encoder = make()
    classify = poise.Classifier(LABELS, encoder, method, views=8)
    result = classify(make_image(), details=True)
    views = next(iter(classify.predictor.views([make_image()], views=classify.recipe)))
    features = encoder.encode_images(views[None])
    tuner = make_tuner(encoder, tokenise(encoder, LABELS), [methods.get(method)])
    plain = [float(features[0, 0] @ text) for text in tuner.texts.init_features()[0]]
    assert result.match == pytest.approx(math.log(3 * mcm(plain)), abs=1e-9)
    texts = tuner.predict(features)[method].text_features[0]
    table = [[float(view @ text) for text in texts] for view in features[0]]
    labels = [LABELS[row.index(max(row))] for row in table]
    assert (labels[0], result.rejected) == (result.label, None)


def test_the_bias_of_siglip_is_removed(tmp_path: Path) -> None:
    save_siglip(tmp_path)
    encoder = load_model(f"transformers:{tmp_path}", device="cpu")
    assert encoder.bias == pytest.approx(-7)
    result = poise.Classifier(LABELS, encoder, "zero-shot")(make_image(), details=True)
    cosines = [(logit + 7) / encoder.scale for logit in result.details.logits.values()]
    assert result.match == pytest.approx(math.log(3 * mcm(cosines)), abs=1e-6)


def test_one_view_and_one_label() -> None:
    classify = poise.Classifier(["cat"], "tiny", views=1, device="cpu", one_label=True)
    result = classify(make_image())
    assert (result.degenerate, result.match) == (True, 0.0)
    with pytest.raises(InvalidLabelsError, match="'cat' is the only label"):
        poise.Classifier(["cat"], "tiny", reject=0.1, one_label=True)


def test_rejected_images_keep_their_answer() -> None:
    encoder = load_model("tiny", device="cpu")
    expected = poise.Classifier(LABELS, encoder, views=4)(make_image())
    result = poise.Classifier(LABELS, encoder, views=4, reject=ALWAYS)(make_image())
    assert (result.label, result.rejected) == ("unknown", expected.label)
    assert (result.probabilities, result.confidence) == (expected.probabilities, expected.confidence)
    assert next(iter(result.probabilities)) == result.rejected
    assert "unknown (match" in result._repr_html_()
    assert "unknown" not in expected._repr_html_()
    kept = poise.Classifier(LABELS, encoder, views=4, reject=expected.match / 2)(make_image())
    assert (kept.label, kept.rejected) == (expected.label, None)
    proba = poise.Classifier(LABELS, encoder, views=4, reject=ALWAYS).predict_proba([make_image()])
    assert proba[0] == pytest.approx([expected.probabilities[label] for label in LABELS], abs=1e-6)


@pytest.mark.parametrize("reject", [0, -0.1, 2, math.nan, math.inf, True, "0.1"])
def test_other_numbers_are_refused_before_the_model_is_loaded(reject: object) -> None:
    with pytest.raises(InvalidOptionError, match="reject is"):
        poise.Classifier(LABELS, "no such model", reject=reject)


@pytest.mark.parametrize("label", ["unknown", "Unknown", " UNKNOWN "])
def test_a_label_of_that_name_is_refused(label: str) -> None:
    assert poise.Classifier(["cat", label], "tiny", views=2, device="cpu").labels == ("cat", label)
    with pytest.raises(InvalidLabelsError, match="is one of the labels"):
        check_reject(0.1, ["cat", label])


def run(folder: Path, *arguments: str) -> str:
    make_image().save(folder / "a.png")
    options = ["--labels", "cat,=dog", "--model", "tiny", "--views", "4", "--device", "cpu"]
    done = CliRunner().invoke(app, ["classify", str(folder), *options, *arguments])
    assert done.exit_code == 0, done.output
    return done.stdout


def test_every_format_shows_rejected_images(tmp_path: Path) -> None:
    (row,) = json.loads(run(tmp_path, "--format", "json", "--reject", str(ALWAYS)))
    assert (row["label"], row["rejected"]) == ("unknown", next(iter(row["probabilities"])))
    (cells,) = csv.DictReader(io.StringIO(run(tmp_path, "--format", "csv", "--reject", str(ALWAYS))))
    assert cells["label"] == "unknown"
    assert cells["rejected"] == ("'=dog" if row["rejected"] == "=dog" else "cat")  # no formula for spreadsheets
    assert float(cells["match"]) == row["match"]
    assert f"unknown ({row['rejected']}?)" in run(tmp_path, "--reject", str(ALWAYS))


def test_every_format_shows_the_signals(tmp_path: Path) -> None:
    (row,) = json.loads(run(tmp_path, "--format", "json"))
    assert row["rejected"] is None
    (cells,) = csv.DictReader(io.StringIO(run(tmp_path, "--format", "csv")))
    assert (cells["rejected"], cells["label"].lstrip("'")) == ("", row["label"])
    table = run(tmp_path)
    assert "unknown" not in table
    assert {"match"} <= set(table.split("\n")[0].split())
