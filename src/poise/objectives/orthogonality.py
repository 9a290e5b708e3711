"""O-TPT's regulariser: make the class texts orthogonal (Sharifdeen et al., 2025).

The published code reflects each row of T Tᵀ by a Householder transform and measures its distance to a unit vector,
with [C, C, C] tensors. For unit features that equals mean_i(‖row_i(T Tᵀ)‖₂) - 1, in value and gradient.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from poise.objectives.base import objectives
from poise.types import Objective, Outputs


@objectives.add("orthogonality")
@dataclass(frozen=True)
class Orthogonality(Objective):
    """The mean norm of the rows of the texts' cosine matrix, minus 1: zero if all texts are orthogonal."""

    text_only: ClassVar[bool] = True

    def __call__(self, out: Outputs) -> Tensor:
        """Return the mean norm minus 1 [B]."""
        cosines = out.text_features @ out.text_features.mT  # [B, C, C]
        return cosines.norm(dim=-1).mean(-1) - 1
