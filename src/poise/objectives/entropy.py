"""H(p_aug): the objective of test-time prompt tuning (the paper, equation 1)."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from poise.objectives.base import objectives
from poise.objectives.targets import DEFAULT, Target
from poise.types import Objective, Outputs


@objectives.add("entropy")
@dataclass(frozen=True)
class Entropy(Objective):
    """Entropy of the target: low when the chosen views agree and are sure."""

    target: Target = DEFAULT

    def __call__(self, out: Outputs) -> Tensor:
        """The entropy in nats [B]."""
        log_target = self.target.log_probs(out)
        return -(log_target.exp() * log_target).sum(-1)
