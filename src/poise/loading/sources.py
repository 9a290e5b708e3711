"""From any source of an image to its pixels and the plan of its views.

Free of torch, so that small processes can do it. An image that can't be read is a `Failure`, never an exception: it
costs its own row and no other.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from PIL import Image

from poise.data.items import Item
from poise.errors import PoiseError
from poise.images import LoadedImage, read_image
from poise.views.plan import ViewPlan
from poise.views.recipe import ViewRecipe

if TYPE_CHECKING:
    from torch import Tensor


_NO_PIXELS = np.empty((0, 0, 3), np.uint8)


@dataclass(frozen=True)
class Failure:
    """An image without an answer, and why.

    Attributes:
        source: the path, the dataset's id, or ``<bytes>``, ``<image>``, ``<array>``, ``<tensor>``.
        code: a stable word for programs, as "unreadable_image" or "non_finite".
        message: what is wrong and what to do, for people.
    """

    source: str
    code: str
    message: str


@dataclass(frozen=True, slots=True)
class NamedBytes:
    """An encoded image and what it is called: a file on its way to another machine."""

    name: str
    content: bytes


@dataclass(frozen=True)
class PlannedImage:
    """One image, ready to be cut into views; or cut already, where that is the reader's job."""

    source: str
    pixels: np.ndarray  # uint8 [H, W, 3]
    plan: ViewPlan
    notes: tuple[str, ...] = ()  # what reading it had to do beyond decoding
    views: Tensor | None = None  # [V, 3, S, S]

    def without_pixels(self) -> PlannedImage:
        """The same facts, without what takes memory."""
        return replace(self, pixels=_NO_PIXELS, views=None)


# What `read_image` takes (a path, bytes, a PIL image, a NumPy array, a uint8 tensor), a dataset's `Item`, `NamedBytes`,
# an image that was loaded already, or a failure that is only passed on.
Source = Any


def read_planned(source: Source, recipe: ViewRecipe) -> PlannedImage | Failure:
    """The pixels of one image and the plan of its views; or why there are none."""
    try:
        return _read(source, recipe)
    except PoiseError as problem:
        return Failure(name_of(source), problem.code, str(problem))
    except OSError as problem:
        return Failure(name_of(source), "unreadable_image", f"The image can't be read: {problem}.")
    except MemoryError:
        return Failure(name_of(source), "unreadable_image", "There is not enough memory to decode the image.")


def _read(source: Source, recipe: ViewRecipe) -> PlannedImage | Failure:
    if isinstance(source, Failure):
        return source
    if isinstance(source, LoadedImage):
        image = source
    elif isinstance(source, Item):
        image = read_image(source.source(), name=source.id)
    elif isinstance(source, NamedBytes):
        image = read_image(source.content, name=source.name)
    else:
        image = read_image(source)
    name = source.id if isinstance(source, Item) else image.source
    return PlannedImage(name, np.array(image.image), recipe.plan(image), image.notes)


def travels(source: Source) -> bool:
    """Whether another process can read it: files and bytes can, what is in this process's memory is read here."""
    return isinstance(source, str | Path | bytes | Item | NamedBytes)


def name_of(source: Source) -> str:
    """What a source is called in results."""
    if isinstance(source, Item):
        return source.id
    if isinstance(source, NamedBytes):
        return source.name
    if isinstance(source, LoadedImage | Failure):
        return source.source
    if isinstance(source, str | Path):
        return str(source)
    kinds = {bytes: "<bytes>", np.ndarray: "<array>", Image.Image: "<image>"}
    return next(
        (name for kind, name in kinds.items() if isinstance(source, kind)), f"<{type(source).__name__.lower()}>"
    )
