"""C-TPT's regulariser: keep the class texts apart (Yoon et al., 2024; average text feature dispersion, ATFD)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from poise.objectives.base import objectives
from poise.types import Objective, Outputs


def mean_distance_to_centroid(text_features: Tensor) -> Tensor:
    """ATFD of unit features [B, C, D]: mean distance to their mean, which is not normalised again. [B]."""
    centred = text_features - text_features.mean(1, keepdim=True)
    return centred.norm(dim=-1).mean(-1)


@objectives.add("dispersion")
@dataclass(frozen=True)
class Dispersion(Objective):
    """Minus the dispersion, so that minimising it spreads the texts."""

    text_only: ClassVar[bool] = True

    def __call__(self, out: Outputs) -> Tensor:
        """Minus the mean distance to the centroid [B]."""
        return -mean_distance_to_centroid(out.text_features)
