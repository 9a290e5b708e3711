"""`pipeline` equals the pipeline of transformers: same call, same output, and for zero-shot the same scores."""

from __future__ import annotations

import base64
import io
from pathlib import Path

import pytest
import torch
from PIL import Image

import poise
from poise.errors import InvalidOptionError, UnknownNameError, UnreadableImageError
from tests.backbones.saved import save_clip, save_siglip

LABELS = ["cat", "dog", "great white shark"]


@pytest.fixture
def image() -> Image.Image:
    return Image.effect_noise((32, 32), 80).convert("RGB")  # the models' input size, so resizing is not compared


@pytest.mark.parametrize("save", [save_clip, save_siglip])
def test_equals_the_transformers_pipeline(tmp_path: Path, image: Image.Image, save) -> None:
    from transformers import pipeline

    save(tmp_path)
    theirs = pipeline("zero-shot-image-classification", model=str(tmp_path), device="cpu")
    ours = poise.pipeline(
        "zero-shot-image-classification", model=f"transformers:{tmp_path}", method="zero-shot", device="cpu"
    )
    for template in ("This is a photo of {}.", "a photo of a {}."):
        arguments = {"candidate_labels": LABELS, "hypothesis_template": template}
        expected, answer = theirs(image, **arguments), ours(image, **arguments)
        assert [row["label"] for row in answer] == [row["label"] for row in expected]
        assert [row["score"] for row in answer] == pytest.approx([row["score"] for row in expected], abs=1e-5)
        assert [set(row) for row in answer] == [{"score", "label"}] * 3
    expected, answer = (pipe([image, image], **arguments) for pipe in (theirs, ours))
    assert [[row["label"] for row in rows] for rows in answer] == [[row["label"] for row in rows] for rows in expected]


def test_inputs_of_the_transformers_pipeline(tmp_path: Path, image: Image.Image) -> None:
    ours = poise.pipeline(model="tiny", device="cpu", views=4)
    path = tmp_path / "a.png"
    image.save(path)
    expected = ours(image, LABELS)
    buffer = io.BytesIO()
    image.save(buffer, "PNG")
    text = "data:image/png;base64," + base64.b64encode(buffer.getvalue()).decode()
    for source in (str(path), text, path):
        assert ours(source, candidate_labels=LABELS) == expected
    assert ours(images=image, candidate_labels=LABELS, timeout=3, batch_size=2) == expected
    assert sum(row["score"] for row in expected) == pytest.approx(1, abs=1e-6)


def test_generators_are_read_lazily(image: Image.Image) -> None:
    ours = poise.pipeline(model="tiny", device=-1, views=2, batch_size=1)
    taken = []

    def images():
        for number in range(100):
            taken.append(number)
            yield image

    answers = ours(images(), candidate_labels=LABELS)
    first = next(answers)
    assert first == ours(image, LABELS)
    assert len(taken) < 20
    answers.close()
    assert list(ours(iter([]), candidate_labels=LABELS)) == []
    assert ours([], candidate_labels=LABELS) == []


def test_options_of_a_call(image: Image.Image) -> None:
    ours = poise.pipeline(model="tiny", device=torch.device("cpu"), views=2)
    whole = ours(image, LABELS)
    assert ours(image, LABELS, top_k=2) == whole[:2]
    assert ours([image], LABELS, top_k=1, batch_size=3) == [whole[:1]]
    result = poise.Classifier(LABELS, "tiny", device="cpu", views=2)(image)  # one default template for both
    assert [row["score"] for row in whole] == list(result.probabilities.values())
    assert ours(image, LABELS, hypothesis_template="This is a photo of {}.") != whole
    with pytest.raises(InvalidOptionError, match="top_k is 0"):
        ours(image, LABELS, top_k=0)
    with pytest.raises(InvalidOptionError, match="batch_size is 0"):
        ours(image, LABELS, batch_size=0)


def test_options_are_checked_when_the_pipeline_is_created(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("poise.inference.pipelines.load_model", None)  # the model is not loaded before the checks
    with pytest.raises(UnknownNameError, match="Did you mean 'views'"):
        poise.pipeline(model="tiny", veiws=2)
    with pytest.raises(UnknownNameError, match="Did you mean 'tpt'"):
        poise.pipeline(model="tiny", method="tptt")
    with pytest.raises(InvalidOptionError, match=r"poise\.Classifier"):
        poise.pipeline(model="tiny", method=["tpt", "kld"])
    with pytest.raises(InvalidOptionError, match="views is 0"):
        poise.pipeline(model="tiny", views=0)
    with pytest.raises(InvalidOptionError, match="batch_size is -1"):
        poise.pipeline(model="tiny", batch_size=-1)


def test_invalid_inputs_raise_errors(image: Image.Image) -> None:
    ours = poise.pipeline(model="tiny", device="cpu", views=2)
    with pytest.raises(UnreadableImageError, match="poise does not fetch"):
        ours("https://example.org/cat.png", candidate_labels=LABELS)
    with pytest.raises(UnreadableImageError, match="base64"):
        ours("data:image/png;base64,!!!", candidate_labels=LABELS)
    with pytest.raises(InvalidOptionError, match="candidate_labels is 'cat, dog'"):
        ours(image, candidate_labels="cat, dog")
    with pytest.raises(InvalidOptionError, match="candidate_labels"):
        ours(image)
    with pytest.raises(InvalidOptionError, match="No image"):
        ours(candidate_labels=LABELS)
    with pytest.raises(UnknownNameError, match="zero-shot-image-classification"):
        poise.pipeline("image-classification", model="tiny")
