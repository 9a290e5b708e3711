from __future__ import annotations

import contextlib
import io
import os
import resource
import struct
import subprocess
import sys
import threading
import zlib
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image, ImageCms

from poise.errors import InvalidOption, UnreadableImage
from poise.images import find_images, read_image


def _pixels(width: int = 40, height: int = 30, channels: int = 3) -> np.ndarray:
    y, x, c = np.mgrid[0:height, 0:width, 0:channels]
    return ((x * 5 + y * 3 + c * 60) % 256).astype(np.uint8)


def _encode(image: Image.Image, kind: str, **options: object) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, kind, **options)
    return buffer.getvalue()


def _png_header(width: int, height: int) -> bytes:
    body = b"IHDR" + struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    start = b"\x89PNG\r\n\x1a\n" + struct.pack(">I", 13) + body + struct.pack(">I", zlib.crc32(body))
    data = b"IDAT" + zlib.compress(bytes(1000))
    return start + struct.pack(">I", len(data) - 4) + data + struct.pack(">I", zlib.crc32(data))


PICTURE = Image.fromarray(_pixels())


@pytest.mark.parametrize("kind", ["PNG", "BMP", "TIFF", "GIF", "WEBP", "JPEG"])
def test_the_same_picture_has_one_key_in_every_container(kind: str, tmp_path: Path) -> None:
    options = {"WEBP": {"lossless": True}, "JPEG": {"quality": 95}}.get(kind, {})
    data = _encode(PICTURE, kind, **options)
    path = tmp_path / "any name"
    path.write_bytes(data)
    made = [read_image(source) for source in (path, str(path), data, bytearray(data), Image.open(io.BytesIO(data)))]
    assert len({picture.key for picture in made}) == 1
    assert made[0].image.mode == "RGB"
    assert made[0].source == str(path)
    assert made[0].frames == 1
    if kind not in ("GIF", "JPEG"):
        assert made[0].key == read_image(PICTURE).key
        assert made[0].notes == ()


def test_arrays_and_tensors_are_the_same_picture() -> None:
    array = _pixels()
    key = read_image(PICTURE).key
    assert read_image(array).key == key
    assert read_image(array[::1, ::-1][:, ::-1]).key == key  # strides
    assert read_image(array / 255).key == key
    assert read_image((array / 255).astype(np.float32)).key == key
    assert read_image(torch.from_numpy(array.copy()).permute(2, 0, 1)).key == key
    opaque = np.concatenate([array, np.full((30, 40, 1), 255, np.uint8)], axis=2)
    assert read_image(opaque).key == key
    assert read_image(opaque).notes == ()


def test_size_is_part_of_the_key() -> None:
    assert read_image(Image.new("RGB", (2, 6))).key != read_image(Image.new("RGB", (6, 2))).key


