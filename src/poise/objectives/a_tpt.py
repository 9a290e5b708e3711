"""A-TPT's regulariser: the angle between each class text and the nearest other one (Ahamed et al., 2026).

A = mean_i arccos(clamp(max_{j != i} t_i · t_j, ±0.99999)). The paper maximises it. The released code does so on natural
distribution shifts (weight 10) and minimises it on fine-grained datasets (weight 80): its two scripts have opposite
signs. Texts that are equal are clamped and have no gradient.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from poise.errors import InvalidOptionError
from poise.objectives.base import objectives
from poise.types import Objective, Outputs

SIGNS = {"apart": -1.0, "together": 1.0}
_LARGEST = 0.99999  # cosine; the derivative of arccos is infinite at 1


def nearest_angle(text_features: Tensor) -> Tensor:
    """Return the mean angle [B] of unit texts [B, C, D] to the nearest other one; 0 for one class."""
    if text_features.shape[1] == 1:
        return 0 * text_features.sum((1, 2))
    own = torch.eye(text_features.shape[1], dtype=torch.bool, device=text_features.device)
    cosines = (text_features @ text_features.mT).masked_fill(own, -1.0)
    return cosines.max(-1).values.clamp(-_LARGEST, _LARGEST).arccos().mean(-1)


@objectives.add("a-tpt")
@dataclass(frozen=True)
class NearestAngle(Objective):
    """Minus the mean angle between a class text and the nearest other one, or plus.

    Args:
        sign: "apart" minimises minus the angle, as the paper describes; "together" minimises the angle, as the released
            code does on fine-grained datasets.
    """

    text_only: ClassVar[bool] = True

    sign: str = "apart"

    def __post_init__(self) -> None:
        if self.sign not in SIGNS:
            raise InvalidOptionError(f"sign={self.sign!r} is not accepted.", hint=f"Accepted: {', '.join(SIGNS)}.")

    def __call__(self, out: Outputs) -> Tensor:
        """Return the signed angle in radians [B]."""
        return SIGNS[self.sign] * nearest_angle(out.text_features)
