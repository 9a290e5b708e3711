"""C-TPT's regulariser: average text feature dispersion, ATFD (Yoon et al., 2024)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from poise.objectives.base import objectives
from poise.types import Objective, Outputs


def mean_distance_to_centroid(text_features: Tensor) -> Tensor:
    """Return the ATFD [B] of unit features [B, C, D]: the mean distance to their mean, which is not normalised."""
    centred = text_features - text_features.mean(1, keepdim=True)
    return centred.norm(dim=-1).mean(-1)


@objectives.add("dispersion")
@dataclass(frozen=True)
class Dispersion(Objective):
    """The negative dispersion: minimising it moves the class texts apart."""

    text_only: ClassVar[bool] = True

    def __call__(self, out: Outputs) -> Tensor:
        """Return minus the mean distance to the centroid [B]."""
        return -mean_distance_to_centroid(out.text_features)
