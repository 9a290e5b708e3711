"""Pictures that are more than plain 8-bit RGB: animations, CMYK, transparency, 16 bits, EXIF orientation."""

from __future__ import annotations

import io

import numpy as np
import pytest
from PIL import Image, ImageCms

from poise.errors import UnreadableImageError
from poise.images import read_image


def _pixels(width: int = 40, height: int = 30, channels: int = 3) -> np.ndarray:
    y, x, c = np.mgrid[0:height, 0:width, 0:channels]
    return ((x * 5 + y * 3 + c * 60) % 256).astype(np.uint8)


def _encode(image: Image.Image, kind: str, **options: object) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, kind, **options)
    return buffer.getvalue()


PICTURE = Image.fromarray(_pixels())


@pytest.mark.parametrize("kind", ["GIF", "WEBP", "PNG", "TIFF"])
def test_of_an_animation_the_first_frame_is_used(kind: str) -> None:
    frames = [Image.new("RGB", (8, 8), colour) for colour in ((255, 0, 0), (0, 255, 0), (0, 0, 255))]
    options = {"lossless": True} if kind == "WEBP" else {}
    picture = read_image(_encode(frames[0], kind, save_all=True, append_images=frames[1:], **options))
    assert picture.image.getpixel((0, 0)) == (255, 0, 0)
    assert picture.frames == (2 if kind in ("GIF", "TIFF") else 3)
    assert any("first frame" in note for note in picture.notes)


def test_a_gif_of_a_hundred_thousand_frames_is_not_walked(monkeypatch: pytest.MonkeyPatch) -> None:
    one = _encode(Image.new("P", (4, 4)), "GIF")
    start = one.index(b",")
    frame = one[start:-1]
    data = one[:-1] + frame * 100_000 + b";"
    reads = 0

    class Counting(io.BytesIO):
        def read(self, size: int | None = -1) -> bytes:
            nonlocal reads
            reads += 1
            return super().read(size)

    monkeypatch.setattr(io, "BytesIO", Counting)
    assert read_image(data).frames == 2
    assert 0 < reads < 200


def test_cmyk_with_and_without_a_profile() -> None:
    cmyk = Image.new("CMYK", (4, 4), (255, 0, 0, 0))
    plain = read_image(_encode(cmyk, "TIFF"))
    assert plain.image.getpixel((1, 1)) == (0, 255, 255)
    assert "CMYK converted to RGB" in plain.notes
    assert read_image(_encode(cmyk, "JPEG", quality=100)).image.getpixel((1, 1))[0] < 5  # type: ignore[index]
    srgb = ImageCms.ImageCmsProfile(ImageCms.createProfile("sRGB")).tobytes()
    for profile in (srgb, b"not a profile"):  # neither is a usable CMYK profile: the plain formula answers
        assert read_image(_encode(cmyk, "TIFF", icc_profile=profile)).key == plain.key


def test_transparency_is_composited_on_white() -> None:
    clear = Image.new("RGBA", (4, 4), (255, 0, 0, 0))
    half = Image.new("RGBA", (4, 4), (255, 0, 0, 128))
    grey = Image.new("LA", (4, 4), (0, 0))
    palette = Image.new("P", (4, 4), 1)
    palette.putpalette([0, 0, 0, 10, 20, 30])
    white = (255, 255, 255)
    for image in (clear, grey):
        picture = read_image(_encode(image, "PNG"))
        assert picture.image.getpixel((0, 0)) == white
        assert picture.notes == ("transparency composited on white",)
    assert read_image(half).image.getpixel((0, 0)) == (255, 127, 127)
    assert read_image(_encode(palette, "PNG", transparency=1)).image.getpixel((0, 0)) == white
    assert read_image(_encode(palette, "GIF", transparency=1)).image.getpixel((0, 0)) == white
    assert read_image(_encode(palette, "PNG")).image.getpixel((0, 0)) == (10, 20, 30)
    keyed = read_image(_encode(Image.new("RGB", (4, 4), (1, 2, 3)), "PNG", transparency=(1, 2, 3)))
    assert keyed.image.getpixel((0, 0)) == white


@pytest.mark.parametrize("kind", ["PNG", "TIFF", "array"])
def test_16_bit_grey_keeps_its_levels(kind: str) -> None:
    ramp = np.tile(np.linspace(0, 65535, 1024).astype(np.uint16), (4, 1))
    picture = read_image(ramp if kind == "array" else _encode(Image.fromarray(ramp), kind))
    levels = np.unique(np.asarray(picture.image))
    assert len(levels) >= 250
    assert (levels[0], levels[-1]) == (0, 255)
    assert "16-bit grey scaled to 8 bits" in picture.notes


def test_pixels_of_unknown_range_are_refused() -> None:
    for mode, words in (("F", "floating-point"), ("I", "32-bit")):
        with pytest.raises(UnreadableImageError, match=words):
            read_image(_encode(Image.new(mode, (4, 4)), "TIFF"))
    with pytest.raises(UnreadableImageError, match="LAB"):
        read_image(Image.new("LAB", (4, 4)))


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "TIFF", "WEBP"])
def test_eight_orientations_give_one_picture(kind: str) -> None:
    undo = {
        1: None,
        2: Image.Transpose.FLIP_LEFT_RIGHT,
        3: Image.Transpose.ROTATE_180,
        4: Image.Transpose.FLIP_TOP_BOTTOM,
        5: Image.Transpose.TRANSPOSE,
        6: Image.Transpose.ROTATE_90,
        7: Image.Transpose.TRANSVERSE,
        8: Image.Transpose.ROTATE_270,
    }
    # 16 x 16 blocks of one colour: turned JPEG blocks decode to turned pixels.
    image = Image.fromarray(np.kron(_pixels(3, 2), np.ones((16, 16, 1), np.uint8)))
    options = {"JPEG": {"quality": 100, "subsampling": 0}, "WEBP": {"lossless": True}}.get(kind, {})
    keys, sizes = set(), set()
    for orientation, turn in undo.items():
        exif = Image.Exif()
        exif[0x0112] = orientation
        stored = image if turn is None else image.transpose(turn)
        picture = read_image(_encode(stored, kind, exif=exif, **options))
        keys.add(picture.key)
        sizes.add(picture.image.size)
    assert sizes == {(48, 32)}
    assert len(keys) == 1


def test_unreadable_exif_is_noted_and_survived() -> None:
    data = _encode(PICTURE, "PNG", exif=b"Exif\x00\x00II*\x00\xff\xff\xff\xff")
    assert read_image(data).key == read_image(PICTURE).key
