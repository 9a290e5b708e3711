"""Gradients of many images through the text tower, written out in kernels that serve all of them at once.

Every image's first step starts from the same prompt, so all that its gradient is taken at (norms, activations,
attention weights) is computed and kept once. What runs per image is linear: the transposed matrix products, and
kernels that read the kept values beside each image's. Images with prompts of their own keep values of their own.
CUDA in half precision; elsewhere autograd does it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from poise.backbones.block import Block, Map, Mlp
from poise.backbones.text import packed
from poise.backbones.text.tiles import Tiles
from poise.backbones.triton import block_kernels as kernels
from poise.backbones.triton import fused_block as fused

_ELEMENTS = 2048  # of one program


@dataclass(frozen=True)
class _Kept:
    """What a block's gradient is taken at, for all R = P + n * W rows of b = 1 or B prompts."""

    x: Tensor  # [b, R, E] before the first norm
    joint: Tensor  # [b, R, 3, H, hd]: queries, keys, values
    attended: Tensor  # [b, R, E] before the second norm
    hidden: Tensor  # [b, R, F] before the activation


class TextPullback:
    """The transpose of d features / d prefix, of one label set at one prompt for any number of images, or at B."""

    @torch.no_grad()
    def __init__(self, blocks: Sequence[Block], finish: Map, tiles: Tiles, prefix: Tensor, own: Tensor) -> None:
        """``prefix`` [b, P, E], ``own`` [n * W, E] are the tower's inputs; ``finish`` makes features of end tokens."""
        self._blocks, self._finish, self._tiles, self._prefix = blocks, finish, tiles, prefix.shape[1]
        self._ends = tiles.ends + self._prefix
        self._kept: list[_Kept] = []
        x = torch.cat([prefix, own.expand(len(prefix), -1, -1)], 1)
        for block in blocks:
            x = self._keep(block, x)
        self._last = x[:, self._ends]  # [b, C, E]

    def __call__(self, cotangent: Tensor) -> Tensor:
        """Cotangents [B, C, D] of the features -> gradients [B, P, E] of the prefix."""
        ends = self._last.expand(len(cotangent), -1, -1).clone().requires_grad_()
        with torch.enable_grad():
            (gradient,) = torch.autograd.grad(self._finish(ends), ends, cotangent)
        with torch.no_grad():
            whole = self._through_last(gradient)
            for depth in reversed(range(len(self._blocks) - 1)):
                block, kept = self._blocks[depth], self._kept[depth]
                _add_through_mlp(block, whole, kept.attended, kept.hidden)
                if depth == 0:  # the classes' own inputs are no part of the prompt
                    return self._through_attention(block, whole, _out_gradient(block, whole), kept, self._prefix)
                whole = self._through_attention(block, whole, _out_gradient(block, whole), kept)
        return whole[:, : self._prefix]

    def _keep(self, block: Block, x: Tensor) -> Tensor:
        """One block forward, [b, R, E] -> [b, R, E]."""
        assert isinstance(block.mlp, Mlp)
        joint = packed.project(block, block.norm1(x))
        attended = x + block.out(packed.attend(joint, self._tiles, self._prefix))
        hidden = block.mlp.first(block.norm2(attended))
        self._kept.append(_Kept(x, joint, attended, hidden))
        return attended + block.mlp.last(block.mlp.activation(hidden))

    def _through_last(self, gradient: Tensor) -> Tensor:
        """The last block, whose MLP matters for the end tokens alone: [B, C, E] -> [B, R, E]."""
        block, kept, ends = self._blocks[-1], self._kept[-1], self._ends
        _add_through_mlp(block, gradient, kept.attended[:, ends], kept.hidden[:, ends])
        whole, out = (gradient.new_zeros(len(gradient), *kept.x.shape[1:]) for _ in range(2))
        whole.index_copy_(1, ends, gradient)
        out.index_copy_(1, ends, _out_gradient(block, gradient))
        return self._through_attention(block, whole, out, kept)

    def _through_attention(
        self, block: Block, whole: Tensor, out: Tensor, kept: _Kept, rows: int | None = None
    ) -> Tensor:
        """The first ``rows`` of ``whole`` with what comes back through attention."""
        joint = packed.attend_back(kept.joint, out, self._tiles, self._prefix)[:, :rows]
        whole = whole[:, :rows].contiguous()
        _add_through_norm(block.norm1, whole, joint.flatten(2) @ block.weight, kept.x[:, :rows].contiguous())
        return whole


def _out_gradient(block: Block, whole: Tensor) -> Tensor:
    assert isinstance(block.out, nn.Linear)
    return whole @ block.out.weight


def _add_through_mlp(block: Block, whole: Tensor, x: Tensor, hidden: Tensor) -> None:
    """Add to ``whole`` [B, R, E] what comes back through the MLP."""
    assert isinstance(block.mlp, Mlp)
    gradients, count = whole @ block.mlp.last.weight, hidden[0].numel()  # [B, R, F]
    with kernels.on(gradients):
        kernels.activation_back_kernel[(-(-count // _ELEMENTS), len(gradients))](
            gradients, hidden, count,
            OWN=int(len(hidden) > 1), KIND=fused.kind_of(block.mlp), BLOCK=_ELEMENTS, num_warps=4,
        )  # fmt: skip
    _add_through_norm(block.norm2, whole, gradients @ block.mlp.first.weight, x)


def _add_through_norm(norm: Map, whole: Tensor, gradient: Tensor, x: Tensor) -> None:
    """Add to ``whole`` [B, R, E] the gradient through ``norm`` at ``x`` [b, R, E]."""
    assert isinstance(norm, nn.LayerNorm)
    images, rows, width = whole.shape
    with kernels.on(whole):
        kernels.norm_back_kernel[(rows, images)](
            whole, gradient, x, norm.weight, norm.eps, width, rows,
            OWN=int(len(x) > 1), BLOCK=1 << (width - 1).bit_length(), num_warps=2,
        )  # fmt: skip
