"""Copies of an image in another size or encoding look like it; other photos do not."""

from __future__ import annotations

import io
from itertools import combinations
from pathlib import Path

import numpy as np
import pytest
from PIL import Image, ImageOps

from poise.images.look import CELLS, WAVES, Looks, look_of
from poise.images.samples import sample_images


def encoded(image: Image.Image, kind: str, **options: int) -> Image.Image:
    stream = io.BytesIO()
    image.save(stream, kind, **options)
    return Image.open(stream).convert("RGB")


COPIES = {
    "half the size": lambda image: image.resize((image.width // 2, image.height // 2)),
    "64 pixels": lambda image: image.resize((64, 64 * image.height // image.width), Image.Resampling.BILINEAR),
    "twice the size": lambda image: image.resize((2 * image.width, 2 * image.height)),
    "JPEG of quality 30": lambda image: encoded(image, "JPEG", quality=30),
    "WebP of quality 50, smaller": lambda image: encoded(image.resize((200, 150)), "WEBP", quality=50),
    "darker": lambda image: image.point([round(0.8 * value) for value in range(256)] * 3),
    "without colour": lambda image: ImageOps.grayscale(image).convert("RGB"),
}


@pytest.fixture(scope="module")
def photos() -> list[Image.Image]:
    return [Image.open(path).convert("RGB") for path in sample_images()]


@pytest.mark.parametrize("change", COPIES.values(), ids=COPIES.keys())
def test_copies_are_found(photos: list[Image.Image], change) -> None:
    known = Looks([look_of(photo) for photo in photos])
    assert [known.first_like(look_of(change(photo))) for photo in photos] == list(range(len(photos)))


def test_other_photos_are_not(photos: list[Image.Image]) -> None:
    looks = [look_of(photo) for photo in photos]
    assert all(Looks([one]).first_like(two) is None for one, two in combinations(looks, 2))
    assert Looks(looks).first_like(looks[3], before=3) is None


def test_bits_are_signs_of_a_cosine_transform(photos: list[Image.Image]) -> None:
    small = photos[0].resize((CELLS, CELLS), Image.Resampling.BOX)
    cells = np.asarray(small.convert("L"), dtype=np.float64)
    bits = np.unpackbits(np.frombuffer(bytes.fromhex(look_of(small)), np.uint8)).reshape(WAVES, WAVES)
    for u, v in ((0, 1), (1, 0), (2, 3), (7, 7), (15, 15)):
        total = sum(
            cells[y, x] * np.cos(np.pi * u * (y + 0.5) / CELLS) * np.cos(np.pi * v * (x + 0.5) / CELLS)
            for y in range(CELLS)
            for x in range(CELLS)
        )
        assert bits[u, v] == (total > 0)


def test_images_without_contrast_look_like_nothing() -> None:
    flat = look_of(Image.new("RGB", (40, 40), (10, 90, 200)))
    assert flat == ""
    assert Looks([flat, flat]).first_like(flat) is None
    assert len(Looks([])) == 0
    assert Looks([]).first_like("0" * 64) is None


@pytest.mark.data
def test_few_real_photos_look_alike(data_root: Path) -> None:
    paths = sorted((data_root / "folders" / "pets").rglob("*.jpg"))[::3]
    looks = [look_of(Image.open(path).convert("RGB")) for path in paths]
    known = Looks(looks)
    assert sum(known.first_like(look, at) is not None for at, look in enumerate(looks)) <= 1
