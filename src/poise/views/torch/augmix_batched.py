"""AugMix over all views at once: every operation is either a lookup table per channel or a bilinear affine warp."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from poise.views.magnitudes import LOOKUPS, OPERATIONS, affine_matrices, posterize_bits, solarize_threshold
from poise.views.plan import AugMixPlan

_LOOKUP_PLACES = [OPERATIONS.index(name) for name in LOOKUPS]
# PIL cuts warped values to whole grey levels in float64. float32 coordinates are off by about 1e-5 pixels, which must
# not turn an exact 200 into 199.
_CUT_SLACK = 6e-3


def augmix(crops: Tensor, plans: Sequence[AugMixPlan]) -> Tensor:
    """Mixed pictures [N, 3, S, S] in float32, 0..255, of uint8 crops [N, 3, S, S], N = all rows of all plans."""
    number, _, side, _ = crops.shape
    depths = np.concatenate([plan.depths for plan in plans]).reshape(-1)  # [N * chains]
    operations = np.concatenate([plan.operations for plan in plans]).reshape(len(depths), -1)
    levels = np.concatenate([plan.levels for plan in plans]).reshape(len(depths), -1)
    signs = np.concatenate([plan.signs for plan in plans]).reshape(len(depths), -1)
    chains = len(depths) // number
    state = crops.repeat_interleave(chains, dim=0)  # [N * chains, 3, S, S]
    for step in range(operations.shape[1]):
        active = depths > step
        looked_up = np.isin(operations[:, step], _LOOKUP_PLACES)
        for rows, change in ((active & looked_up, look_up), (active & ~looked_up, warp)):
            chosen = np.flatnonzero(rows)
            if len(chosen):
                index = torch.from_numpy(chosen).to(crops.device)
                changed = change(state[index], operations[chosen, step], levels[chosen, step], signs[chosen, step])
                state.index_copy_(0, index, changed)
    return _mix(crops, state.view(number, chains, 3, side, side), plans)


def _mix(crops: Tensor, chains: Tensor, plans: Sequence[AugMixPlan]) -> Tensor:
    # Mixing commutes with normalisation because the shares sum to one, so it is done on grey levels.
    keep = np.concatenate([plan.keep for plan in plans])[:, None]
    shares = np.concatenate([keep, (1 - keep) * np.concatenate([plan.weights for plan in plans])], axis=1)
    share = torch.from_numpy(shares).to(crops.device)[:, :, None, None, None]  # [N, 1 + chains, 1, 1, 1]
    mixed = crops * share[:, 0]
    for chain in range(chains.shape[1]):
        mixed += chains[:, chain] * share[:, 1 + chain]
    return mixed


def warp(pictures: Tensor, operations: np.ndarray, levels: np.ndarray, signs: np.ndarray) -> Tensor:
    """PIL's bilinear affine transform: black where the source point lies outside, edge pixels repeated within."""
    side = pictures.shape[-1]
    matrices = torch.from_numpy(affine_matrices(operations, levels, signs, side)).to(pictures.device)
    a, b, c, d, e, f = matrices.float().T[:, :, None, None]  # each [N, 1, 1]
    across = torch.arange(side, device=pictures.device, dtype=torch.float32) + 0.5  # [S]
    x = a * across + (b * across[:, None] + c)  # [N, S, S]
    y = d * across + (e * across[:, None] + f)
    inside = (x >= 0) & (x < side) & (y >= 0) & (y < side)
    grid = torch.stack([x, y], dim=-1).mul_(2 / side).sub_(1)
    warped = functional.grid_sample(pictures.float(), grid, mode="bilinear", padding_mode="border", align_corners=False)
    return warped.add_(_CUT_SLACK).mul_(inside[:, None]).to(torch.uint8)


def look_up(pictures: Tensor, operations: np.ndarray, levels: np.ndarray, signs: np.ndarray) -> Tensor:
    """The operations that change each level by a table: autocontrast, equalize, posterize, solarize."""
    tables = _tables(pictures, operations, levels)  # [N, 3, 256] uint8
    number = len(pictures)
    offsets = torch.arange(number * 3, device=pictures.device, dtype=torch.int32).mul_(256).view(number, 3, 1, 1)
    return tables.view(-1).index_select(0, (pictures + offsets).reshape(-1)).view_as(pictures)


def _tables(pictures: Tensor, operations: np.ndarray, levels: np.ndarray) -> Tensor:
    device = pictures.device
    values = torch.arange(256, device=device)
    tables = torch.empty(len(pictures), 3, 256, device=device, dtype=torch.uint8)
    for place in _LOOKUP_PLACES:
        chosen = np.flatnonzero(operations == place)
        if not len(chosen):
            continue
        rows = torch.from_numpy(chosen).to(device)
        name = OPERATIONS[place]
        if name == "autocontrast":
            made = _autocontrast_tables(pictures[rows], values)
        elif name == "equalize":
            made = _equalize_tables(pictures[rows], values)
        elif name == "posterize":
            dropped = torch.from_numpy(2.0 ** (8 - posterize_bits(levels[chosen]))).long().to(device)[:, None]
            made = (values // dropped * dropped)[:, None].expand(-1, 3, -1)
        else:
            threshold = torch.from_numpy(solarize_threshold(levels[chosen])).to(device)[:, None]
            made = torch.where(values < threshold, values, 255 - values)[:, None].expand(-1, 3, -1)
        tables[rows] = made.to(torch.uint8)
    return tables


def _autocontrast_tables(pictures: Tensor, values: Tensor) -> Tensor:
    """Darkest to 0, brightest to 255, straight line between, cut to whole levels; constant channels stay."""
    flat = pictures.flatten(2)
    low, high = flat.amin(-1, keepdim=True).double(), flat.amax(-1, keepdim=True).double()  # [N, 3, 1]
    scale = torch.full_like(low, 255).div_((high - low).clamp_min(1))  # 255 / x would be 255 * (1 / x), one bit off
    stretched = (values * scale - low * scale).trunc().clamp(0, 255).long()
    return torch.where(high > low, stretched, values)


def _equalize_tables(pictures: Tensor, values: Tensor) -> Tensor:
    """The cumulative histogram in 255 steps, the brightest occupied level left out of the step, as PIL has it."""
    counts = _histograms(pictures)  # [N, 3, 256] int64
    pixels = counts.sum(-1, keepdim=True)
    brightest = (counts > 0).long().mul(values).amax(-1, keepdim=True)
    step = (pixels - counts.gather(-1, brightest)) // 255
    before = counts.cumsum(-1) - counts
    spread = ((step // 2 + before) // step.clamp_min(1)).clamp(0, 255)
    return torch.where(step > 0, spread, values)


def _histograms(pictures: Tensor) -> Tensor:
    number = len(pictures)
    offsets = torch.arange(number * 3, device=pictures.device, dtype=torch.int32).mul_(256).view(number, 3, 1, 1)
    return torch.bincount((pictures + offsets).reshape(-1), minlength=number * 3 * 256).view(number, 3, 256)
