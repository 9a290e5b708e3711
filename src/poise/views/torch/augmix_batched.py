"""AugMix on all views at once: each operation is a lookup table per channel or a bilinear affine warp."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from poise.views.magnitudes import LOOKUPS, OPERATIONS, affine_matrices, posterize_bits, solarize_threshold
from poise.views.plan import AugMixPlan

_LOOKUP_CODES = [OPERATIONS.index(name) for name in LOOKUPS]
# PIL truncates warped values to whole grey levels in float64. float32 coordinates are off by about 1e-5 pixels, which
# must not turn an exact 200 into 199.
_TRUNCATION_SLACK = 6e-3


def augmix(crops: Tensor, plans: Sequence[AugMixPlan]) -> Tensor:
    """Return mixed images [N, 3, S, S], float32 in 0..255, of uint8 crops [N, 3, S, S]; N is the rows of all plans."""
    number, _, side, _ = crops.shape
    depths = np.concatenate([plan.depths for plan in plans]).reshape(-1)  # [N * chains]
    operations = np.concatenate([plan.operations for plan in plans]).reshape(len(depths), -1)
    levels = np.concatenate([plan.levels for plan in plans]).reshape(len(depths), -1)
    signs = np.concatenate([plan.signs for plan in plans]).reshape(len(depths), -1)
    chains = len(depths) // number
    state = crops.repeat_interleave(chains, dim=0)  # [N * chains, 3, S, S]
    for step in range(operations.shape[1]):
        active = depths > step
        is_lookup = np.isin(operations[:, step], _LOOKUP_CODES)
        for mask, apply in ((active & is_lookup, look_up), (active & ~is_lookup, warp)):
            rows = np.flatnonzero(mask)
            if len(rows):
                index = torch.from_numpy(rows).to(crops.device)
                result = apply(state[index], operations[rows, step], levels[rows, step], signs[rows, step])
                state.index_copy_(0, index, result)
    return _mix(crops, state.view(number, chains, 3, side, side), plans)


def _mix(crops: Tensor, chains: Tensor, plans: Sequence[AugMixPlan]) -> Tensor:
    # The weights sum to one, so mixing commutes with normalisation and is done on grey levels.
    keep = np.concatenate([plan.keep for plan in plans])[:, None]
    weights = np.concatenate([keep, (1 - keep) * np.concatenate([plan.weights for plan in plans])], axis=1)
    weight = torch.from_numpy(weights).to(crops.device)[:, :, None, None, None]  # [N, 1 + chains, 1, 1, 1]
    mixed = crops * weight[:, 0]
    for chain in range(chains.shape[1]):
        mixed += chains[:, chain] * weight[:, 1 + chain]
    return mixed


def warp(images: Tensor, operations: np.ndarray, levels: np.ndarray, signs: np.ndarray) -> Tensor:
    """Apply PIL's bilinear affine transform: black outside the source image, edge pixels repeated at its border."""
    side = images.shape[-1]
    matrices = torch.from_numpy(affine_matrices(operations, levels, signs, side)).to(images.device)
    a, b, c, d, e, f = matrices.float().T[:, :, None, None]  # each [N, 1, 1]
    centres = torch.arange(side, device=images.device, dtype=torch.float32) + 0.5  # [S]
    x = a * centres + (b * centres[:, None] + c)  # [N, S, S]
    y = d * centres + (e * centres[:, None] + f)
    inside = (x >= 0) & (x < side) & (y >= 0) & (y < side)
    grid = torch.stack([x, y], dim=-1).mul_(2 / side).sub_(1)
    warped = functional.grid_sample(images.float(), grid, mode="bilinear", padding_mode="border", align_corners=False)
    return warped.add_(_TRUNCATION_SLACK).mul_(inside[:, None]).to(torch.uint8)


def look_up(images: Tensor, operations: np.ndarray, levels: np.ndarray, signs: np.ndarray) -> Tensor:
    """Apply the operations that map grey levels by a table: autocontrast, equalize, posterize, solarize."""
    tables = _tables(images, operations, levels)  # [N, 3, 256] uint8
    return tables.view(-1).index_select(0, _table_positions(images)).view_as(images)


def _tables(images: Tensor, operations: np.ndarray, levels: np.ndarray) -> Tensor:
    device = images.device
    values = torch.arange(256, device=device)
    tables = torch.empty(len(images), 3, 256, device=device, dtype=torch.uint8)
    for code in _LOOKUP_CODES:
        chosen = np.flatnonzero(operations == code)
        if not len(chosen):
            continue
        rows = torch.from_numpy(chosen).to(device)
        name = OPERATIONS[code]
        if name == "autocontrast":
            table = _autocontrast_tables(images[rows], values)
        elif name == "equalize":
            table = _equalize_tables(images[rows], values)
        elif name == "posterize":
            step = torch.from_numpy(2.0 ** (8 - posterize_bits(levels[chosen]))).long().to(device)[:, None]
            table = (values // step * step)[:, None].expand(-1, 3, -1)
        else:
            threshold = torch.from_numpy(solarize_threshold(levels[chosen])).to(device)[:, None]
            table = torch.where(values < threshold, values, 255 - values)[:, None].expand(-1, 3, -1)
        tables[rows] = table.to(torch.uint8)
    return tables


def _autocontrast_tables(images: Tensor, values: Tensor) -> Tensor:
    """Map the darkest value to 0 and the brightest to 255, linearly and truncated; keep constant channels."""
    flat = images.flatten(2)
    low, high = flat.amin(-1, keepdim=True).double(), flat.amax(-1, keepdim=True).double()  # [N, 3, 1]
    scale = torch.full_like(low, 255).div_((high - low).clamp_min(1))  # 255 / x would be 255 * (1 / x), one bit off
    stretched = (values * scale - low * scale).trunc().clamp(0, 255).long()
    return torch.where(high > low, stretched, values)


def _equalize_tables(images: Tensor, values: Tensor) -> Tensor:
    """Map values by the cumulative histogram in 255 steps; as in PIL, the step ignores the brightest level."""
    counts = torch.bincount(_table_positions(images), minlength=len(images) * 3 * 256).view(-1, 3, 256)
    pixels = counts.sum(-1, keepdim=True)
    brightest = (counts > 0).long().mul(values).amax(-1, keepdim=True)
    step = (pixels - counts.gather(-1, brightest)) // 255
    before = counts.cumsum(-1) - counts
    spread = ((step // 2 + before) // step.clamp_min(1)).clamp(0, 255)
    return torch.where(step > 0, spread, values)


def _table_positions(images: Tensor) -> Tensor:
    """Return the position of each pixel's level in tables [N, 3, 256], flattened."""
    planes = torch.arange(len(images) * 3, device=images.device, dtype=torch.int32)
    return (images + planes.mul_(256).view(-1, 3, 1, 1)).reshape(-1)
