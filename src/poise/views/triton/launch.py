"""Batched views on CUDA with fused kernels: a dozen kernel launches for any number of images."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from poise import triton_support
from poise.types import ImageSpec
from poise.views.magnitudes import OPERATIONS, affine_matrices, posterize_bits, solarize_threshold
from poise.views.pil.plain import plain_geometry
from poise.views.plan import AugMixPlan, ViewPlan
from poise.views.triton import view_kernels

_BLOCK = 256
_WIDE_BLOCK = 1024
_TABLE_BLOCK = 4096
_KINDS = np.full(len(OPERATIONS), view_kernels.WARP)
_KINDS[[OPERATIONS.index("autocontrast"), OPERATIONS.index("equalize")]] = view_kernels.LOOK_UP
_KINDS[OPERATIONS.index("posterize")] = view_kernels.POSTERIZE
_KINDS[OPERATIONS.index("solarize")] = view_kernels.SOLARIZE


def usable(device: torch.device, spec: ImageSpec) -> bool:
    """Return whether the fused kernels support this device and these filters."""
    supported = {spec.interpolation, spec.crop_interpolation} <= {"bilinear", "bicubic"}
    return triton_support.available and device.type == "cuda" and supported and spec.grid is None


def fused_views(
    images: Sequence[Image.Image | Tensor], spec: ImageSpec, plans: Sequence[ViewPlan], out: Tensor
) -> None:
    """Write the normalised views to ``out`` [B, V, 3, S, S]."""
    with torch.cuda.device(out.device) if out.is_cuda else nullcontext():  # a CPU uses Triton's interpreter, in tests
        crops = _resample(images, spec, plans, out.device)
        mixes = [plan.augmix for plan in plans if plan.augmix is not None]
        views, side = plans[0].views, spec.size
        norms = _to(np.array([*spec.mean, *spec.std], dtype=np.float32), out.device)
        weights = np.zeros((len(plans), views, 4), dtype=np.float32)
        weights[:, :, 0] = 1
        ends = np.zeros((len(plans), views, 3), dtype=np.int32)
        buffers = (crops, crops)
        if mixes and views > 1:
            keep = np.stack([mix.keep for mix in mixes])
            weights[:, 1:, 0] = keep
            weights[:, 1:, 1:] = (1 - keep)[:, :, None] * np.stack([mix.weights for mix in mixes])
            buffers, ends[:, 1:] = _run_chains(crops, mixes, side)
        chains = 3 if mixes else 0
        weight = _to(weights[:, :, : chains + 1].reshape(-1, chains + 1), out.device)
        grid = (len(plans) * views, -(-side * side // _WIDE_BLOCK))
        view_kernels.mix_kernel[grid](
            crops, *buffers, weight, _to(ends, out.device), norms, out, side * side, CHAINS=chains, BLOCK=_WIDE_BLOCK
        )


def _to(array: np.ndarray, device: torch.device) -> Tensor:
    """Copy an array to the device asynchronously; a copy from pageable memory would synchronise with the stream."""
    tensor = torch.from_numpy(np.ascontiguousarray(array))
    return tensor.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else tensor


def _resample(
    images: Sequence[Image.Image | Tensor], spec: ImageSpec, plans: Sequence[ViewPlan], device: torch.device
) -> Tensor:
    """Return packed pixels [B * V, S, S]: the plain view and the crops of each image."""
    pixels, starts = _packed_pixels(images, device)
    plain, crops = [], []
    for number, (plan, start) in enumerate(zip(plans, starts, strict=True)):
        width, height = plan.size
        to = plain_geometry(plan.size, spec)
        scales = (width / to.width, height / to.height)
        first = number * plan.views  # index of the image's plain view in the output
        plain.append([start, width, 0, 0, width, height, to.left, to.top, *scales, 0, first])
        rows = np.zeros((plan.views - 1, 12))
        rows[:, 0], rows[:, 1] = start, width
        rows[:, 2:6] = plan.boxes
        rows[:, 8:10] = plan.boxes[:, 2:] / spec.size
        rows[:, 10] = plan.flips
        rows[:, 11] = first + 1 + np.arange(plan.views - 1)
        crops.append(rows)
    out = torch.empty(len(plans) * plans[0].views, spec.size, spec.size, dtype=torch.int32, device=device)
    blocks = -(-spec.size * spec.size // _BLOCK)
    for rows, name in (
        (np.array(plain), spec.interpolation),
        (np.concatenate(crops), spec.crop_interpolation),
    ):
        if len(rows):
            view_kernels.resample_kernel[(len(rows), blocks)](
                pixels, _to(rows, device), out, spec.size, BLOCK=_BLOCK, CUBIC=name == "bicubic"
            )
    return out


def _packed_pixels(images: Sequence[Image.Image | Tensor], device: torch.device) -> tuple[Tensor, np.ndarray]:
    """Return the concatenated pixels of all images and the start of each image."""
    flat = [
        torch.from_numpy(np.array(image)).view(-1)
        if isinstance(image, Image.Image)
        else image.permute(1, 2, 0).reshape(-1)
        for image in images
    ]
    starts = np.concatenate([[0], np.cumsum([len(part) // 3 for part in flat])[:-1]])
    if device.type == "cuda" and all(part.device.type == "cpu" for part in flat):
        pinned = torch.empty(sum(map(len, flat)), dtype=torch.uint8, pin_memory=True)
        levels = torch.cat(flat, out=pinned).to(device, non_blocking=True)
    else:
        levels = torch.cat([part.to(device) for part in flat])
    packed = torch.empty(len(levels) // 3, dtype=torch.int32, device=device)
    view_kernels.pack_kernel[(-(-len(packed) // _WIDE_BLOCK),)](levels, packed, len(packed), BLOCK=_WIDE_BLOCK)
    return packed, starts


def _run_chains(crops: Tensor, mixes: Sequence[AugMixPlan], side: int) -> tuple[tuple[Tensor, Tensor], np.ndarray]:
    """Run all chains of all views; return two buffers and, per view and chain, the position of its result."""
    depths = np.stack([mix.depths for mix in mixes])  # [B, V-1, 3]
    chains = depths.size
    operations = np.stack([mix.operations for mix in mixes]).reshape(chains, -1)
    levels = np.stack([mix.levels for mix in mixes]).reshape(chains, -1)
    signs = np.stack([mix.signs for mix in mixes]).reshape(chains, -1)
    position = np.arange(chains)
    crop_of = np.repeat(np.arange(len(crops)).reshape(len(mixes), -1)[:, 1:].reshape(-1), 3)  # without plain views
    buffers = (crops.new_empty(chains, *crops.shape[1:]), crops.new_empty(chains, *crops.shape[1:]))
    for step in range(operations.shape[1]):
        active = np.flatnonzero(depths.reshape(-1) > step)
        if len(active):
            source = crops if step == 0 else buffers[(step - 1) % 2]
            items = np.zeros((len(active), 4), dtype=np.int32)
            items[:, 0] = crop_of[active] if step == 0 else position[active]
            items[:, 1] = position[active]
            drawn = (operations[active, step], levels[active, step], signs[active, step])
            _run_step(source, buffers[step % 2], items, *drawn, side)
    ends = position.reshape(depths.shape)
    return buffers, np.where(depths % 2 == 1, ends, -1 - ends)  # steps 0, 1, 2 write to the even, odd, even buffer


def _run_step(
    source: Tensor,
    target: Tensor,
    items: np.ndarray,
    operations: np.ndarray,
    levels: np.ndarray,
    signs: np.ndarray,
    side: int,
) -> None:
    """Apply one operation to each of N images; ``items`` [N, 4] has their source and target, the rest is set here."""
    device, area = source.device, side * side
    items[:, 2] = kinds = _KINDS[operations]
    bits, threshold = 2 ** (8 - posterize_bits(levels)), solarize_threshold(levels)
    items[:, 3] = np.where(kinds == view_kernels.POSTERIZE, bits, threshold)
    lookups = np.flatnonzero(kinds == view_kernels.LOOK_UP)
    items[lookups, 3] = np.arange(len(lookups))
    tables = source.new_empty(max(len(lookups), 1), 3, 256)
    if len(lookups):
        table_items = np.stack([items[lookups, 0], operations[lookups] == OPERATIONS.index("equalize")], axis=1)
        view_kernels.table_kernel[(len(lookups), 3)](
            source,
            _to(table_items.astype(np.int32), device),
            tables,
            area,
            BLOCK=_TABLE_BLOCK,
            num_warps=8,
            enable_fp_fusion=False,
        )
    matrices = _to(affine_matrices(operations, levels, signs, side), device)
    view_kernels.step_kernel[(len(items), -(-area // _WIDE_BLOCK))](
        source, target, _to(items, device), matrices, tables, side, BLOCK=_WIDE_BLOCK, enable_fp_fusion=False
    )