def test_callers_picture_is_not_shared() -> None:
    image = PICTURE.copy()
    picture = read_image(image)
    image.putpixel((0, 0), (9, 9, 9))
    assert read_image(picture.image).key == picture.key != read_image(image).key


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", "empty"),
        (b"hello, I am no picture", "text"),
        (b"<!DOCTYPE html><html>404</html>", "text"),
        (b"\x00\x01\x02\x03" * 10, "unknown format"),
        (b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 1 1\n", "text"),
        (b"RIFF\x00\x00\x00\x00WAVEfmt ", "not a picture"),
        (b"\xff\xd8\xff", "damaged|truncated"),
        (b"\x89PNG\r\n\x1a\n", "damaged|truncated"),
        (b"GIF89a", "damaged|truncated"),
        (b"BM", "damaged|truncated"),
        (b"II*\x00", "damaged|truncated"),
        (b"RIFF\x10\x00\x00\x00WEBPVP8 ", "damaged|truncated"),
    ],
)
@pytest.mark.parametrize("allow", [False, True])
def test_bytes_that_are_no_picture(data: bytes, words: str, allow: bool, tmp_path: Path) -> None:
    path = tmp_path / "cat.jpg"
    path.write_bytes(data)
    with pytest.raises(UnreadableImage, match=words) as caught:
        read_image(path, allow_truncated=allow)
    assert caught.value.code == "unreadable_image"
    assert "cat.jpg" in str(caught.value)


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF"])
def test_every_cut_is_an_error_or_flagged(kind: str) -> None:
    rng = np.random.default_rng(0)
    data = _encode(Image.fromarray(rng.integers(0, 256, (64, 64, 3), dtype=np.uint8)), kind)
    whole = read_image(data).key
    decoded = 0
    for percent in range(100):
        part = data[: len(data) * percent // 100]
        try:
            strict: str | None = read_image(part).key
        except UnreadableImage:
            strict = None
        assert strict in (None, whole)  # only bytes that no pixel needs may be missing
        try:
            lenient = read_image(part, allow_truncated=True)
        except UnreadableImage:
            continue
        assert lenient.key == whole or any("truncated" in note for note in lenient.notes)
        decoded += 1
    assert decoded > 0 or kind in ("WEBP",)


def test_the_kept_part_of_a_truncated_picture_is_right() -> None:
    rng = np.random.default_rng(0)
    array = rng.integers(0, 256, (200, 64, 3), dtype=np.uint8)
    data = _encode(Image.fromarray(array), "PNG")
    kept = np.asarray(read_image(data[: len(data) // 2], allow_truncated=True).image)
    np.testing.assert_array_equal(kept[:60], array[:60])


@pytest.mark.parametrize("size", [(60_000, 60_000), (1, 10**9), (12_000, 9_000), (7072, 7072)])
def test_bombs_are_refused_from_the_header(size: tuple[int, int]) -> None:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(UnreadableImage, match="more than the limit"):
        read_image(_png_header(*size))
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 50_000  # KiB


def test_the_limit_is_the_callers_and_not_pillows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 10)
    data = _encode(PICTURE, "PNG")
    assert read_image(data, max_pixels=1200).key == read_image(PICTURE).key
    for source in (data, PICTURE, _pixels(), torch.from_numpy(_pixels()).permute(2, 0, 1)):
        with pytest.raises(UnreadableImage, match="40 x 30"):
            read_image(source, max_pixels=1199)


@pytest.mark.parametrize("kind", ["GIF", "WEBP", "PNG", "TIFF"])
def test_of_an_animation_the_first_frame_is_used(kind: str) -> None:
    frames = [Image.new("RGB", (8, 8), colour) for colour in ((255, 0, 0), (0, 255, 0), (0, 0, 255))]
    options = {"lossless": True} if kind == "WEBP" else {}
    picture = read_image(_encode(frames[0], kind, save_all=True, append_images=frames[1:], **options))
    assert picture.image.getpixel((0, 0)) == (255, 0, 0)
    assert picture.frames == (2 if kind in ("GIF", "TIFF") else 3)
    assert any("first frame" in note for note in picture.notes)


def test_a_gif_of_a_hundred_thousand_frames_is_not_walked() -> None:
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

    from poise.images import _read_stream

    assert _read_stream(Counting(data), "long.gif", False, 1000).frames == 2
    assert reads < 200


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
        with pytest.raises(UnreadableImage, match=words):
            read_image(_encode(Image.new(mode, (4, 4)), "TIFF"))
    with pytest.raises(UnreadableImage, match="LAB"):
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


@pytest.mark.parametrize("size", [(1, 1), (1, 5000), (5000, 1)])
def test_extreme_shapes_are_read(size: tuple[int, int]) -> None:
    assert read_image(_encode(Image.new("RGB", size), "PNG")).image.size == size


@pytest.mark.parametrize(
    "array",
    [
        np.full((4, 4, 3), np.nan),
        np.full((4, 4, 3), 1.5),
        np.full((4, 4), -0.1),
        np.zeros((3, 40, 40), np.uint8),
        np.zeros((4, 4, 2), np.uint8),
        np.zeros((0, 4, 3), np.uint8),
        np.zeros(4, np.uint8),
        np.zeros((4, 4), np.int64),
        np.zeros((4, 4, 3), np.uint16),
        np.zeros((4, 4), bool),
        torch.zeros(3, 4, 4),
        torch.zeros(4, 4, 3, dtype=torch.uint8),
        torch.zeros(3, 0, 4, dtype=torch.uint8),
        42,
        None,
        ["a.jpg"],
    ],
)
def test_other_objects_are_refused(array: object) -> None:
    with pytest.raises(UnreadableImage):
        read_image(array)  # type: ignore[arg-type]


def test_paths_that_are_no_files(tmp_path: Path) -> None:
    with pytest.raises(UnreadableImage, match="does not exist"):
        read_image(tmp_path / "none.jpg")
    with pytest.raises(UnreadableImage, match="a folder"):
        read_image(tmp_path)
    with pytest.raises(UnreadableImage, match="web address"):
        read_image("https://example.org/cat.jpg")
    with pytest.raises(UnreadableImage):
        read_image("a\0b")
    os.mkfifo(tmp_path / "pipe.jpg")
    outcome: list[BaseException] = []

    def read(source: str) -> None:
        try:
            read_image(source)
        except UnreadableImage as error:
            outcome.append(error)

    for source in (str(tmp_path / "pipe.jpg"), "/dev/zero"):
        thread = threading.Thread(target=read, args=(source,), daemon=True)
        thread.start()
        thread.join(5)
        assert not thread.is_alive()
    assert ["not a regular file" in str(error) for error in outcome] == [True, True]


@given(
    st.binary(max_size=300), st.sampled_from([b"\xff\xd8\xff", b"\x89PNG\r\n\x1a\n", b"GIF89a", b"BM", b"II*\x00", b""])
)
@settings(max_examples=200, deadline=None)
def test_random_bytes_never_crash(tail: bytes, magic: bytes) -> None:
    for allow in (False, True):
        with contextlib.suppress(UnreadableImage):
            read_image(magic + tail, allow_truncated=allow, max_pixels=10**6)


def test_images_are_found_in_folders_globs_and_by_name(tmp_path: Path) -> None:
    for name in ("b.jpg", "a.PNG", "deep/c.webp", "notes.txt", ".hidden.jpg", "odd[1].jpg"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(b"x")
    (tmp_path / "empty").mkdir()
    below = [tmp_path / name for name in ("a.PNG", "b.jpg", "deep/c.webp", "odd[1].jpg")]
    assert find_images([tmp_path]) == below
    assert find_images([tmp_path / "*.jpg"]) == [tmp_path / "b.jpg", tmp_path / "odd[1].jpg"]
    assert find_images([f"{tmp_path}/**/*.webp"]) == [tmp_path / "deep/c.webp"]
    assert find_images([f"{tmp_path}/d*"]) == [tmp_path / "deep/c.webp"]
    assert find_images([tmp_path / "odd[1].jpg"]) == [tmp_path / "odd[1].jpg"]
    assert find_images([tmp_path / "notes.txt", tmp_path / "gone.jpg"]) == [
        tmp_path / "notes.txt",
        tmp_path / "gone.jpg",
    ]
    assert find_images([tmp_path / "b.jpg", tmp_path]) == [below[1], below[0], *below[2:]]
    for nothing in (tmp_path / "empty", f"{tmp_path}/*.bmp"):
        with pytest.raises(InvalidOption, match="holds no picture"):
            find_images([nothing])


def test_reading_pictures_does_not_import_torch() -> None:
    code = "import sys, poise.images; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
