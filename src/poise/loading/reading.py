"""From a dataset's item to its pixels and the plan of its views; without torch, so that small processes can do it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from poise.errors import PoiseError
from poise.images import LoadedImage, read_image
from poise.views.plan import ViewPlan, plan_views

if TYPE_CHECKING:
    from torch import Tensor

    from poise.data import Item


@dataclass(frozen=True)
class Prepared:
    """One image, ready to be encoded; or the reason why it can't be."""

    item: Item
    pixels: np.ndarray | None = None  # uint8 [H, W, 3], for views made in batch on the device
    plan: ViewPlan | None = None
    views: Tensor | None = None  # [V, 3, S, S], where they are made one by one
    error: str | None = None


@dataclass(frozen=True)
class Reading:
    """How many views a picture is planned for, and whether with AugMix."""

    views: int
    augmix: bool

    def __call__(self, item: Item, seed: int) -> Prepared:
        """The pixels and the plan of one item. What can't be read costs this image its answer, never the run."""
        found = self.open(item, seed)
        if isinstance(found, Prepared):
            return found
        picture, plan = found
        return Prepared(item, np.array(picture.image), plan)

    def open(self, item: Item, seed: int) -> tuple[LoadedImage, ViewPlan] | Prepared:
        """The picture and its plan; or the reason why it can't be read."""
        try:
            picture = read_image(item.source())
        except PoiseError as problem:
            return failed(item, problem)
        except OSError as problem:
            return Prepared(item, error=f"unreadable_image: {problem}")
        return picture, plan_views(picture.image.size, views=self.views, seed=seed, key=picture.key, augmix=self.augmix)


def failed(item: Item, problem: PoiseError) -> Prepared:
    """An image without an answer, and why."""
    return Prepared(item, error=f"{problem.code}: {problem}")
