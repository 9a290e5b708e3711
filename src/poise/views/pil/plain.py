"""The plain view: the whole image resized and centre-cropped to the model's size, as the model's library does it."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from PIL import Image

from poise.errors import InvalidOptionError
from poise.types import ImageSpec

FILTERS = {
    "bilinear": Image.Resampling.BILINEAR,
    "bicubic": Image.Resampling.BICUBIC,
    "lanczos": Image.Resampling.LANCZOS,
}
_HALF: dict[str, Callable[[float], int]] = {"round": round, "floor": math.floor}
# A 1 x 5000 strip would become 224 x 1,120,000 before the crop; above this many pixels only the crop is resampled.
_WHOLE_PIXELS = 32_000_000


@dataclass(frozen=True)
class PlainGeometry:
    """The size that the whole image is resized to, and where the crop lies in it."""

    width: int
    height: int
    left: int
    top: int


def plain_geometry(size: tuple[int, int], spec: ImageSpec) -> PlainGeometry:
    """Shorter side to ``spec.size`` and the central square, or both sides to it where the model squashes.

    Half of an odd margin is not a whole number: torchvision and open_clip round it to the even neighbour, transformers
    rounds it down. ``spec.crop_offset`` says which.

    Raises:
        InvalidOptionError: ``spec.resize`` or ``spec.crop_offset`` is not accepted.
    """
    width, height = size
    side = spec.size
    if spec.resize == "squash":
        return PlainGeometry(side, side, 0, 0)
    if spec.resize != "shortest":
        raise InvalidOptionError(f"resize='{spec.resize}' is not accepted.", hint="Accepted: 'shortest', 'squash'.")
    if spec.crop_offset not in _HALF:
        raise InvalidOptionError(f"crop_offset='{spec.crop_offset}' is not accepted.", hint="Accepted: round, floor.")
    new_width = side if width <= height else int(side * width / height)
    new_height = side if height <= width else int(side * height / width)
    left, top = (_HALF[spec.crop_offset]((new - side) / 2) for new in (new_width, new_height))
    return PlainGeometry(new_width, new_height, left, top)


def check_interpolation(name: str) -> str:
    """The name itself, if there is such a filter.

    Raises:
        InvalidOptionError: There is none.
    """
    if name not in FILTERS:
        raise InvalidOptionError(f"interpolation='{name}' is not accepted.", hint=f"Accepted: {', '.join(FILTERS)}.")
    return name


def check_crop_interpolation(name: str) -> str:
    """The name itself, if crops can be resized so by Pillow and in batch alike.

    Raises:
        InvalidOptionError: They can't.
    """
    if name not in ("bilinear", "bicubic"):
        raise InvalidOptionError(f"crop_interpolation='{name}' is not accepted.", hint="Accepted: bilinear, bicubic.")
    return name


def plain_view(image: Image.Image, spec: ImageSpec) -> Image.Image:
    """The plain view as an RGB image of ``spec.size`` squared."""
    to = plain_geometry(image.size, spec)
    resample = FILTERS[check_interpolation(spec.interpolation)]
    crop = (to.left, to.top, to.left + spec.size, to.top + spec.size)
    if to.width * to.height <= _WHOLE_PIXELS:
        return image.resize((to.width, to.height), resample).crop(crop)
    across, down = image.width / to.width, image.height / to.height
    box = (crop[0] * across, crop[1] * down, min(crop[2] * across, image.width), min(crop[3] * down, image.height))
    return image.resize((spec.size, spec.size), resample, box=box)
