"""A transformer block, reduced to the parts that the fast text and image forward passes use."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor, nn
from torch.nn import functional as F

Map = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class Mlp:
    """The feed-forward part of a block: linear layer, activation, linear layer."""

    first: nn.Linear
    activation: nn.Module
    last: nn.Linear

    def __call__(self, x: Tensor) -> Tensor:
        """Apply the MLP, [..., E] -> [..., E]."""
        output: Tensor = self.last(self.activation(self.first(x)))
        return output


@dataclass(frozen=True)
class Block:
    """A pre-norm transformer block: x + scale1(attention(norm1(x))), then x + scale2(mlp(norm2(x)))."""

    heads: int
    weight: Tensor  # [3E, E]: query, key and value projections
    bias: Tensor | None  # [3E]
    norm1: Map
    out: Map
    norm2: Map
    mlp: Map
    scale1: Map | None = None
    scale2: Map | None = None

    def project(self, x: Tensor, first: int, last: int) -> list[Tensor]:
        """Return the projections first..last-1 of (queries, keys, values), each [b, heads, T, E / heads]."""
        width = self.weight.shape[1]
        rows = slice(first * width, last * width)
        joint = F.linear(x, self.weight[rows], None if self.bias is None else self.bias[rows])
        split = joint.unflatten(-1, (last - first, self.heads, width // self.heads))  # [b, T, n, H, hd]
        return list(split.permute(2, 0, 3, 1, 4).unbind(0))

    def after_attention(self, x: Tensor, heads: Tensor) -> Tensor:
        """Apply the rest of the block to the residual stream ``x`` [b, T, E], given the heads' outputs [B, T, E]."""
        attended = self.out(heads)
        x = x + (attended if self.scale1 is None else self.scale1(attended))
        update = self.mlp(self.norm2(x))
        return x + (update if self.scale2 is None else self.scale2(update))
