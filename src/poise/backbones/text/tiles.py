"""The shared-prefix text forward, laid out for a GPU: classes packed into tiles, all in one attention call.

A class's own tokens are few (about four), so attention per class would be many tiny products. Here several classes
share a tile of about 128 keys; a mask keeps them apart. Every tile begins with the keys and values of the prefix.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from poise.backbones.block import Block
from poise.types import ClassTokens

_KEYS = 128  # of a tile, the prefix's included; attention kernels want a multiple of 8


@dataclass(frozen=True)
class Tiles:
    """One label set in n tiles of W tokens and K = P + W keys; P tokens of the prefix come first in each."""

    count: int  # n
    width: int  # W
    ids: Tensor  # [n * W] long; padding has id 0
    positions: Tensor  # [n * W] long
    mask: Tensor  # [n, 1, W, K]: 0 where a query sees a key, else minus infinity
    ends: Tensor  # [C] long: each class's end token on the axis of n * W


def make_tiles(classes: ClassTokens, *, device: torch.device, dtype: torch.dtype) -> Tiles:
    """Pack the classes in their order; none is cut in two."""
    prefix = classes.shared
    lengths = (classes.lengths - prefix).tolist()
    width = _width(lengths, prefix)
    places = _places(lengths, width)
    count = places[-1] // width + 1
    starts, sizes = torch.tensor(places), torch.tensor(lengths)
    owner = torch.repeat_interleave(torch.arange(len(lengths)), sizes)  # class of each real token
    column = torch.arange(len(owner)) - (sizes.cumsum(0) - sizes)[owner]
    place = starts[owner] + column
    ids = torch.zeros(count * width, dtype=torch.long)
    positions, classes_at = torch.zeros_like(ids), torch.full_like(ids, -1)
    ids[place] = classes.ids[owner, prefix + column]
    positions[place] = prefix + column
    classes_at[place] = owner
    own = classes_at.view(count, width)
    order = torch.arange(width)
    seen = (own[:, :, None] == own[:, None, :]) & (order[None, :] <= order[:, None])  # [n, W, W]
    seen = torch.cat([torch.ones(count, width, prefix, dtype=torch.bool), seen], 2)
    mask = torch.zeros(seen.shape, dtype=dtype).masked_fill(~seen, -torch.inf)
    ends = starts + sizes - 1
    return Tiles(count, width, ids.to(device), positions.to(device), mask[:, None].to(device), ends.to(device))


def mask_of(tiles: Tiles, images: int, heads: int) -> Tensor:
    """The mask for all images' tiles, [B * n, H, W, K]."""
    return tiles.mask.repeat(images, 1, 1, 1).expand(-1, heads, -1, -1)


def run_tiles(
    block: Block, tiles: Tiles, x: Tensor, keys: Tensor, values: Tensor, mask: Tensor, *, ends_only: bool = False
) -> Tensor:
    """One block over all tiles, [1 or B, n * W, E] -> [B, n * W, E], or [B, C, E] of the end tokens alone.

    ``keys`` and ``values`` are the prefix's, [B, H, P, E / H].
    """
    images, heads = keys.shape[0], block.heads
    joint = F.linear(block.norm1(x), block.weight, block.bias).unflatten(-1, (3, heads, -1))  # [b, n * W, 3, H, hd]
    own = joint.unflatten(1, (tiles.count, tiles.width)).expand(images, *[-1] * 5)
    queries, own_keys, own_values = own.unbind(3)  # [B, n, W, H, hd]
    mixed = _attend(
        queries.flatten(0, 1).transpose(1, 2),
        _with_prefix(keys, own_keys).transpose(1, 2),
        _with_prefix(values, own_values).transpose(1, 2),
        mask,
        shared=images == 1,
    )  # [B * n, H, W, hd]
    mixed = mixed.transpose(1, 2).reshape(images, tiles.count * tiles.width, -1)
    if ends_only:
        mixed, x = mixed.index_select(1, tiles.ends), x.index_select(1, tiles.ends)
    return block.close(x, mixed)


def _attend(queries: Tensor, keys: Tensor, values: Tensor, mask: Tensor, *, shared: bool) -> Tensor:
    """``shared``: gradients of many images will be taken through this one graph, which no attention kernel allows."""
    if shared and torch.is_grad_enabled():
        near = (queries * queries.shape[-1] ** -0.5) @ keys.transpose(-1, -2) + mask
        return near.softmax(-1) @ values
    if not (queries.is_cuda and torch.is_grad_enabled()):
        return F.scaled_dot_product_attention(queries, keys, values, attn_mask=mask)
    with sdpa_kernel([SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]):  # whose backward takes any mask
        return F.scaled_dot_product_attention(queries, keys, values, attn_mask=mask)


def _with_prefix(prefix: Tensor, own: Tensor) -> Tensor:
    """[B, H, P, hd] and [B, n, W, H, hd] -> [B * n, P + W, H, hd]."""
    shared = prefix.transpose(1, 2)[:, None].expand(-1, own.shape[1], -1, -1, -1)
    return torch.cat([shared, own], 2).flatten(0, 1)


def _width(lengths: list[int], prefix: int) -> int:
    """W with P + W a multiple of 8: the narrowest that needs no more tiles than the widest."""
    widest = max(_KEYS, -(-(prefix + max(lengths)) // 8) * 8) - prefix
    count = _places(lengths, widest)[-1] // widest + 1
    width = widest
    while width - 8 >= max(lengths) and _places(lengths, width - 8)[-1] // (width - 8) + 1 == count:
        width -= 8
    return width


def _places(lengths: list[int], width: int) -> list[int]:
    """Where each class begins when tiles of ``width`` are filled one after the other."""
    places, at = [], 0
    for length in lengths:
        if at % width + length > width:
            at = (at // width + 1) * width
        places.append(at)
        at += length
    return places
