"""Converts images of any mode, arrays and tensors to 8-bit RGB."""

from __future__ import annotations

import io
from contextlib import suppress
from typing import TYPE_CHECKING

import numpy as np
from PIL import Image, ImageCms

from poise.errors import UnreadableImageError

if TYPE_CHECKING:
    from torch import Tensor


def called(name: str) -> str:
    """Return how a message calls an image: by its name, unless it has none (``<bytes>``)."""
    return "The image" if name.startswith("<") else f"'{name}'"


def check_size(size: tuple[int, int], name: str, max_pixels: int) -> None:
    """Raise an error if an image has no pixels, or more than ``max_pixels``."""
    width, height = size
    if width < 1 or height < 1:
        raise UnreadableImageError(f"{called(name)} has no pixels ({width} x {height}).")
    if width * height > max_pixels:
        raise UnreadableImageError(
            f"{called(name)} has {width} x {height} pixels, more than the limit of {max_pixels:,}.",
            hint="Resize it. In Python, classify what poise.images.read_image(..., max_pixels=N) returns.",
        )


def to_rgb(image: Image.Image, name: str, notes: list[str]) -> Image.Image:
    """Convert an image to mode RGB and add a description of the conversion to ``notes``."""
    if image.mode.startswith("I;16"):
        notes.append("16-bit grey scaled to 8 bits")
        grey = (np.asarray(image).astype(np.uint32) * 255 + 32767) // 65535
        return Image.fromarray(grey.astype(np.uint8)).convert("RGB")
    if image.has_transparency_data:
        return _on_white(image.convert("RGBA"), notes)
    if image.mode == "RGB":
        return image
    if image.mode == "CMYK":
        notes.append("CMYK converted to RGB")
        return _from_cmyk(image)
    if image.mode in ("1", "L", "P", "RGBX", "YCbCr", "HSV"):
        return image.convert("RGB")
    kind = {"F": "floating-point pixels", "I": "32-bit integer pixels"}.get(image.mode, f"pixels of mode {image.mode}")
    raise UnreadableImageError(
        f"{called(name)} has {kind} of unknown range.", hint="Convert it to 8-bit RGB or 16-bit grey."
    )


def _on_white(image: Image.Image, notes: list[str]) -> Image.Image:
    if image.getchannel("A").getextrema() == (255, 255):
        return image.convert("RGB")
    notes.append("transparency composited on white")
    return Image.alpha_composite(Image.new("RGBA", image.size, "white"), image).convert("RGB")


def _from_cmyk(image: Image.Image) -> Image.Image:
    converted = None
    if image.info.get("icc_profile"):
        with suppress(ImageCms.PyCMSError, OSError):  # a damaged profile is ignored, as most readers do
            profile = ImageCms.ImageCmsProfile(io.BytesIO(image.info["icc_profile"]))
            converted = ImageCms.profileToProfile(image, profile, ImageCms.createProfile("sRGB"), outputMode="RGB")
    return converted or image.convert("RGB")


def from_array(array: np.ndarray, max_pixels: int) -> Image.Image:
    """Create an image from [H, W], [H, W, 3] or [H, W, 4] in uint8 or floats in [0, 1], or [H, W] in uint16."""
    shape = array.shape
    if array.ndim not in (2, 3) or (array.ndim == 3 and shape[2] not in (3, 4)) or 0 in shape:
        hint = "Accepted: [H, W], [H, W, 3] or [H, W, 4], not empty."
        if array.ndim == 3 and shape[0] in (1, 3, 4):
            hint += " Move the channels to the end."
        raise UnreadableImageError(f"An array of shape {list(shape)} is not an image.", hint=hint)
    check_size((shape[1], shape[0]), "<array>", max_pixels)
    if array.dtype == np.uint8 or (array.dtype == np.uint16 and array.ndim == 2):
        return Image.fromarray(np.ascontiguousarray(array))
    if array.dtype.kind == "f":
        if not bool(np.all((array >= 0) & (array <= 1))):  # False also for NaN
            raise UnreadableImageError("A float array has values outside [0, 1] or NaN.", hint="Scale it to [0, 1].")
        return Image.fromarray(np.rint(array.astype(np.float64) * 255).astype(np.uint8))
    raise UnreadableImageError(
        f"An array of shape {list(shape)} and type {array.dtype} is not an image.",
        hint="Accepted types: uint8, floats in [0, 1], and uint16 for [H, W].",
    )


def from_tensor(tensor: Tensor, max_pixels: int) -> Image.Image:
    """Create an image from a uint8 tensor [3, H, W]."""
    if str(tensor.dtype) != "torch.uint8" or tensor.ndim != 3 or tensor.shape[0] != 3 or tensor.numel() == 0:
        raise UnreadableImageError(
            f"A tensor of shape {list(tensor.shape)} and type {tensor.dtype} is not an image.",
            hint="Give a uint8 tensor [3, H, W].",
        )
    return from_array(tensor.detach().permute(1, 2, 0).cpu().numpy(), max_pixels)
