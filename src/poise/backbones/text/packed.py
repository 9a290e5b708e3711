"""The text tower on packed rows: the prefix's P tokens, then n tiles of W tokens, all through the same kernels.

CUDA in half precision; elsewhere `poise.backbones.text.shared_prefix` has the same forward in torch's operations.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional as F

from poise.backbones.block import Block, Map
from poise.backbones.text.tiles import Tiles
from poise.backbones.triton import block_kernels as kernels
from poise.backbones.triton import fused_block as fused

_KEYS = 128  # of a tile that one program of attention's kernel holds


def fits(blocks: Sequence[Block], tiles: Tiles, prefix: int) -> bool:
    """Whether a tile and a head fit one program."""
    size = blocks[0].weight.shape[1] // blocks[0].heads
    return prefix > 0 and prefix + tiles.width <= _KEYS and size in (16, 32, 64)


def run(blocks: Sequence[Block], finish: Map, tiles: Tiles, prefix: Tensor, own: Tensor) -> Tensor:
    """Features [B, C, D] for the tower's inputs ``prefix`` [B, P, E] and ``own`` [n * W, E]."""
    first = prefix.shape[1]
    rows = fused.ResidualStream(torch.cat([prefix, own.expand(len(prefix), -1, -1)], 1))
    *most, last = blocks
    for block in most:
        rows.add(attend(project(block, rows.normed(block.norm1)), tiles, first), block.out)
        rows.add_mlp(block)
    mixed = attend(project(last, rows.normed(last.norm1)), tiles, first)
    ends = tiles.ends + first
    return finish(last.close(rows.value().index_select(1, ends), mixed.index_select(1, ends)))


def project(block: Block, normed: Tensor) -> Tensor:
    """Queries, keys and values [B, R, 3, H, hd]."""
    return F.linear(normed, block.weight, block.bias).unflatten(-1, (3, block.heads, -1))


def attend(joint: Tensor, tiles: Tiles, prefix: int) -> Tensor:
    """What the heads give, [B, R, E]."""
    images, rows, _, heads, size = joint.shape
    out = joint.new_empty(images, rows, heads * size)
    with kernels.on(joint):
        kernels.attention_kernel[(tiles.count + 1, heads, images)](
            joint, tiles.mask, out, tiles.count, tiles.width, prefix, rows, size**-0.5,
            HEADS=heads, SIZE=size, BLOCK=_KEYS, num_warps=8,
        )  # fmt: skip
    return out


def attend_back(joint: Tensor, gradients: Tensor, tiles: Tiles, prefix: int) -> Tensor:
    """Gradients [B, R, 3, H, hd] at ``joint`` [1 or B, R, 3, H, hd] for gradients [B, R, E] of what the heads give."""
    images, (rows, _, heads, size) = len(gradients), joint.shape[1:]
    out = gradients.new_empty(images, *joint.shape[1:])
    shared = gradients.new_empty(images, tiles.count + 1, prefix, 2, heads, size, dtype=torch.float32)
    with kernels.on(joint):
        kernels.attention_back_kernel[(tiles.count + 1, heads, images)](
            joint, gradients, tiles.mask, out, shared, tiles.count, tiles.width, prefix, rows, size**-0.5,
            OWN=int(len(joint) > 1), HEADS=heads, SIZE=size, BLOCK=_KEYS, num_warps=8,
        )  # fmt: skip
    out[:, :prefix, 1:] = shared.sum(1).to(out.dtype)  # every tile sees the prefix
    return out
