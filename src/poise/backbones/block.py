"""One transformer block, reduced to the parts that the fast text and image forwards need."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor, nn
from torch.nn import functional as F

Map = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class Mlp:
    """Two linear maps and an activation between them."""

    first: nn.Linear
    activation: nn.Module
    last: nn.Linear

    def __call__(self, x: Tensor) -> Tensor:
        """[..., E] -> [..., E]."""
        found: Tensor = self.last(self.activation(self.first(x)))
        return found


@dataclass(frozen=True)
class Block:
    """One pre-norm transformer block: x + scale1(attention(norm1(x))), then x + scale2(mlp(norm2(x)))."""

    heads: int
    weight: Tensor  # [3E, E] of queries, keys, values
    bias: Tensor | None  # [3E]
    norm1: Map
    out: Map
    norm2: Map
    mlp: Map
    scale1: Map | None = None
    scale2: Map | None = None

    def project(self, x: Tensor, first: int, last: int) -> list[Tensor]:
        """The projections first..last-1 of (queries, keys, values), each [b, heads, T, E / heads]."""
        width = self.weight.shape[1]
        rows = slice(first * width, last * width)
        joint = F.linear(x, self.weight[rows], None if self.bias is None else self.bias[rows])
        split = joint.unflatten(-1, (last - first, self.heads, width // self.heads))  # [b, T, n, H, hd]
        return list(split.permute(2, 0, 3, 1, 4).unbind(0))

    def close(self, x: Tensor, mixed: Tensor) -> Tensor:
        """The rest of the block, given the heads' outputs ``mixed`` [B, T, E] for the rows ``x`` [b, T, E]."""
        attended = self.out(mixed)
        x = x + (attended if self.scale1 is None else self.scale1(attended))
        changed = self.mlp(self.norm2(x))
        return x + (changed if self.scale2 is None else self.scale2(changed))
