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
from PIL import Image

from poise.errors import InvalidOptionError, UnreadableImageError
from poise.images import bounded_stream, find_images, read_image
from poise.images.find import count_skipped, in_words


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


def _scans(scans: int, side: int = 400) -> bytes:
    """Return a progressive JPEG with the last of its scans repeated."""
    data = _encode(Image.new("L", (side, side), 128), "JPEG", progressive=True)
    return data[:-2] + data[data.rindex(b"\xff\xda") : -2] * scans + data[-2:]


def _rle_bomb(side: int = 16, pairs: int = 3_000_000) -> bytes:
    """Return a BMP whose run lengths are beyond the end of its first row."""
    body, start = b"\x01\x00" * pairs, 14 + 40 + 1024
    header = struct.pack("<IiiHHIIiiII", 40, side, side, 1, 8, 1, len(body), 2835, 2835, 256, 0)
    return b"BM" + struct.pack("<IHHI", start + len(body), 0, 0, start) + header + bytes(1024) + body


def test_scans_of_a_jpeg_are_counted_before_they_are_decoded(tmp_path: Path) -> None:
    assert read_image(_scans(80)).image.size == (400, 400)
    (tmp_path / "bomb.jpg").write_bytes(_scans(5000))
    for source in (_scans(5000), tmp_path / "bomb.jpg"):
        with pytest.raises(UnreadableImageError, match="more than 100 scans"):
            read_image(source)


def test_what_follows_a_jpeg_is_not_counted() -> None:
    picture = _encode(PICTURE, "JPEG", progressive=True)
    film = b"\xff\xda" * 100_000  # as cameras append one to a photo
    assert read_image(picture + bytes(70_000) + film).key == read_image(picture).key


@pytest.mark.parametrize("name", ["bmp", "jpeg"])
def test_decoding_ends_when_its_time_is_used(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter(range(10_000_000))  # each look at it is a second later
    monkeypatch.setattr(bounded_stream.time, "thread_time", lambda: next(clock) / 8)
    slow = {"bmp": _rle_bomb(), "jpeg": _encode(Image.effect_noise((2000, 2000), 99), "JPEG", quality=95)}[name]
    with pytest.raises(UnreadableImageError, match="too much time"):
        read_image(slow)


def test_an_image_without_a_name_is_the_image() -> None:
    for source in (b"text", b"", _encode(PICTURE, "PNG")[:-30]):
        with pytest.raises(UnreadableImageError, match=r"^The image "):
            read_image(source)


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
        (b"RIFF\x00\x00\x00\x00WAVEfmt ", "not an image"),
        (b"\x00\x00\x00\x18ftypheic\x00\x00\x00\x00mif1heic", "is HEIC, which is not read. Convert it to JPEG or PNG"),
        (b"\x00\x00\x00\x20ftypmif1\x00\x00\x00\x00mif1heic", "is HEIC or AVIF, which is not read"),
        (b"\x00\x00\x00\x20ftypavif\x00\x00\x00\x00avifmif1", "is AVIF, which is not read"),
        (b"\x00\x00\x00\x20ftypisom\x00\x00\x00\x00isomavc1", "unknown format"),
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
    with pytest.raises(UnreadableImageError, match=words) as caught:
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
        except UnreadableImageError:
            strict = None
        assert strict in (None, whole)  # only bytes that no pixel needs may be missing
        try:
            lenient = read_image(part, allow_truncated=True)
        except UnreadableImageError:
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
    with pytest.raises(UnreadableImageError, match="more than the limit"):
        read_image(_png_header(*size))
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 50_000  # KiB


def test_the_limit_is_the_callers_and_not_pillows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 10)
    data = _encode(PICTURE, "PNG")
    assert read_image(data, max_pixels=1200).key == read_image(PICTURE).key
    for source in (data, PICTURE, _pixels(), torch.from_numpy(_pixels()).permute(2, 0, 1)):
        with pytest.raises(UnreadableImageError, match="40 x 30"):
            read_image(source, max_pixels=1199)


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
    with pytest.raises(UnreadableImageError):
        read_image(array)  # type: ignore[arg-type]


def test_paths_that_are_no_files(tmp_path: Path) -> None:
    with pytest.raises(UnreadableImageError, match="does not exist"):
        read_image(tmp_path / "none.jpg")
    with pytest.raises(UnreadableImageError, match="a folder"):
        read_image(tmp_path)
    with pytest.raises(UnreadableImageError, match="web address"):
        read_image("https://example.org/cat.jpg")
    with pytest.raises(UnreadableImageError):
        read_image("a\0b")
    os.mkfifo(tmp_path / "pipe.jpg")
    outcome: list[BaseException] = []

    def read(source: str) -> None:
        try:
            read_image(source)
        except UnreadableImageError as error:
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
        with contextlib.suppress(UnreadableImageError):
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
        with pytest.raises(InvalidOptionError, match="No images found in"):
            find_images([nothing])


def test_reading_pictures_does_not_import_torch() -> None:
    code = "import sys, poise.images; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.parametrize("allow", [False, True])
def test_a_palette_with_too_many_colours_is_refused(allow: bool) -> None:
    """Pillow notices it only when the palette is used, after decoding."""
    sink = io.BytesIO()
    Image.new("1", (17, 23)).save(sink, "BMP")
    content = bytearray(sink.getvalue())
    content[46:50] = (300).to_bytes(4, "little")  # number of colours
    with pytest.raises(UnreadableImageError, match="palette"):
        read_image(bytes(content) + bytes(1200), allow_truncated=allow)


def test_files_that_are_skipped_are_counted_by_suffix(tmp_path: Path) -> None:
    for name in ("a.HEIC", "in/b.heic", "c.avif", "notes.txt", "README", ".DS_Store", ".cache/x.bin", "d.jpg"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(b"x")
    found = count_skipped([tmp_path])
    assert found == {".heic": 2, ".avif": 1, ".txt": 1, "": 1}
    assert in_words(found) == (
        ".heic 2, .avif 1, without a suffix 1, .txt 1. Convert photos to JPEG or PNG: .heic, .avif are not read."
    )
    (tmp_path / "d.jpg").unlink()
    with pytest.raises(InvalidOptionError, match=r"No images found in .* It has other files: \.heic 2"):
        find_images([tmp_path])
