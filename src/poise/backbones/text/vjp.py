"""Vector-Jacobian products of many images through the text tower, in kernels that process all images at once.

The first tuning step of every image starts from the same prompt, so the values that the backward pass reads (inputs of
the layer norms and activations, queries, keys and values) are computed and stored once. Per image only linear work is
left: transposed matrix products, and kernels that read the stored values. If each image has its own prompt, the values
are stored per image. Used on CUDA in half precision; other devices use autograd.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from poise.backbones.block import Block, Map, Mlp
from poise.backbones.text import packed
from poise.backbones.text.tiles import Tiles
from poise.backbones.triton import block_kernels, fused_block

_ELEMENTS = 2048  # elements per kernel program


@dataclass(frozen=True)
class _Saved:
    """Values of a block that its backward pass reads, for the R = P + n * W tokens of b = 1 or B prompts."""

    x: Tensor  # [b, R, E]: input of the first layer norm
    joint: Tensor  # [b, R, 3, H, hd]: queries, keys, values
    attended: Tensor  # [b, R, E]: input of the second layer norm
    hidden: Tensor  # [b, R, F]: input of the activation


class TextVjp:
    """Vector-Jacobian product of the features with respect to the prefix, for one label set.

    Evaluated at one prompt for any number of images, or at one prompt per image.
    """

    @torch.no_grad()
    def __init__(self, blocks: Sequence[Block], finish: Map, tiles: Tiles, prefix: Tensor, tokens: Tensor) -> None:
        """Run the forward pass on ``prefix`` [b, P, E] and ``tokens`` [n * W, E]; ``finish`` projects end tokens."""
        self._blocks, self._finish, self._tiles, self._prefix = blocks, finish, tiles, prefix.shape[1]
        self._ends = tiles.ends + self._prefix
        self._saved: list[_Saved] = []
        x = torch.cat([prefix, tokens.expand(len(prefix), -1, -1)], 1)
        for block in blocks:
            x = self._forward(block, x)
        self._last = x[:, self._ends]  # [b, C, E]

    def __call__(self, cotangent: Tensor) -> Tensor:
        """Return the gradient [B, P, E] of the prefix for a cotangent [B, C, D] of the features."""
        ends = self._last.expand(len(cotangent), -1, -1).clone().requires_grad_()
        with torch.enable_grad():
            (gradient,) = torch.autograd.grad(self._finish(ends), ends, cotangent)
        with torch.no_grad():
            total = self._last_block(gradient)
            for depth in reversed(range(len(self._blocks) - 1)):
                block, saved = self._blocks[depth], self._saved[depth]
                _add_mlp_gradient(block, total, saved.attended, saved.hidden)
                # In block 0 only the prefix is needed: the embeddings of the class tokens are not tuned.
                rows = self._prefix if depth == 0 else None
                total = self._attention(block, total, _heads_gradient(block, total), saved, rows)
        return total[:, : self._prefix]

    def _forward(self, block: Block, x: Tensor) -> Tensor:
        """Apply one block, [b, R, E] -> [b, R, E], and save what its backward pass needs."""
        assert isinstance(block.mlp, Mlp)
        joint = packed.project(block, block.norm1(x))
        attended = x + block.out(packed.attend(joint, self._tiles, self._prefix))
        hidden = block.mlp.first(block.norm2(attended))
        self._saved.append(_Saved(x, joint, attended, hidden))
        return attended + block.mlp.last(block.mlp.activation(hidden))

    def _last_block(self, gradient: Tensor) -> Tensor:
        """Backward pass of the last block, whose MLP is applied to the end tokens only: [B, C, E] -> [B, R, E]."""
        block, saved, ends = self._blocks[-1], self._saved[-1], self._ends
        _add_mlp_gradient(block, gradient, saved.attended[:, ends], saved.hidden[:, ends])
        total, heads = (gradient.new_zeros(len(gradient), *saved.x.shape[1:]) for _ in range(2))
        total.index_copy_(1, ends, gradient)
        heads.index_copy_(1, ends, _heads_gradient(block, gradient))
        return self._attention(block, total, heads, saved)

    def _attention(self, block: Block, total: Tensor, heads: Tensor, saved: _Saved, rows: int | None = None) -> Tensor:
        """Return the first ``rows`` of ``total`` [B, R, E] plus the gradient through attention.

        ``heads`` [B, R, E] is the gradient of the heads' outputs.
        """
        joint = packed.attend_vjp(saved.joint, heads, self._tiles, self._prefix)[:, :rows]
        total = total[:, :rows].contiguous()
        _add_norm_gradient(block.norm1, total, joint.flatten(2) @ block.weight, saved.x[:, :rows].contiguous())
        return total


def _heads_gradient(block: Block, total: Tensor) -> Tensor:
    assert isinstance(block.out, nn.Linear)
    return total @ block.out.weight


def _add_mlp_gradient(block: Block, total: Tensor, x: Tensor, hidden: Tensor) -> None:
    """Add to ``total`` [B, R, E] the gradient through the MLP and its layer norm."""
    assert isinstance(block.mlp, Mlp)
    gradient, count = total @ block.mlp.last.weight, hidden[0].numel()  # [B, R, F]
    with block_kernels.device_guard(gradient):
        block_kernels.activation_back_kernel[(-(-count // _ELEMENTS), len(gradient))](
            gradient,
            hidden,
            count,
            OWN=int(len(hidden) > 1),
            KIND=fused_block.activation_kind(block.mlp),
            BLOCK=_ELEMENTS,
            num_warps=4,
        )
    _add_norm_gradient(block.norm2, total, gradient @ block.mlp.first.weight, x)


def _add_norm_gradient(norm: Map, total: Tensor, gradient: Tensor, x: Tensor) -> None:
    """Add to ``total`` [B, R, E] the gradient through ``norm`` at ``x`` [b, R, E]."""
    assert isinstance(norm, nn.LayerNorm)
    images, rows, width = total.shape
    with block_kernels.device_guard(total):
        block_kernels.norm_back_kernel[(rows, images)](
            total,
            gradient,
            x,
            norm.weight,
            norm.eps,
            width,
            rows,
            OWN=int(len(x) > 1),
            BLOCK=1 << (width - 1).bit_length(),
            num_warps=2,
        )
