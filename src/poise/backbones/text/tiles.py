"""Shared-prefix text forward pass for GPUs: classes are packed into tiles, and one attention call serves all tiles.

After the prefix a class has few tokens (about four), so attention per class would be many small matrix products. Here
several classes share a tile of about 128 keys, separated by a mask. Each tile starts with the prefix's keys and values.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from poise.backbones.block import Block
from poise.types import ClassTokens

_KEYS = 128  # keys per tile, including the prefix; attention kernels need a multiple of 8


@dataclass(frozen=True)
class Tiles:
    """One label set in n tiles of W tokens. Each tile has K = P + W keys, of which the first P are the prefix."""

    count: int  # n
    width: int  # W
    ids: Tensor  # [n * W] long; padding has id 0
    positions: Tensor  # [n * W] long
    mask: Tensor  # [n, 1, W, K]: 0 where a query attends to a key, minus infinity elsewhere
    ends: Tensor  # [C] long: position of each class's end token on the axis of n * W


def make_tiles(classes: ClassTokens, *, device: torch.device, dtype: torch.dtype) -> Tiles:
    """Pack the classes into tiles in order. No class is split between two tiles."""
    prefix = classes.shared
    lengths = (classes.lengths - prefix).tolist()
    width = tile_width(lengths, prefix)
    offsets = row_offsets(lengths, width)
    count = offsets[-1] // width + 1
    starts, sizes = torch.tensor(offsets), torch.tensor(lengths)
    owner = torch.repeat_interleave(torch.arange(len(lengths)), sizes)  # class of each token, padding excluded
    column = torch.arange(len(owner)) - (sizes.cumsum(0) - sizes)[owner]
    index = starts[owner] + column  # position of each token on the axis of n * W
    ids = torch.zeros(count * width, dtype=torch.long)
    positions, classes_at = torch.zeros_like(ids), torch.full_like(ids, -1)
    ids[index] = classes.ids[owner, prefix + column]
    positions[index] = prefix + column
    classes_at[index] = owner
    tile_classes = classes_at.view(count, width)
    order = torch.arange(width)
    same_class = tile_classes[:, :, None] == tile_classes[:, None, :]
    visible = same_class & (order[None, :] <= order[:, None])  # [n, W, W]
    visible = torch.cat([torch.ones(count, width, prefix, dtype=torch.bool), visible], 2)
    mask = torch.zeros(visible.shape, dtype=dtype).masked_fill(~visible, -torch.inf)
    ends = starts + sizes - 1
    return Tiles(count, width, ids.to(device), positions.to(device), mask[:, None].to(device), ends.to(device))


def expand_mask(tiles: Tiles, images: int, heads: int) -> Tensor:
    """Repeat the mask for the tiles of all images, -> [B * n, H, W, K]."""
    return tiles.mask.repeat(images, 1, 1, 1).expand(-1, heads, -1, -1)


def run_tiles(
    block: Block, tiles: Tiles, x: Tensor, keys: Tensor, values: Tensor, mask: Tensor, *, ends_only: bool = False
) -> Tensor:
    """Apply one block to all tiles, [1 or B, n * W, E] -> [B, n * W, E], or [B, C, E] with ``ends_only``.

    ``keys`` and ``values`` [B, H, P, E / H] are those of the prefix.
    """
    images, heads = keys.shape[0], block.heads
    joint = F.linear(block.norm1(x), block.weight, block.bias).unflatten(-1, (3, heads, -1))  # [b, n * W, 3, H, hd]
    joint = joint.unflatten(1, (tiles.count, tiles.width)).expand(images, *[-1] * 5)
    queries, tile_keys, tile_values = joint.unbind(3)  # [B, n, W, H, hd]
    outputs = _attend(
        queries.flatten(0, 1).transpose(1, 2),
        _with_prefix(keys, tile_keys).transpose(1, 2),
        _with_prefix(values, tile_values).transpose(1, 2),
        mask,
        shared=images == 1,
    )  # [B * n, H, W, hd]
    outputs = outputs.transpose(1, 2).reshape(images, tiles.count * tiles.width, -1)
    if ends_only:
        outputs, x = outputs.index_select(1, tiles.ends), x.index_select(1, tiles.ends)
    return block.after_attention(x, outputs)


def _attend(queries: Tensor, keys: Tensor, values: Tensor, mask: Tensor, *, shared: bool) -> Tensor:
    """Compute attention. ``shared`` graphs receive batched gradients, which fused attention kernels do not support."""
    if shared and torch.is_grad_enabled():
        scores = (queries * queries.shape[-1] ** -0.5) @ keys.transpose(-1, -2) + mask
        return scores.softmax(-1) @ values
    if not (queries.is_cuda and torch.is_grad_enabled()):
        return F.scaled_dot_product_attention(queries, keys, values, attn_mask=mask)
    with sdpa_kernel([SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]):  # their backward passes accept any mask
        return F.scaled_dot_product_attention(queries, keys, values, attn_mask=mask)


def _with_prefix(prefix: Tensor, tiles: Tensor) -> Tensor:
    """Prepend the prefix [B, H, P, hd] to each tile [B, n, W, H, hd], -> [B * n, P + W, H, hd]."""
    shared = prefix.transpose(1, 2)[:, None].expand(-1, tiles.shape[1], -1, -1, -1)
    return torch.cat([shared, tiles], 2).flatten(0, 1)


def tile_width(lengths: list[int], prefix: int) -> int:
    """Return the smallest W that needs no more tiles than the largest one; P + W is a multiple of 8."""
    widest = max(_KEYS, -(-(prefix + max(lengths)) // 8) * 8) - prefix
    count = row_offsets(lengths, widest)[-1] // widest + 1
    width = widest
    while width - 8 >= max(lengths) and row_offsets(lengths, width - 8)[-1] // (width - 8) + 1 == count:
        width -= 8
    return width


def row_offsets(lengths: list[int], width: int) -> list[int]:
    """Return the first position of each class when tiles of ``width`` are filled in order."""
    offsets, end = [], 0
    for length in lengths:
        if end % width + length > width:
            end = (end // width + 1) * width
        offsets.append(end)
        end += length
    return offsets
