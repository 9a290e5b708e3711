"""Antialiased separable resampling as sparse weights: which source pixels make an output pixel, and how much each.

The formula is Pillow's: the filter is stretched by the scale when shrinking, taps outside the box are dropped and the
rest sum to one; each of the two passes rounds to whole grey levels.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

RADIUS = {"bilinear": 1.0, "bicubic": 2.0, "lanczos": 3.0}
_MOST_NUMBERS = 1 << 26  # of an intermediate tensor; views beyond it go in several turns


@dataclass(frozen=True)
class Taps:
    """K weighted source positions for each of S output positions of each of V views."""

    index: Tensor  # [V, S, K] int64
    weight: Tensor  # [V, S, K] float32

    def part(self, start: int, stop: int) -> Taps:
        """Views start..stop-1."""
        return Taps(self.index[start:stop], self.weight[start:stop])


def kernel(name: str, x: Tensor) -> Tensor:
    """The filter's value at distance ``x`` from its centre, in output pixels when shrinking."""
    x = x.abs()
    if name == "bilinear":
        return (1 - x).clamp_min(0)
    if name == "bicubic":  # Keys' cubic with a = -1/2
        near = (1.5 * x - 2.5) * x * x + 1
        far = ((-0.5 * x + 2.5) * x - 4) * x + 2
        return torch.where(x < 1, near, torch.where(x < 2, far, torch.zeros_like(x)))
    return torch.where(x < 3, torch.sinc(x) * torch.sinc(x / 3), torch.zeros_like(x))


def most_taps(name: str, scale: float) -> int:
    """K that holds all taps of any output pixel, for a scale of source over output pixels."""
    return math.floor(2 * RADIUS[name] * max(scale, 1.0)) + 2


def make_taps(name: str, start: Tensor, length: Tensor, output: Tensor, scale: Tensor, taps: int) -> Taps:
    """Weights for V boxes along one axis.

    Args:
        name: The filter.
        start: [V] int64: first source pixel of each box.
        length: [V] int64: source pixels in it.
        output: [V, S] float64: the output positions wanted, counted from the box's first output pixel.
        scale: [V] float64: source pixels per output pixel.
        taps: K, at least ``most_taps`` of the largest scale.
    """
    stretch = scale.clamp_min(1.0)[:, None]  # [V, 1]
    centre = (output + 0.5) * scale[:, None]  # [V, S] from the box's start
    support = RADIUS[name] * stretch
    first = (centre - support + 0.5).trunc().clamp_min(0)
    last = torch.minimum((centre + support + 0.5).trunc(), length[:, None].double())
    place = first[..., None] + torch.arange(taps, device=start.device)  # [V, S, K] float64
    weight = kernel(name, (place - centre[..., None] + 0.5) / stretch[..., None])
    weight = torch.where(place < last[..., None], weight, 0.0)
    weight = weight / weight.sum(-1, keepdim=True)
    index = torch.minimum(place.long(), length[:, None, None] - 1) + start[:, None, None]
    return Taps(index, weight.float())


def resample(picture: Tensor, across: Taps, down: Taps) -> Tensor:
    """uint8 [V, 3, S, S] from a uint8 picture [3, H, W]: across first, then down, as Pillow does."""
    height, width = picture.shape[1:]
    views, side = across.index.shape[:2]
    columns = picture.permute(2, 0, 1).reshape(width, 3 * height).float()
    turn = max(1, _MOST_NUMBERS // (side * 3 * height))
    parts = [
        _resample_part(columns, across.part(v, v + turn), down.part(v, v + turn), height) for v in range(0, views, turn)
    ]
    return parts[0] if len(parts) == 1 else torch.cat(parts)


def _resample_part(columns: Tensor, across: Taps, down: Taps, height: int) -> Tensor:
    views, side, taps = across.index.shape
    rows = _weighted_rows(columns, across.index.view(-1, taps), across.weight.view(-1, taps))  # [V*S, 3*H]
    rows = rows.view(views, side, 3 * height).transpose(1, 2).reshape(views * 3 * height, side)
    # One table of rows for all views and channels; (view, channel) pairs read only their own H rows.
    planes = torch.arange(views * 3, device=columns.device).view(views, 3, 1, 1) * height
    index = (planes + down.index[:, None]).view(views * 3 * side, -1)
    weight = down.weight[:, None].expand(views, 3, side, -1).reshape(views * 3 * side, -1)
    return _weighted_rows(rows, index, weight).to(torch.uint8).view(views, 3, side, side)


def _weighted_rows(table: Tensor, index: Tensor, weight: Tensor) -> Tensor:
    """Row n: the sum of weight[n, k] * table[index[n, k]] over k, rounded to a grey level."""
    total = functional.embedding_bag(index, table, per_sample_weights=weight, mode="sum")
    return total.add_(0.5).floor_().clamp_(0, 255)
