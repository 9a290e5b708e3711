"""The shipped model is the recorded one, open_clip reads it by itself, and it knows real images."""

from __future__ import annotations

import hashlib
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch.nn import functional as F

from poise.backbones import load_model
from poise.backbones.loaders.pocket import FOLDER

LABELS = (
    "cat",
    "dog",
    "horse",
    "bird",
    "fish",
    "coffee cup",
    "bottle",
    "pizza",
    "rocket",
    "airplane",
    "ship",
    "car",
    "motorcycle",
    "bicycle",
    "astronaut",
    "tree",
    "house",
    "chair",
    "clock",
    "guitar",
)
PHOTOS = {
    "chelsea.png": "cat",
    "coffee.png": "coffee cup",
    "rocket.jpg": "rocket",
    "astronaut.png": "astronaut",
    "motorcycle_left.png": "motorcycle",
}


def photo(name: str) -> Image.Image:
    skimage_data = pytest.importorskip("skimage.data")
    return Image.open(Path(skimage_data.__file__).parent / name).convert("RGB")


@pytest.fixture(scope="module")
def open_clip_model():
    open_clip = pytest.importorskip("open_clip")
    model, _, prepare = open_clip.create_model_and_transforms(f"local-dir:{FOLDER}")
    return model.eval(), prepare, open_clip.get_tokenizer(f"local-dir:{FOLDER}")


def test_files_are_the_recorded_ones():
    recorded = dict(line.split()[::-1] for line in (FOLDER / "SHA256SUMS").read_text().splitlines())
    assert set(recorded) == {"open_clip_config.json", "open_clip_model.safetensors"}
    for name, digest in recorded.items():
        assert hashlib.sha256((FOLDER / name).read_bytes()).hexdigest() == digest, name


def test_folder_is_at_most_50_megabytes():
    assert sum(file.stat().st_size for file in FOLDER.iterdir()) <= 50_000_000


def test_five_images_among_twenty_labels_through_open_clip(open_clip_model):
    model, prepare, tokenizer = open_clip_model
    with torch.inference_mode():
        images = model.encode_image(torch.stack([prepare(photo(name)) for name in PHOTOS]), normalize=True)
        texts = model.encode_text(tokenizer([f"a photo of a {label}." for label in LABELS]), normalize=True)
    found = (images @ texts.T).argmax(-1)
    assert [LABELS[i] for i in found] == list(PHOTOS.values())


def test_open_clip_gives_the_same_features(open_clip_model):
    from poise.prompts import init_prompt, tokenise

    model, prepare, tokenizer = open_clip_model
    encoder = load_model("pocket", device="cpu", dtype="float32")
    images = torch.stack([prepare(photo(name)) for name in PHOTOS])
    with torch.inference_mode():
        classes = tokenise(encoder, LABELS, "a photo of a {}.")
        ours = (
            encoder.encode_images(images[None])[0],
            encoder.encode_classes(classes, init_prompt(encoder, classes))[0],
        )
        theirs = (
            F.normalize(model.encode_image(images), dim=-1),
            F.normalize(model.encode_text(tokenizer([f"a photo of a {label}." for label in LABELS])), dim=-1),
        )
    for mine, other in zip(ours, theirs, strict=True):
        assert np.abs(mine.numpy() - other.numpy()).max() <= 1e-5


def test_scale_is_the_model_s_own(open_clip_model):
    encoder = load_model("pocket", device="cpu", dtype="float32")
    one = torch.ones(1, 1, 4) / 2
    theirs = open_clip_model[0].logit_scale.detach().exp().item()
    assert encoder.logits(one, one).item() == pytest.approx(theirs, rel=1e-5)
