"""SoC's regulariser: a Huber loss of the cosines between class texts (Fillioux et al., 2026).

The mean over pairs i < j of h(t_i · t_j), with h(s) = s² / 2 up to δ and δ (s - δ / 2) above it. The published weight
and δ were not available when this was written: both are parameters, and their defaults are not the paper's.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from poise.errors import InvalidOptionError
from poise.objectives.base import objectives
from poise.types import Objective, Outputs


@objectives.add("soc")
@dataclass(frozen=True)
class HuberOrthogonality(Objective):
    """The mean Huber loss of the cosines between class texts.

    Args:
        delta: the cosine above which the loss grows linearly.
    """

    text_only: ClassVar[bool] = True

    delta: float = 0.5

    def __post_init__(self) -> None:
        if not self.delta > 0:
            raise InvalidOptionError(f"delta is {self.delta}.", hint="It must be above 0.")

    def __call__(self, out: Outputs) -> Tensor:
        """Return the mean over pairs [B]; 0 for one class."""
        texts, count = out.text_features, out.text_features.shape[1]
        own = torch.eye(count, dtype=torch.bool, device=texts.device)
        cosines = (texts @ texts.mT).masked_fill(own, 0.0)
        linear = self.delta * (cosines - self.delta / 2)
        loss = torch.where(cosines <= self.delta, cosines.square() / 2, linear)
        return loss.sum((1, 2)) / max(1, count * (count - 1))
