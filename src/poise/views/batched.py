"""Views of many images at once, from the same plans as the PIL implementation.

On CUDA, Triton kernels make them. Elsewhere, and for filters that the kernels do not have, crops are resized with
PyTorch's 8-bit resize, which follows Pillow, and AugMix uses Pillow's operations, which are the fastest on a CPU. Views
as patches (`poise.views.patches`) are made by the reference.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from PIL import Image
from torch import Tensor
from torch.nn import functional

from poise.errors import InvalidOptionError
from poise.text import counted
from poise.threads import map_parallel
from poise.types import ImageSpec
from poise.views.pil.augmix import augmix_pixels
from poise.views.pil.crops import check_plan, make_views
from poise.views.pil.plain import plain_view
from poise.views.pixels import normalise, to_image, to_tensor
from poise.views.plan import ViewPlan
from poise.views.triton import launch

_CHUNK = 8  # images that the kernels process at once: enough to fill a GPU, with bounded memory


def make_views_batched(
    images: Sequence[Image.Image | Tensor],
    spec: ImageSpec,
    plans: Sequence[ViewPlan],
    device: torch.device | str = "cpu",
    *,
    dtype: torch.dtype = torch.float32,
) -> Tensor:
    """Return the normalised views [B, V, 3, S, S] of B RGB images (PIL, or uint8 [3, H, W]) on ``device``."""
    _check(images, plans)
    views = plans[0].views if plans else 1
    out = torch.empty(len(images), views, 3, spec.size, spec.size, device=torch.device(device), dtype=dtype)
    if launch.usable(out.device, spec):
        for start in range(0, len(images), _CHUNK):
            chunk = slice(start, start + _CHUNK)
            launch.fused_views(images[chunk], spec, plans[chunk], out[chunk])
    else:
        for row, (image, plan) in enumerate(zip(images, plans, strict=True)):
            if spec.grid is not None:
                out[row] = make_views(image if isinstance(image, Image.Image) else to_image(image.cpu()), spec, plan)
                continue
            source = to_tensor(image) if isinstance(image, Image.Image) else image.cpu()
            out[row] = normalise(_grey_levels(source, spec, plan), spec)
    return out


def _grey_levels(source: Tensor, spec: ImageSpec, plan: ViewPlan) -> Tensor:
    """Return the views before normalisation, [V, 3, S, S] in uint8, or float32 with AugMix, on the CPU."""
    side = spec.size
    views = torch.empty(plan.views, 3, side, side, dtype=torch.uint8 if plan.augmix is None else torch.float32)
    views[0] = to_tensor(plain_view(to_image(source), spec))
    channels_last = source.permute(1, 2, 0).contiguous().permute(2, 0, 1)  # the fastest layout for the resize

    def cut(row: int) -> None:
        left, top, width, height = plan.boxes[row].tolist()
        box = channels_last[None, :, top : top + height, left : left + width]
        crop = functional.interpolate(box, size=(side, side), mode=spec.crop_interpolation, antialias=True)[0]
        crop = crop.flip(-1) if plan.flips[row] else crop
        views[row + 1] = crop if plan.augmix is None else augmix_pixels(to_image(crop), plan.augmix, row)

    map_parallel(cut, range(len(plan.boxes)))
    return views


def _check(images: Sequence[Image.Image | Tensor], plans: Sequence[ViewPlan]) -> None:
    if len(images) != len(plans):
        raise InvalidOptionError(
            f"{counted(len(images), 'image')} and {counted(len(plans), 'plan')} were given.",
            hint="Give one plan per image.",
        )
    if len({(plan.views, plan.augmix is None) for plan in plans}) > 1:
        raise InvalidOptionError("The plans differ in views or AugMix.", hint="Use the same options for all plans.")
    for image, plan in zip(images, plans, strict=True):
        check_plan(image.size if isinstance(image, Image.Image) else (image.shape[2], image.shape[1]), plan)
