"""Transformer blocks in half precision on CUDA with few memory passes, without gradients.

The matrix product that computes a residual update also adds it to the residual stream. Its bias is the same for all
tokens, so biases are accumulated separately, and the kernel of the next layer norm adds them as it reads its input.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from poise.backbones.block import Block, Map, Mlp
from poise.backbones.triton import block_kernels

_HALF = (torch.float16, torch.bfloat16)
_GELU = ("GELU", "GELUActivation")  # matched by name, since each library defines its own class
_QUICK_GELU = ("QuickGELU", "QuickGELUActivation")
_ELEMENTS = 2048  # elements per kernel program


def usable(blocks: Sequence[Block], x: Tensor) -> bool:
    """Return whether the fused implementation supports these blocks, the dtype and device of ``x``, and grad mode."""
    supported = x.dtype in _HALF and not torch.is_grad_enabled() and all(map(is_supported, blocks))
    return supported and bool(block_kernels.supported(x))


def is_supported(block: Block) -> bool:
    """Return whether the block has only layer norms, linear layers and (quick) GELU."""
    linear = isinstance(block.out, nn.Linear) and block.scale1 is None and block.scale2 is None
    norms = _is_norm(block.norm1) and _is_norm(block.norm2)
    return linear and norms and isinstance(block.mlp, Mlp) and activation_kind(block.mlp) is not None


def activation_kind(mlp: Mlp) -> int | None:
    """Return the activation's code in `poise.backbones.triton.block_kernels`, or None if there is no kernel for it."""
    name, exact = type(mlp.activation).__name__, getattr(mlp.activation, "approximate", "none") == "none"
    return block_kernels.GELU if name in _GELU and exact else block_kernels.QUICK_GELU if name in _QUICK_GELU else None


class ResidualStream:
    """The residual stream [..., E] of a transformer, updated in place by its blocks."""

    def __init__(self, x: Tensor) -> None:
        self._x = x.contiguous()
        self._bias = torch.zeros(x.shape[-1], dtype=torch.float32, device=x.device)

    def normed(self, norm: Map) -> Tensor:
        """Return the layer norm of the stream."""
        return shifted_norm(self._x, self._bias[None], norm, torch.empty_like(self._x))

    def add(self, x: Tensor, linear: Map) -> None:
        """Add ``linear(x)`` to the stream."""
        assert isinstance(linear, nn.Linear)
        self._x.flatten(0, -2).addmm_(x.flatten(0, -2), linear.weight.t())
        if linear.bias is not None:
            self._bias = self._bias + linear.bias

    def add_mlp(self, block: Block) -> None:
        """Add the output of the block's MLP to the stream."""
        assert isinstance(block.mlp, Mlp)
        hidden = block.mlp.first(self.normed(block.norm2))
        self.add(activate(hidden, activation_kind(block.mlp)), block.mlp.last)

    def value(self, *index: slice) -> Tensor:
        """Return the stream, or the part at ``index``, including the accumulated biases."""
        part = self._x[index]
        return part + self._bias.to(part.dtype)


def shifted_norm(x: Tensor, shift: Tensor, norm: Map, out: Tensor, *, free: int = 0) -> Tensor:
    """Write the layer norm of ``x`` [..., P, E] + ``shift`` [P, E] to ``out``, skipping ``free`` rows before each P."""
    assert isinstance(norm, nn.LayerNorm)
    width = x.shape[-1]
    with block_kernels.device_guard(x):
        block_kernels.norm_kernel[(x.numel() // width,)](
            x,
            shift.contiguous(),
            norm.weight,
            norm.bias,
            out,
            norm.eps,
            width,
            len(shift),
            FREE=free,
            BLOCK=1 << (width - 1).bit_length(),
            num_warps=4,
        )
    return out


def activate(hidden: Tensor, kind: int | None) -> Tensor:
    """Apply the activation in place."""
    count = hidden.numel()
    with block_kernels.device_guard(hidden):
        block_kernels.activation_kernel[(-(-count // _ELEMENTS),)](
            hidden, hidden, count, KIND=kind, BLOCK=_ELEMENTS, num_warps=4
        )
    return hidden


def _is_norm(norm: Map) -> bool:
    return isinstance(norm, nn.LayerNorm) and norm.weight is not None and norm.bias is not None
