"""SaLS: rescale an answer's logits to the range of the zero-shot logits (Murugesan et al., 2024).

out = (z - min z) / (max z - min z) * (max z0 - min z0) + min z0 per image, with z0 the plain view's logits under the
initial prompt. Equal logits have no range; the published code then divides by zero, here the answer is z0.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from poise.posthoc.steps import PostHoc, posthoc
from poise.types import Outputs


@posthoc.add("sals")
@dataclass(frozen=True)
class RangeScaling(PostHoc):
    """The answer's logits in the range of the zero-shot logits."""

    citation: ClassVar[str] = "Murugesan et al., 2024"
    dash: ClassVar[str] = "--"

    def __call__(self, out: Outputs) -> Tensor:
        """Return logits [B, C] with the smallest and largest value of the zero-shot ones."""
        logits, zero_shot = out.logits[:, 0], out.reference_logits[:, 0]
        (low, high), (low0, high0) = logits.aminmax(dim=-1, keepdim=True), zero_shot.aminmax(dim=-1, keepdim=True)
        flat = high == low
        spread = torch.where(flat, torch.ones_like(high), high - low)
        return torch.where(flat, zero_shot, (logits - low) / spread * (high0 - low0) + low0)
