"""ZS-Norm: the entropy of logits that are rescaled to the range of the zero-shot ones (Murugesan et al., 2024).

Each view's logits become (o - min o) / (max o - min o) * (hi - lo) + lo, with lo and hi as in `penalty`. The published
code fixes lo and hi in the first step and raises an error in a second one; here, "as-published" takes them anew.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from poise.objectives.base import objectives
from poise.objectives.losses import Entropy
from poise.objectives.penalty import check_reference, zero_shot_range
from poise.objectives.targets import DEFAULT, Target
from poise.types import Objective, Outputs


@objectives.add("zs-norm")
@dataclass(frozen=True)
class RangeEntropy(Objective):
    """The target's entropy after all views' logits were rescaled to the zero-shot range.

    Args:
        target: chooses the views.
        reference: whose range: "plain" (the plain view under the initial prompt) or "as-published".
    """

    target: Target = DEFAULT
    reference: str = "plain"

    def __post_init__(self) -> None:
        check_reference(self.reference)

    def __call__(self, out: Outputs) -> Tensor:
        """Return the entropy in nats [B]."""
        low, high = zero_shot_range(out, self.target, self.reference)
        least, most = out.logits.amin(-1, keepdim=True), out.logits.amax(-1, keepdim=True)
        spread = torch.where(most == least, torch.ones_like(most), most - least)
        scaled = (out.logits - least) / spread * (high - low) + low
        return Entropy(self.target)(replace(out, logits=scaled))
