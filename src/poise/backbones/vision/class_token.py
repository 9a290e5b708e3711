"""Forward pass of ViT image towers that pool the class token: the last block is computed for that token only.

In the last block there is one query per head, and keys and values need not be materialised, which saves 8 % of the
arithmetic of a ViT-B. The result equals the original forward pass up to rounding.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from poise.backbones.block import Block, Map
from poise.backbones.triton import fused_block
from poise.backbones.triton.float8_block import Float8Block, Float8Stream


@dataclass(frozen=True)
class ClassTokenTower:
    """The parts of a pre-norm ViT that the forward pass uses; maps images [N, 3, S, S] to features [N, D]."""

    patches: Tensor  # [W, 3 * p * p]: the patch convolution as a matrix
    patch_bias: Tensor | None  # [W]
    side: int  # p: side of a patch in pixels
    token: Tensor  # [W]: class token
    positions: Tensor  # [1 + patches, W]
    before: Map  # layer norm before the first block
    blocks: tuple[Block, ...]
    finish: Map  # final layer norm and projection of the class token

    def __call__(self, images: Tensor) -> Tensor:
        """Return unnormalised features [N, D]; not meant for gradients."""
        x = self._embedded(images)
        if fused_block.usable(self.blocks, x) and self._has_norm():
            return self._run_fused(x)
        x = self.before(torch.cat([self.token.expand(x.shape[0], 1, -1), x], 1) + self.positions)
        *blocks, last = self.blocks
        for block in blocks:
            normed = block.norm1(x)
            x = block.after_attention(x, _attend(block, normed))
        return self._finish(x, last.norm1(x))

    def can_use_float8(self) -> bool:
        """Return whether `in_float8` supports these blocks."""
        return self._has_norm() and all(map(fused_block.is_supported, self.blocks))

    def in_float8(self) -> Map:
        """Return the same map with the matrix products of all blocks but the last in float8 (`float8_block`)."""
        weights = [Float8Block.of(block) for block in self.blocks[:-1]]

        def forward(images: Tensor) -> Tensor:
            stream = Float8Stream(self._normed(self._embedded(images)))
            for block in weights:
                stream.run(block)
            return self._finish(*stream.finish(self.blocks[-1].norm1))

        return forward

    def _has_norm(self) -> bool:
        return isinstance(self.before, nn.LayerNorm)

    def _embedded(self, images: Tensor) -> Tensor:
        """Return the patches' embeddings [N, patches, W]."""
        grid = images.unflatten(3, (-1, self.side)).unflatten(2, (-1, self.side))  # [N, 3, gh, p, gw, p]
        flat = grid.permute(0, 2, 4, 1, 3, 5).flatten(3).flatten(1, 2)  # [N, patches, 3 * p * p]
        return F.linear(flat, self.patches, self.patch_bias)

    def _normed(self, patches: Tensor) -> Tensor:
        """Return the input [N, 1 + patches, W] of the first block, by one kernel."""
        x = patches.new_empty(len(patches), len(self.positions), patches.shape[-1])
        x[:, 0] = self.before(self.token + self.positions[0])
        return fused_block.shifted_norm(patches, self.positions[1:], self.before, x, free=1)

    def _finish(self, x: Tensor, normed: Tensor) -> Tensor:
        """Return the features, from the input of the last block and its norm."""
        last = self.blocks[-1]
        return self.finish(last.after_attention(x[:, :1], _attend_first(last, normed))[:, 0])

    def _run_fused(self, patches: Tensor) -> Tensor:
        stream = fused_block.ResidualStream(self._normed(patches))
        *blocks, last = self.blocks
        for block in blocks:
            stream.add(_attend(block, stream.normed(block.norm1)), block.out)
            stream.add_mlp(block)
        return self._finish(stream.value(slice(None), slice(1)), stream.normed(last.norm1))


def _attend(block: Block, normed: Tensor) -> Tensor:
    """Return the heads' outputs for all tokens, [N, T, W] -> [N, T, W]."""
    queries, keys, values = block.project(normed, 0, 3)
    return F.scaled_dot_product_attention(queries, keys, values).transpose(1, 2).flatten(2)


def _attend_first(block: Block, normed: Tensor) -> Tensor:
    """Return the heads' outputs for the first token, [N, T, W] -> [N, 1, W].

    With one query, query . (K x) = (K' query) . x and sum(a V x) = V sum(a x), so K and V are applied to one vector per
    head instead of every token. The keys' bias shifts all scores by the same amount and is omitted.
    """
    width = normed.shape[-1]
    (queries,) = block.project(normed[:, :1], 0, 1)  # [N, H, 1, hd]
    keys, values = (block.weight[i * width : (i + 1) * width].unflatten(0, (block.heads, -1)) for i in (1, 2))
    projected = torch.einsum("nhd,hdw->nhw", queries[:, :, 0] * queries.shape[-1] ** -0.5, keys)
    weights = (projected @ normed.transpose(1, 2)).softmax(-1)  # [N, H, T]
    heads = torch.einsum("nhw,hdw->nhd", weights @ normed, values).flatten(1)
    return (heads if block.bias is None else heads + block.bias[2 * width :])[:, None]
