"""The registry of objectives, and their weighted sum."""

from __future__ import annotations

from dataclasses import dataclass
from functools import reduce

import torch
from torch import Tensor

from poise.registry import Makers
from poise.types import Objective, Outputs

objectives = Makers[Objective]("objective", Objective)


@dataclass(frozen=True)
class Sum(Objective):
    """A weighted sum of objectives."""

    terms: tuple[tuple[float, Objective], ...]

    @property
    def token_layers(self) -> int:
        """The largest number of any term."""
        return max((term.token_layers for _, term in self.terms), default=0)

    def __call__(self, out: Outputs) -> Tensor:
        """Return the weighted sum of each image [B]."""
        return reduce(torch.add, [weight * term(out) for weight, term in self.terms])
