"""Fused text forward pass: one axis with the prefix's P tokens followed by n tiles of W tokens.

Used on CUDA in half precision. `poise.backbones.text.shared_prefix` implements the same forward pass in plain torch.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional as F

from poise.backbones.block import Block, Map
from poise.backbones.text.tiles import Tiles
from poise.backbones.triton import block_kernels, fused_block

_MAX_KEYS = 128  # keys per tile that one program of the attention kernel can hold


def fits(blocks: Sequence[Block], tiles: Tiles, prefix: int) -> bool:
    """Return whether one kernel program can hold a tile and a head."""
    size = blocks[0].weight.shape[1] // blocks[0].heads
    return prefix > 0 and prefix + tiles.width <= _MAX_KEYS and size in (16, 32, 64)


def run(blocks: Sequence[Block], finish: Map, tiles: Tiles, prefix: Tensor, tile_tokens: Tensor) -> Tensor:
    """Return features [B, C, D] for the input embeddings ``prefix`` [B, P, E] and ``tile_tokens`` [n * W, E]."""
    first = prefix.shape[1]
    stream = fused_block.ResidualStream(torch.cat([prefix, tile_tokens.expand(len(prefix), -1, -1)], 1))
    *blocks, last = blocks
    for block in blocks:
        stream.add(attend(project(block, stream.normed(block.norm1)), tiles, first), block.out)
        stream.add_mlp(block)
    heads = attend(project(last, stream.normed(last.norm1)), tiles, first)
    ends = tiles.ends + first
    return finish(last.after_attention(stream.value().index_select(1, ends), heads.index_select(1, ends)))


def project(block: Block, normed: Tensor) -> Tensor:
    """Return queries, keys and values in one tensor [B, R, 3, H, hd]."""
    return F.linear(normed, block.weight, block.bias).unflatten(-1, (3, block.heads, -1))


def attend(joint: Tensor, tiles: Tiles, prefix: int) -> Tensor:
    """Return the concatenated outputs of the attention heads, [B, R, 3, H, hd] -> [B, R, E]."""
    images, rows, _, heads, size = joint.shape
    out = joint.new_empty(images, rows, heads * size)
    with block_kernels.device_guard(joint):
        block_kernels.attention_kernel[(tiles.count + 1, heads, images)](
            joint,
            tiles.mask,
            out,
            tiles.count,
            tiles.width,
            prefix,
            rows,
            size**-0.5,
            HEADS=heads,
            SIZE=size,
            BLOCK=_MAX_KEYS,
            num_warps=8,
        )
    return out


def attend_vjp(joint: Tensor, cotangent: Tensor, tiles: Tiles, prefix: int) -> Tensor:
    """Return the gradient [B, R, 3, H, hd] at ``joint`` [1 or B, R, 3, H, hd] for a cotangent [B, R, E] of `attend`."""
    images, (rows, _, heads, size) = len(cotangent), joint.shape[1:]
    out = cotangent.new_empty(images, *joint.shape[1:])
    shared = cotangent.new_empty(images, tiles.count + 1, prefix, 2, heads, size, dtype=torch.float32)
    with block_kernels.device_guard(joint):
        block_kernels.attention_back_kernel[(tiles.count + 1, heads, images)](
            joint,
            cotangent,
            tiles.mask,
            out,
            shared,
            tiles.count,
            tiles.width,
            prefix,
            rows,
            size**-0.5,
            OWN=int(len(joint) > 1),
            HEADS=heads,
            SIZE=size,
            BLOCK=_MAX_KEYS,
            num_warps=8,
        )
    out[:, :prefix, 1:] = shared.sum(1).to(out.dtype)  # all tiles attend to the prefix, so their gradients are summed
    return out
