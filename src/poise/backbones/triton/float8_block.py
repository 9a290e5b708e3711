"""Transformer blocks whose large matrix products are in float8, on CUDA and without gradients.

Three of a block's four products (queries, keys and values; both layers of the MLP) have inputs that a norm or an
activation writes, so that its kernel can write them in float8. The rows of both factors have one scale each. The
attention and the product after it are in bfloat16, and the residual stream keeps its own dtype.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from poise.backbones.block import Block, Map, Mlp
from poise.backbones.triton import float8_kernels
from poise.backbones.triton.block_kernels import device_guard
from poise.backbones.triton.fused_block import activation_kind, shifted_norm

_FLOAT8 = torch.float8_e4m3fn


@dataclass(frozen=True)
class Float8Rows:
    """A matrix [N, K] whose rows are ``values`` times ``scales`` [N, 1]."""

    values: Tensor
    scales: Tensor

    @classmethod
    def empty(cls, like: Tensor) -> Float8Rows:
        """Return a matrix with the rows of ``like`` [..., K], to be written by a kernel."""
        rows = like.flatten(0, -2)
        return cls(torch.empty_like(rows, dtype=_FLOAT8), rows.new_empty(len(rows), 1, dtype=torch.float32))

    @classmethod
    def of(cls, matrix: Tensor) -> Float8Rows:
        """Quantise a matrix [N, K]."""
        wide = matrix.float()
        scales = wide.abs().amax(1, keepdim=True).clamp(min=1e-12) / float8_kernels.LARGEST
        return cls((wide / scales).to(_FLOAT8), scales)

    def times(self, weight: Float8Rows, bias: Tensor | None = None) -> Tensor:
        """Return this matrix [N, K] times the transpose of ``weight`` [M, K], plus ``bias`` [M], in bfloat16."""
        return torch._scaled_mm(
            self.values,
            weight.values.t(),
            scale_a=self.scales,
            scale_b=weight.scales.t(),
            bias=bias,
            out_dtype=torch.bfloat16,
            use_fast_accum=True,
        )


@dataclass(frozen=True)
class Float8Block:
    """The weights of a block."""

    heads: int
    norm1: nn.LayerNorm
    joint: Float8Rows  # queries, keys and values
    joint_bias: Tensor | None  # bfloat16
    out: Tensor  # bfloat16
    out_bias: Tensor
    norm2: nn.LayerNorm
    first: Float8Rows
    first_bias: Tensor
    kind: int  # of the activation
    last: Float8Rows
    last_bias: Tensor

    @classmethod
    def of(cls, block: Block) -> Float8Block:
        """Quantise a block that `fused_block.is_supported` accepts."""
        mlp, out, norm1, norm2 = block.mlp, block.out, block.norm1, block.norm2
        assert isinstance(mlp, Mlp)
        assert isinstance(out, nn.Linear)
        assert isinstance(norm1, nn.LayerNorm)
        assert isinstance(norm2, nn.LayerNorm)
        kind = activation_kind(mlp)
        assert kind is not None
        bias = None if block.bias is None else block.bias.bfloat16()
        return cls(
            block.heads,
            norm1,
            Float8Rows.of(block.weight),
            bias,
            out.weight.bfloat16(),
            _bias(out),
            norm2,
            Float8Rows.of(mlp.first.weight),
            _bias(mlp.first),
            kind,
            Float8Rows.of(mlp.last.weight),
            _bias(mlp.last),
        )


class Float8Stream:
    """The residual stream [N, T, E], updated in place by blocks."""

    def __init__(self, x: Tensor) -> None:
        self._x = x.contiguous()
        self.update: tuple[Tensor, Tensor] | None = None  # that the next norm adds: rows [N T, E], and a bias [E]

    def run(self, block: Float8Block) -> None:
        """Apply a block."""
        joint = self.normed(block.norm1).times(block.joint, block.joint_bias)
        queries, keys, values = joint.unflatten(-1, (3, block.heads, -1)).unflatten(0, self._x.shape[:2]).unbind(2)
        self.update = F.linear(_attend(queries, keys, values), block.out), block.out_bias
        hidden = self.normed(block.norm2).times(block.first)
        self.update = activated(hidden, block).times(block.last), block.last_bias

    def finish(self, norm: Map) -> tuple[Tensor, Tensor]:
        """Return the stream's first tokens [N, 1, E], and the layer norm [N, T, E] of all, in its own dtype."""
        rows, bias = self.update or (torch.zeros_like(self._x), self._x.new_zeros(self._x.shape[-1]))
        x = self._x.add_(rows.view_as(self._x))
        return x[:, :1] + bias, shifted_norm(x, bias[None], norm, torch.empty_like(x))

    def normed(self, norm: nn.LayerNorm) -> Float8Rows:
        """Add what is to be added, and return the layer norm of the stream."""
        rows, bias = self.update or (self._x, norm.bias)
        out, width = Float8Rows.empty(self._x), self._x.shape[-1]
        with device_guard(self._x):
            float8_kernels.add_norm_float8_kernel[(len(out.values),)](
                self._x,
                rows,
                bias,
                norm.weight,
                norm.bias,
                out.values,
                out.scales,
                norm.eps,
                width,
                ADD=self.update is not None,
                BLOCK=1 << (width - 1).bit_length(),
                num_warps=4,
            )
        self.update = None
        return out


def _attend(queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
    """Return the heads' outputs [N T, E] of projections [N, T, H, hd]."""
    queries, keys, values = (part.transpose(1, 2) for part in (queries, keys, values))
    return F.scaled_dot_product_attention(queries, keys, values).transpose(1, 2).flatten(2).flatten(0, 1)


def activated(hidden: Tensor, block: Float8Block) -> Float8Rows:
    """Return the activation of rows [N, E] in float8."""
    out, width = Float8Rows.empty(hidden), hidden.shape[-1]
    most = 1 << ((width - 1).bit_length() - 1)  # the largest power of two below the width
    with device_guard(hidden):
        float8_kernels.activation_float8_kernel[(len(hidden),)](
            hidden,
            block.first_bias,
            out.values,
            out.scales,
            width,
            KIND=block.kind,
            BLOCK=most,
            REST=1 << (width - most - 1).bit_length(),
            num_warps=4,
        )
    return out


def _bias(linear: nn.Linear) -> Tensor:
    return linear.weight.new_zeros(len(linear.weight)) if linear.bias is None else linear.bias
