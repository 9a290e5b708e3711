"""Antialiased separable resampling with sparse weights: each output pixel is a weighted sum of a few source pixels.

The weights are those of Pillow: when shrinking, the filter is stretched by the scale; taps outside the box are dropped
and the rest normalised to sum to one. Each of the two passes rounds to whole grey levels.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

RADIUS = {"bilinear": 1.0, "bicubic": 2.0, "lanczos": 3.0}
_MAX_ELEMENTS = 1 << 26  # elements of an intermediate tensor; more views are processed in several chunks


@dataclass(frozen=True)
class Taps:
    """K weighted source positions for each of the S output positions of V views."""

    index: Tensor  # [V, S, K] int64
    weight: Tensor  # [V, S, K] float32

    def part(self, start: int, stop: int) -> Taps:
        """Return the taps of views start..stop-1."""
        return Taps(self.index[start:stop], self.weight[start:stop])


def kernel(name: str, x: Tensor) -> Tensor:
    """Return the filter's value at distance ``x`` from its centre, in output pixels when shrinking."""
    x = x.abs()
    if name == "bilinear":
        return (1 - x).clamp_min(0)
    if name == "bicubic":  # Keys' cubic with a = -1/2
        near = (1.5 * x - 2.5) * x * x + 1
        far = ((-0.5 * x + 2.5) * x - 4) * x + 2
        return torch.where(x < 1, near, torch.where(x < 2, far, torch.zeros_like(x)))
    return torch.where(x < 3, torch.sinc(x) * torch.sinc(x / 3), torch.zeros_like(x))


def most_taps(name: str, scale: float) -> int:
    """Return an upper bound K on the taps of an output pixel, for ``scale`` source pixels per output pixel."""
    return math.floor(2 * RADIUS[name] * max(scale, 1.0)) + 2


def make_taps(name: str, start: Tensor, length: Tensor, output: Tensor, scale: Tensor, taps: int) -> Taps:
    """Compute the taps of V boxes along one axis.

    Args:
        name: The filter: bilinear, bicubic or lanczos.
        start: First source pixel of each box, [V] int64.
        length: Number of source pixels of each box, [V] int64.
        output: Output positions, relative to the first output pixel of the box, [V, S] float64.
        scale: Source pixels per output pixel, [V] float64.
        taps: K, at least ``most_taps`` of the largest scale.
    """
    stretch = scale.clamp_min(1.0)[:, None]  # [V, 1]
    centre = (output + 0.5) * scale[:, None]  # [V, S], relative to the start of the box
    support = RADIUS[name] * stretch
    first = (centre - support + 0.5).trunc().clamp_min(0)
    last = torch.minimum((centre + support + 0.5).trunc(), length[:, None].double())
    position = first[..., None] + torch.arange(taps, device=start.device)  # [V, S, K] float64
    weight = kernel(name, (position - centre[..., None] + 0.5) / stretch[..., None])
    weight = torch.where(position < last[..., None], weight, 0.0)
    weight = weight / weight.sum(-1, keepdim=True)
    index = torch.minimum(position.long(), length[:, None, None] - 1) + start[:, None, None]
    return Taps(index, weight.float())


def resample(image: Tensor, across: Taps, down: Taps) -> Tensor:
    """Resample a uint8 image [3, H, W] to views [V, 3, S, S], horizontally first, then vertically, as Pillow does."""
    height, width = image.shape[1:]
    views, side = across.index.shape[:2]
    columns = image.permute(2, 0, 1).reshape(width, 3 * height).float()
    step = max(1, _MAX_ELEMENTS // (side * 3 * height))
    parts = [
        _resample_part(columns, across.part(v, v + step), down.part(v, v + step), height) for v in range(0, views, step)
    ]
    return parts[0] if len(parts) == 1 else torch.cat(parts)


def _resample_part(columns: Tensor, across: Taps, down: Taps, height: int) -> Tensor:
    views, side, taps = across.index.shape
    rows = _weighted_rows(columns, across.index.view(-1, taps), across.weight.view(-1, taps))  # [V*S, 3*H]
    rows = rows.view(views, side, 3 * height).transpose(1, 2).reshape(views * 3 * height, side)
    # One table of rows holds all views and channels; a (view, channel) pair reads only the H rows that belong to it.
    planes = torch.arange(views * 3, device=columns.device).view(views, 3, 1, 1) * height
    index = (planes + down.index[:, None]).view(views * 3 * side, -1)
    weight = down.weight[:, None].expand(views, 3, side, -1).reshape(views * 3 * side, -1)
    return _weighted_rows(rows, index, weight).to(torch.uint8).view(views, 3, side, side)


def _weighted_rows(table: Tensor, index: Tensor, weight: Tensor) -> Tensor:
    """Return rows sum_k weight[n, k] * table[index[n, k]], rounded to grey levels."""
    total = functional.embedding_bag(index, table, per_sample_weights=weight, mode="sum")
    return total.add_(0.5).floor_().clamp_(0, 255)
