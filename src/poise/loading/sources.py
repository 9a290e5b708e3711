"""Reading one image source and planning its views.

This module does not import torch, so that reader processes start quickly. An image that cannot be read gives a
`Failure` instead of an exception, so it does not affect other images.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from PIL import Image

from poise.data.items import Item
from poise.data.stored_features import StoredRow
from poise.errors import OUT_OF_MEMORY, PoiseError, reason_of
from poise.images import LoadedImage, read_image
from poise.images.look import look_of
from poise.results import Failure
from poise.views.plan import ViewPlan
from poise.views.recipe import ViewRecipe

if TYPE_CHECKING:
    from torch import Tensor


NO_PIXELS = np.empty((0, 0, 3), np.uint8)
NO_PLAN = ViewPlan((0, 0), np.empty((0, 4), np.int64), np.empty(0, bool))

# What `read_image` takes (a path, bytes, a PIL image, a NumPy array, a uint8 tensor), an `Item`,
# an image that is already loaded, or a failure, which is passed on unchanged.
Source = Any
READABLE_ELSEWHERE = (str, Path, bytes, Item)  # sources that another process can read


@dataclass(frozen=True)
class PlannedImage:
    """The pixels of one image and the plan of its views."""

    source: str
    pixels: np.ndarray  # uint8 [H, W, 3]
    plan: ViewPlan
    key: str = ""  # hash of the pixels
    notes: tuple[str, ...] = ()  # changes beyond decoding
    look: str = ""  # hash that copies in another size or encoding nearly share
    views: Tensor | None = None  # [V, 3, S, S], unless the device cuts them
    features: np.ndarray | None = None  # [V, D] float16, of an image that was encoded before

    def without_pixels(self) -> PlannedImage:
        """Return a copy without the arrays, which take memory."""
        return replace(self, pixels=NO_PIXELS, views=None)


def read_planned(source: Source, recipe: ViewRecipe) -> PlannedImage | Failure:
    """Read one image and plan its views, or return the reason why that is not possible."""
    if isinstance(source, Failure):
        return source
    try:
        if isinstance(source, Item) and isinstance(source.read, StoredRow):
            return stored_image(source.id, source.read, recipe.views)
        image = _load(source)
        look = look_of(image.image)
        return PlannedImage(image.source, np.array(image.image), recipe.plan(image), image.key, image.notes, look)
    except PoiseError as error:
        return Failure(name_of(source), error.code, str(error))
    except OSError as error:
        return Failure(name_of(source), "unreadable_image", f"The image can't be read: {reason_of(error)}.")
    except MemoryError:
        return too_large(source)


def stored_image(name: str, row: StoredRow, views: int) -> PlannedImage | Failure:
    """Return an image that was encoded before, with the first views of those that are stored."""
    found = row.block()
    if (failure := found.failures[row.row]) is not None:
        return Failure(name, *failure)
    key, notes = found.keys[row.row], tuple(found.notes[row.row])
    return PlannedImage(name, NO_PIXELS, NO_PLAN, key, notes, features=found.features[row.row, :views])


def _load(source: Source) -> LoadedImage:
    if isinstance(source, LoadedImage):
        return source
    if isinstance(source, Item):
        return replace(read_image(source.source(), name=source.id), source=source.id)
    return read_image(source)


def too_large(source: Source) -> Failure:
    """Return the failure of an image for which there is not enough memory."""
    message = "There is not enough memory for this image. Resize it, or use fewer views or a smaller model."
    return Failure(name_of(source), OUT_OF_MEMORY, message)


def name_of(source: Source) -> str:
    """Return the name of a source in results."""
    if isinstance(source, Item):
        return source.id
    if isinstance(source, LoadedImage | Failure):
        return source.source
    if isinstance(source, str | Path):
        return str(source)
    kinds = {bytes: "<bytes>", np.ndarray: "<array>", Image.Image: "<image>"}
    default = f"<{type(source).__name__.lower()}>"
    return next((name for kind, name in kinds.items() if isinstance(source, kind)), default)
