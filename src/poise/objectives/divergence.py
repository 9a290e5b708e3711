"""H(p_aug, p) and KL(p_aug ‖ p): the plain view's prediction p is pulled to the target (the paper, equations 2 to 6).

The target is not a constant: gradients flow through p_aug as well as through p.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from poise.objectives.base import objectives
from poise.objectives.targets import DEFAULT, Target
from poise.types import Objective, Outputs


@objectives.add("cross-entropy")
@dataclass(frozen=True)
class CrossEntropy(Objective):
    """Cross-entropy of the plain view's prediction under the target: matching alone, uncertainty not given back."""

    target: Target = DEFAULT

    def __call__(self, out: Outputs) -> Tensor:
        """The cross-entropy in nats [B]."""
        return -(self.target.log_probs(out).exp() * out.logits[:, 0].log_softmax(-1)).sum(-1)


@objectives.add("divergence")
@dataclass(frozen=True)
class Divergence(Objective):
    """KL divergence from the target to the plain view's prediction: cross-entropy minus the target's own entropy."""

    target: Target = DEFAULT

    def __call__(self, out: Outputs) -> Tensor:
        """The divergence in nats [B]."""
        log_target = self.target.log_probs(out)
        return (log_target.exp() * (log_target - out.logits[:, 0].log_softmax(-1))).sum(-1)
