"""Views of many images at once, on any device, from the same plans as the PIL implementation.

Crops are resized by antialiased separable resampling: on CUDA as two sparse weighted sums over all views of an image,
otherwise with PyTorch's 8-bit resize, which follows Pillow. AugMix is applied to all views of several images at once.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torch.nn import functional

from poise.errors import InvalidOptionError
from poise.types import ImageSpec
from poise.views.pil.augmix import augmix_pixels
from poise.views.pil.crops import check_plan
from poise.views.pil.plain import plain_geometry, plain_view
from poise.views.pixels import normalise, to_image, to_tensor
from poise.views.plan import ViewPlan
from poise.views.torch.augmix_batched import augmix
from poise.views.torch.filters import Taps, make_taps, most_taps, resample
from poise.views.triton import launch

_CHUNK = 8  # images whose AugMix runs at once on an accelerator: enough to fill it, with bounded memory


def make_views_batched(
    images: Sequence[Image.Image | Tensor],
    spec: ImageSpec,
    plans: Sequence[ViewPlan],
    device: torch.device | str = "cpu",
    *,
    dtype: torch.dtype = torch.float32,
) -> Tensor:
    """Return the normalised views [B, V, 3, S, S] of B RGB images (PIL, or uint8 [3, H, W]) on ``device``.

    Raises:
        InvalidOptionError: Images and plans do not match, or plans differ in V or in the use of AugMix.
    """
    _check(images, plans)
    target = torch.device(device)
    out = torch.empty(len(images), plans[0].views if plans else 1, 3, spec.size, spec.size, device=target, dtype=dtype)
    # Only CPU and CUDA support float64 weights and 8-bit gathers; for other devices the views are made on the CPU.
    working = target if target.type == "cuda" else torch.device("cpu")
    step = _CHUNK if working.type == "cuda" else 1
    for start in range(0, len(images), step):
        chunk = slice(start, start + step)
        if launch.usable(working, spec):
            launch.fused_views(images[chunk], spec, plans[chunk], out[chunk])
            continue
        pixels = torch.stack(
            [_pixels(image, spec, plan, working) for image, plan in zip(images[chunk], plans[chunk], strict=True)]
        )
        out[chunk, 0] = normalise(pixels[:, 0], spec).to(target, dtype)
        if pixels.shape[1] > 1:
            out[chunk, 1:] = normalise(_augment(pixels[:, 1:], plans[chunk]), spec).to(target, dtype)
    return out


def _augment(crops: Tensor, plans: Sequence[ViewPlan]) -> Tensor:
    """Apply AugMix to crops [B, V-1, 3, S, S] if planned; grey levels in uint8 or float32."""
    mixes = [plan.augmix for plan in plans if plan.augmix is not None]
    if not mixes:
        return crops
    if crops.is_cuda:
        return augmix(crops.flatten(0, 1), mixes).view(crops.shape)
    # On a CPU, PIL's operations are the fastest; the overhead of the published code is outside of them.
    mixed = torch.empty(crops.shape, dtype=torch.float32)
    for image, plan in enumerate(mixes):
        for row, crop in enumerate(crops[image]):
            mixed[image, row] = augmix_pixels(to_image(crop), plan, row)
    return mixed


def _pixels(image: Image.Image | Tensor, spec: ImageSpec, plan: ViewPlan, device: torch.device) -> Tensor:
    """Return the plain view and the crops before AugMix, uint8 [V, 3, S, S]."""
    source = to_tensor(image) if isinstance(image, Image.Image) else image
    if device.type != "cuda":
        return _pixels_cpu(source.cpu(), spec, plan)
    source = source.to(device, non_blocking=True)
    plain = resample(source, *plain_taps(spec, plan, device))
    if plan.views == 1:
        return plain
    return torch.cat([plain, resample(source, *crop_taps(spec, plan, device))])


def _pixels_cpu(source: Tensor, spec: ImageSpec, plan: ViewPlan) -> Tensor:
    side = spec.size
    views = torch.empty(plan.views, 3, side, side, dtype=torch.uint8)
    views[0] = to_tensor(plain_view(to_image(source), spec))
    channels_last = source.permute(1, 2, 0).contiguous().permute(2, 0, 1)  # the fastest layout for the resize
    for row, (left, top, width, height) in enumerate(plan.boxes.tolist()):
        crop = channels_last[None, :, top : top + height, left : left + width]
        resized = functional.interpolate(crop, size=(side, side), mode=spec.crop_interpolation, antialias=True)[0]
        views[row + 1] = resized.flip(-1) if plan.flips[row] else resized
    return views


def plain_taps(spec: ImageSpec, plan: ViewPlan, device: torch.device) -> tuple[Taps, Taps]:
    """Return the weighted source pixels of the plain view, across and down."""
    name, to = spec.interpolation, plain_geometry(plan.size, spec)
    steps = torch.arange(spec.size, device=device, dtype=torch.float64)
    taps = []
    for source, target, offset in ((plan.size[0], to.width, to.left), (plan.size[1], to.height, to.top)):
        start = torch.zeros(1, device=device, dtype=torch.int64)
        length = torch.full_like(start, source)
        scale = torch.full((1,), source / target, device=device, dtype=torch.float64)
        output = (steps + offset)[None]
        taps.append(make_taps(name, start, length, output, scale, most_taps(name, source / target)))
    return taps[0], taps[1]


def crop_taps(spec: ImageSpec, plan: ViewPlan, device: torch.device) -> tuple[Taps, Taps]:
    """Return the weighted source pixels of the crops, across and down."""
    side, name = spec.size, spec.crop_interpolation
    numbers = np.concatenate([plan.boxes, plan.flips[:, None]], axis=1)  # one copy to the device, not five
    left, top, width, height, flip = torch.from_numpy(numbers).to(device).T
    steps = torch.arange(side, device=device, dtype=torch.float64)
    columns = torch.where(flip[:, None] > 0, side - 1 - steps, steps)  # a flip reads the crop from the right
    rows = steps.expand(len(flip), side)
    most = [most_taps(name, float(longest) / side) for longest in plan.boxes[:, 2:].max(axis=0)]
    across = make_taps(name, left, width, columns, width.double() / side, most[0])
    down = make_taps(name, top, height, rows, height.double() / side, most[1])
    return across, down


def _check(images: Sequence[Image.Image | Tensor], plans: Sequence[ViewPlan]) -> None:
    if len(images) != len(plans):
        raise InvalidOptionError(
            f"{len(images)} images were given with {len(plans)} plans.", hint="Give one plan per image."
        )
    if len({(plan.views, plan.augmix is None) for plan in plans}) > 1:
        raise InvalidOptionError("The plans differ in views or AugMix.", hint="Use the same options for all plans.")
    for image, plan in zip(images, plans, strict=True):
        check_plan(image.size if isinstance(image, Image.Image) else (image.shape[2], image.shape[1]), plan)
