"""Views made one by one with PIL; the reference for the batched implementations."""

from __future__ import annotations

import torch
from PIL import Image
from torch import Tensor

from poise.errors import InvalidOptionError
from poise.types import ImageSpec
from poise.views.patches import pack
from poise.views.pil.augmix import augmix_view
from poise.views.pil.plain import FILTERS, plain_view
from poise.views.pixels import normalise, to_tensor
from poise.views.plan import ViewPlan


def crop_view(image: Image.Image, plan: ViewPlan, row: int, side: int, interpolation: str = "bilinear") -> Image.Image:
    """Return crop ``row`` (view ``row + 1``) of the plan, flipped if planned, resized to ``side`` x ``side``."""
    left, top, width, height = (int(value) for value in plan.boxes[row])
    crop = image.crop((left, top, left + width, top + height)).resize((side, side), FILTERS[interpolation])
    return crop.transpose(Image.Transpose.FLIP_LEFT_RIGHT) if plan.flips[row] else crop


def make_views(image: Image.Image, spec: ImageSpec, plan: ViewPlan) -> Tensor:
    """Return the normalised views [V, 3, S, S] of an RGB image, float32 on the CPU; view 0 is the plain view."""
    check_plan(image.size, plan)
    views = torch.empty(plan.views, 3, spec.size, spec.size)
    views[0] = _placed(normalise(to_tensor(plain_view(image, spec)), spec), spec)
    for row in range(plan.views - 1):
        crop = crop_view(image, plan, row, spec.crop_size, spec.crop_interpolation)
        if plan.augmix is None:
            views[row + 1] = _placed(normalise(to_tensor(crop), spec), spec)
        else:
            views[row + 1] = _placed(augmix_view(crop, spec, plan.augmix, row), spec)
    return views


def _placed(view: Tensor, spec: ImageSpec) -> Tensor:
    return view if spec.grid is None else pack(view, spec.grid)


def check_plan(size: tuple[int, int], plan: ViewPlan) -> None:
    """Raise an error if the plan was drawn for an image of another size."""
    if size != plan.size:
        raise InvalidOptionError(
            f"The plan is for an image of {plan.size[0]} x {plan.size[1]}, this image has {size[0]} x {size[1]}.",
            hint="Draw the plan with plan_views(image.size, ...).",
        )
