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
from poise.objectives.penalty import RangeObjective
from poise.types import Outputs


@objectives.add("zs-norm")
@dataclass(frozen=True)
class RangeEntropy(RangeObjective):
    """The target's entropy after all views' logits were rescaled to the zero-shot range."""

    def __call__(self, out: Outputs) -> Tensor:
        """Return the entropy in nats [B]."""
        low, high = self.zero_shot_range(out)
        least, most = out.logits.amin(-1, keepdim=True), out.logits.amax(-1, keepdim=True)
        spread = torch.where(most == least, torch.ones_like(most), most - least)
        scaled = (out.logits - least) / spread * (high - low) + low
        return Entropy(self.target)(replace(out, logits=scaled))
