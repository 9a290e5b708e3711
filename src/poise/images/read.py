"""Reads images from files, bytes, PIL images, arrays and tensors as upright RGB images."""

from __future__ import annotations

import hashlib
import io
import os
import stat
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

import numpy as np
from PIL import BmpImagePlugin, GifImagePlugin, Image, ImageFile, ImageOps, JpegImagePlugin, PngImagePlugin
from PIL.TiffImagePlugin import TiffImageFile
from PIL.WebPImagePlugin import WebPImageFile

from poise.errors import UnreadableImageError, reason_of
from poise.images.bounded_stream import BoundedStream, TooCostlyError
from poise.images.convert_pixels import called, check_size, from_array, from_tensor, to_rgb

if TYPE_CHECKING:
    from torch import Tensor

MAX_PIXELS = 50_000_000
FORMATS = "JPEG, PNG, WebP, GIF, BMP or TIFF"

# First bytes -> reader. Readers are listed here instead of using Pillow's registry, so that no other format is accepted
# (the readers of EPS, FITS and others had vulnerabilities), and Pillow's global limit on pixels does not apply.
_READERS: tuple[tuple[bytes, type[ImageFile.ImageFile]], ...] = (
    (b"\xff\xd8\xff", JpegImagePlugin.JpegImageFile),
    (b"\x89PNG\r\n\x1a\n", PngImagePlugin.PngImageFile),
    (b"GIF87a", GifImagePlugin.GifImageFile),
    (b"GIF89a", GifImagePlugin.GifImageFile),
    (b"RIFF", WebPImageFile),
    (b"BM", BmpImagePlugin.BmpImageFile),
    (b"II*\x00", TiffImageFile),
    (b"MM\x00*", TiffImageFile),
)
_HEIC = dict.fromkeys((b"heic", b"heix", b"hevc", b"hevx", b"heim", b"heis"), "HEIC")
_FTYP = {**_HEIC, b"avif": "AVIF", b"avis": "AVIF", b"mif1": "HEIC or AVIF", b"msf1": "HEIC or AVIF"}  # brands
_ORIENTATION_TAG = 0x0112
_NAMELESS = "<bytes>"


@dataclass(frozen=True)
class LoadedImage:
    """An upright RGB image and its source."""

    image: Image.Image  # mode RGB, EXIF orientation applied
    key: str  # hash of size and pixels, independent of name and file format
    source: str  # path, or "<bytes>", "<image>", "<array>" or "<tensor>"
    frames: int = 1  # number of frames in the file's header; for GIF and TIFF, 2 means more than one
    notes: tuple[str, ...] = ()  # conversions of the pixels after decoding


def read_image(
    source: str | Path | bytes | Image.Image | np.ndarray | Tensor,
    *,
    name: str = _NAMELESS,
    allow_truncated: bool = False,
    max_pixels: int = MAX_PIXELS,
) -> LoadedImage:
    """Read an image and convert it to upright RGB.

    Args:
        source: A path, bytes, a PIL image, a uint8 tensor [3, H, W], or an array: [H, W], [H, W, 3] or [H, W, 4] in
            uint8 or floats in [0, 1], or [H, W] in uint16. Of an animation, the first frame is read.
        name: Name of bytes in results and messages.
        allow_truncated: Whether to accept files whose end is missing; the missing part is blank.
        max_pixels: Largest number of pixels, checked before anything is decoded.

    Raises:
        UnreadableImageError: The source is not an image that poise accepts.
    """
    if isinstance(source, str | Path):
        return _read_path(Path(source), str(source), allow_truncated, max_pixels)
    if isinstance(source, bytes | bytearray | memoryview):
        return _read_stream(io.BytesIO(source), name, allow_truncated, max_pixels)
    if isinstance(source, Image.Image):
        file = str(getattr(source, "filename", "") or "<image>")
        return _finish(source, file, allow_truncated, max_pixels, owned=False)
    if isinstance(source, np.ndarray):
        return _finish(from_array(source, max_pixels), "<array>", allow_truncated, max_pixels, owned=True)
    torch = sys.modules.get("torch")  # a tensor can only come from a process that has imported torch
    if torch is not None and isinstance(source, torch.Tensor):
        return _finish(from_tensor(source, max_pixels), "<tensor>", allow_truncated, max_pixels, owned=True)
    raise UnreadableImageError(
        f"An image can't be read from an object of type {type(source).__name__}.",
        hint="Give a path, bytes, a PIL image, a NumPy array or a uint8 tensor [3, H, W].",
    )


def image_size(content: bytes, *, name: str = _NAMELESS) -> tuple[int, int]:
    """Return the width and height that an encoded image's header states, without decoding the image.

    Raises:
        UnreadableImageError: The content is not an image that poise accepts.
    """
    return _open(io.BytesIO(content), name).size


def image_suffix(content: bytes) -> str:
    """Return the suffix of files with such content: ".jpg", ".png" or another of `poise.images.find.SUFFIXES`."""
    suffix = f".{str(_open(io.BytesIO(content), _NAMELESS).format).lower()}"
    return ".jpg" if suffix == ".jpeg" else suffix


