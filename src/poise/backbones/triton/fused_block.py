"""Transformer blocks in half precision on CUDA with as few passes over memory as can be; no gradients.

What a block adds to its rows is summed inside the matrix product that makes it. That leaves the product's bias, which
is the same for all rows: biases are summed apart, and the next norm's kernel adds them while it reads.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from poise.backbones.block import Block, Map, Mlp
from poise.backbones.triton import block_kernels as kernels

_HALF = (torch.float16, torch.bfloat16)
_GELU = ("GELU", "GELUActivation")  # by name: libraries have classes of their own for the same function
_QUICK_GELU = ("QuickGELU", "QuickGELUActivation")
_ELEMENTS = 2048  # of one program


def usable(blocks: Sequence[Block], x: Tensor) -> bool:
    """Whether these blocks can take ``x`` the fused way."""
    wanted = x.dtype in _HALF and not torch.is_grad_enabled() and all(map(is_plain, blocks))
    return wanted and bool(kernels.serve(x))


def is_plain(block: Block) -> bool:
    """Whether the block is made of layer norms, linear maps and (quick) GELU alone."""
    linear = isinstance(block.out, nn.Linear) and block.scale1 is None and block.scale2 is None
    norms = _is_norm(block.norm1) and _is_norm(block.norm2)
    return linear and norms and isinstance(block.mlp, Mlp) and kind_of(block.mlp) is not None


def kind_of(mlp: Mlp) -> int | None:
    """The activation's number in `poise.backbones.triton.block_kernels`; None for one that has none."""
    name, exact = type(mlp.activation).__name__, getattr(mlp.activation, "approximate", "none") == "none"
    return kernels.GELU if name in _GELU and exact else kernels.QUICK_GELU if name in _QUICK_GELU else None


class ResidualStream:
    """The rows [..., E] of a transformer while they pass through its blocks. They are changed in place."""

    def __init__(self, x: Tensor) -> None:
        self._x = x.contiguous()
        self._bias = torch.zeros(x.shape[-1], dtype=torch.float32, device=x.device)

    def normed(self, norm: Map) -> Tensor:
        """The norm of all rows."""
        return shifted_norm(self._x, self._bias[None], norm, torch.empty_like(self._x))

    def add(self, change: Tensor, linear: Map) -> None:
        """Add ``linear(change)``."""
        assert isinstance(linear, nn.Linear)
        self._x.flatten(0, -2).addmm_(change.flatten(0, -2), linear.weight.t())
        if linear.bias is not None:
            self._bias = self._bias + linear.bias

    def add_mlp(self, block: Block) -> None:
        """Add what the block's MLP makes of the rows."""
        assert isinstance(block.mlp, Mlp)
        self.add(_activated(block.mlp.first(self.normed(block.norm2)), kind_of(block.mlp)), block.mlp.last)

    def value(self, *index: slice) -> Tensor:
        """The rows, or some of them, with all that was added."""
        picked = self._x[index]
        return picked + self._bias.to(picked.dtype)


def shifted_norm(x: Tensor, shift: Tensor, norm: Map, out: Tensor, *, free: int = 0) -> Tensor:
    """Layer norm of ``x + shift`` [..., P, E] and [P, E], into ``out`` after ``free`` rows of each group of P."""
    assert isinstance(norm, nn.LayerNorm)
    width = x.shape[-1]
    with kernels.on(x):
        kernels.norm_kernel[(x.numel() // width,)](
            x, shift.contiguous(), norm.weight, norm.bias, out, norm.eps, width, len(shift),
            FREE=free, BLOCK=1 << (width - 1).bit_length(), num_warps=4,
        )  # fmt: skip
    return out


def _activated(hidden: Tensor, kind: int | None) -> Tensor:
    """The activation, in place."""
    count = hidden.numel()
    with kernels.on(hidden):
        kernels.activation_kernel[(-(-count // _ELEMENTS),)](
            hidden, hidden, count, KIND=kind, BLOCK=_ELEMENTS, num_warps=4
        )
    return hidden


def _is_norm(norm: Map) -> bool:
    return isinstance(norm, nn.LayerNorm) and norm.weight is not None and norm.bias is not None
