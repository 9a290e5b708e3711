"""The plain view: the image resized and centre-cropped to the model's size, as in the library of the model."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from PIL import Image

from poise.errors import InvalidOptionError
from poise.types import ImageSpec
from poise.views.patches import grid_shape

FILTERS = {
    "bilinear": Image.Resampling.BILINEAR,
    "bicubic": Image.Resampling.BICUBIC,
    "lanczos": Image.Resampling.LANCZOS,
}
_HALF: dict[str, Callable[[float], int]] = {"round": round, "floor": math.floor}
_ACCEPTED = {
    "resize": ("shortest", "squash"),
    "crop_offset": tuple(_HALF),
    "interpolation": tuple(FILTERS),
    "crop_interpolation": ("bilinear", "bicubic"),
}
# A 1 x 5000 strip would become 224 x 1,120,000 before the crop; above this many pixels only the crop is resampled.
WHOLE_PIXELS = 32_000_000


@dataclass(frozen=True)
class PlainGeometry:
    """The size that the whole image is resized to, and where the crop lies in it."""

    width: int
    height: int
    left: int
    top: int


def plain_geometry(size: tuple[int, int], spec: ImageSpec) -> PlainGeometry:
    """Return the geometry of the plain view: shorter side to ``spec.size`` and centre crop, or both sides to it.

    With a patch grid, it is the whole image in whole patches.
    Half of an odd margin is not a whole number: torchvision and open_clip round it to the even neighbour, transformers
    rounds it down (``spec.crop_offset``).
    """
    for option, accepted in _ACCEPTED.items():
        if (value := getattr(spec, option)) not in accepted:
            raise InvalidOptionError(f"{option}='{value}' is not accepted.", hint=f"Accepted: {', '.join(accepted)}.")
    width, height = size
    if spec.grid is not None:
        rows, columns = grid_shape(size, spec.grid)
        return PlainGeometry(columns * spec.grid.patch, rows * spec.grid.patch, 0, 0)
    side = spec.size
    if spec.resize == "squash":
        return PlainGeometry(side, side, 0, 0)
    new_width = side if width <= height else int(side * width / height)
    new_height = side if height <= width else int(side * height / width)
    left, top = (_HALF[spec.crop_offset]((new - side) / 2) for new in (new_width, new_height))
    return PlainGeometry(new_width, new_height, left, top)


def plain_view(image: Image.Image, spec: ImageSpec) -> Image.Image:
    """Return the plain view as an RGB image of ``spec.size`` squared, or in its own aspect ratio with a patch grid."""
    to = plain_geometry(image.size, spec)
    resample = FILTERS[spec.interpolation]
    if spec.grid is not None:
        return image.resize((to.width, to.height), resample)
    crop = (to.left, to.top, to.left + spec.size, to.top + spec.size)
    if to.width * to.height <= WHOLE_PIXELS:
        return image.resize((to.width, to.height), resample).crop(crop)
    across, down = image.width / to.width, image.height / to.height
    box = (crop[0] * across, crop[1] * down, min(crop[2] * across, image.width), min(crop[3] * down, image.height))
    return image.resize((spec.size, spec.size), resample, box=box)