def _read_path(path: Path, name: str, allow_truncated: bool, max_pixels: int) -> LoadedImage:
    if name.startswith(("http://", "https://")):
        raise UnreadableImageError(
            f"'{name}' is a web address; poise does not fetch images.", hint="Download it first."
        )
    try:
        mode = path.stat().st_mode
        if not stat.S_ISREG(mode):
            # Opening a FIFO or a device may block, so the kind is checked first.
            if stat.S_ISDIR(mode) and not os.access(path, os.R_OK | os.X_OK):
                raise PermissionError(f"the folder '{name}' may not be listed")
            kind = "a folder" if stat.S_ISDIR(mode) else "not a regular file"
            raise UnreadableImageError(f"'{name}' is {kind}.", hint="Give the path of an image file.")
        with path.open("rb") as stream:
            return _read_stream(stream, name, allow_truncated, max_pixels)
    except FileNotFoundError:
        raise UnreadableImageError(f"'{name}' does not exist.", hint="Check the path.") from None
    except (OSError, ValueError) as error:
        if isinstance(error, UnreadableImageError):
            raise
        raise UnreadableImageError(f"'{name}' can't be opened: {reason_of(error)}.") from error


def _read_stream(stream: BinaryIO, name: str, allow_truncated: bool, max_pixels: int) -> LoadedImage:
    return _finish(_open(stream, name), name, allow_truncated, max_pixels, owned=True)


def _open(stream: BinaryIO, name: str) -> ImageFile.ImageFile:
    """Read the header."""
    start = stream.read(16)
    stream.seek(0)
    if not start:
        raise UnreadableImageError(f"{called(name)} is empty (0 bytes).")
    reader = next((cls for magic, cls in _READERS if start.startswith(magic)), None)
    if start[4:8] == b"ftyp" and (photo := _FTYP.get(start[8:12])):
        raise UnreadableImageError(
            f"{called(name)} is {photo}, which is not read.", hint=f"Convert it to JPEG or PNG. Accepted: {FORMATS}."
        )
    if reader is None or (reader is WebPImageFile and start[8:12] != b"WEBP"):
        looks = "text" if all(32 <= byte < 127 or byte in b"\t\r\n" for byte in start) else "an unknown format"
        raise UnreadableImageError(
            f"{called(name)} is not an image: its content is {looks}.", hint=f"Accepted: {FORMATS}."
        )
    try:
        return reader(BoundedStream(stream))
    except Exception as error:  # malicious bytes can raise any error in a parser
        raise UnreadableImageError(f"{called(name)} has a damaged header: {error or type(error).__name__}.") from error


def _finish(image: Image.Image, name: str, allow_truncated: bool, max_pixels: int, *, owned: bool) -> LoadedImage:
    """Check the size, decode, turn upright, convert to RGB and hash."""
    check_size(image.size, name, max_pixels)
    notes: list[str] = []
    frames = _count_frames(image)
    if frames > 1:
        notes.append("animated or multi-page: only the first frame was used")
    _decode(image, name, allow_truncated, notes)
    try:
        rgb = to_rgb(_upright(image, notes), name, notes)
    except (UnreadableImageError, MemoryError):
        raise
    except Exception as error:  # see _read_stream; a palette is read when it is used
        raise UnreadableImageError(f"{called(name)} is damaged: {error or type(error).__name__}.") from error
    if rgb is image and not owned:
        rgb = image.copy()  # so that later changes by the caller have no effect
    return LoadedImage(image=rgb, key=_pixel_key(rgb), source=name, frames=frames, notes=tuple(notes))


def _count_frames(image: Image.Image) -> int:
    """Return the number of frames in the header, without reading the frames."""
    if isinstance(image, GifImagePlugin.GifImageFile | TiffImageFile):
        try:
            return 2 if image.is_animated else 1
        except Exception:  # a damaged second frame; the first is checked when it is decoded
            return 1
    return int(getattr(image, "n_frames", 1))


def _decode(image: Image.Image, name: str, allow_truncated: bool, notes: list[str]) -> None:
    try:
        if isinstance(stream := getattr(image, "fp", None), BoundedStream):
            stream.begin(image)
        image.load()
    except TooCostlyError as error:
        raise UnreadableImageError(
            f"{called(name)} is refused: {error}.", hint="Save it again, as PNG or JPEG."
        ) from None
    except Exception as error:  # see _open
        if not (allow_truncated and isinstance(image, ImageFile.ImageFile) and getattr(image, "_im", None) is not None):
            reason = f"{called(name)} is truncated or damaged: {error or type(error).__name__}."
            hint = "Save or fetch the file again."
            if not allow_truncated and name != _NAMELESS:  # those are often from clients of a server, without Python
                hint += " In Python, classify what poise.images.read_image(..., allow_truncated=True) returns."
            raise UnreadableImageError(reason, hint=hint) from error
        # Pillow decodes into the image before it detects the missing end. Without tiles it does not try again. Its
        # global option for truncated images would also affect other threads.
        image.tile = []
        notes.append("truncated: the missing part is blank")


def _upright(image: Image.Image, notes: list[str]) -> Image.Image:
    try:
        return image if image.getexif().get(_ORIENTATION_TAG, 1) == 1 else ImageOps.exif_transpose(image)
    except Exception:  # the image itself is fine; its metadata is not
        notes.append("EXIF data unreadable: taken as upright")
        return image


def _pixel_key(image: Image.Image) -> str:
    digest = hashlib.blake2b(f"{image.width}x{image.height}".encode(), digest_size=16)
    digest.update(image.tobytes())
    return digest.hexdigest()
