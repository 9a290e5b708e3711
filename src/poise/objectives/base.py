"""The registry of objectives, and their weighted sum."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor

from poise.registry import Registry
from poise.types import Objective, Outputs

objectives: Registry[Callable[..., Objective]] = Registry("objective")


@dataclass(frozen=True)
class Sum(Objective):
    """A weighted sum of objectives."""

    terms: tuple[tuple[float, Objective], ...]

    @property
    def token_layers(self) -> int:
        """As many as any of its terms."""
        return max((term.token_layers for _, term in self.terms), default=0)

    def __call__(self, out: Outputs) -> Tensor:
        """The sum of each image [B]."""
        weighted = [weight * term(out) for weight, term in self.terms]
        total = weighted[0]
        for value in weighted[1:]:
            total = total + value
        return total
