"""The forward of ViT image towers that read out the class token: the last block runs for that token alone.

Only the class token leaves the tower, so in the last block the other tokens matter as keys and values and no further;
in a ViT-B that saves 7 % of the arithmetic. Equal to the tower's own forward up to rounding.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from poise.backbones.block import Block, Map


@dataclass(frozen=True)
class ClassTokenTower:
    """A pre-norm ViT, reduced to what the forward needs; [N, 3, S, S] -> [N, D]."""

    patches: Tensor  # [W, 3 * p * p]: the patch convolution as a matrix
    patch_bias: Tensor | None  # [W]
    side: int  # p, of a patch
    token: Tensor  # [W]
    positions: Tensor  # [1 + patches, W]
    before: Map
    blocks: tuple[Block, ...]
    finish: Map  # final norm and projection of the class token

    def __call__(self, pictures: Tensor) -> Tensor:
        """Features, not normalised; no gradients are wanted here."""
        x = self.before(self._tokens(pictures))
        *blocks, last = self.blocks
        for block in blocks:
            x = _run(block, x, x)
        return self.finish(_run(last, x[:, :1], x)[:, 0])

    def _tokens(self, pictures: Tensor) -> Tensor:
        grid = pictures.unflatten(3, (-1, self.side)).unflatten(2, (-1, self.side))  # [N, 3, gh, p, gw, p]
        flat = grid.permute(0, 2, 4, 1, 3, 5).flatten(3).flatten(1, 2)  # [N, patches, 3 * p * p]
        x = F.linear(flat, self.patches, self.patch_bias)
        return torch.cat([self.token.expand(len(x), 1, -1), x], 1) + self.positions


def _run(block: Block, rows: Tensor, x: Tensor) -> Tensor:
    """One block for ``rows`` [N, R, W], which attend to all of ``x`` [N, T, W]."""
    normed = block.norm1(x)
    if rows is x:
        queries, keys, values = block.project(normed, 0, 3)
    else:
        (queries,) = block.project(normed[:, : rows.shape[1]], 0, 1)
        keys, values = block.project(normed, 1, 3)
    mixed = F.scaled_dot_product_attention(queries, keys, values)
    return block.close(rows, mixed.transpose(1, 2).flatten(2))
