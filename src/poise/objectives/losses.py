"""Losses of the target p_aug: its entropy, and its cross-entropy and KL divergence to the plain view's prediction p.

The target is not a constant: gradients flow through p_aug as well as through p (the paper, equations 1 to 6).
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from poise.objectives.base import objectives
from poise.objectives.targets import DEFAULT, Target
from poise.types import Objective, Outputs


@objectives.add("entropy")
@dataclass(frozen=True)
class Entropy(Objective):
    """Entropy H(p_aug) of the target, as in test-time prompt tuning: low if the chosen views agree and are certain."""

    target: Target = DEFAULT

    def __call__(self, out: Outputs) -> Tensor:
        """Return the entropy in nats [B]."""
        log_target = self.target.log_probs(out)
        return -(log_target.exp() * log_target).sum(-1)


@objectives.add("cross-entropy")
@dataclass(frozen=True)
class CrossEntropy(Objective):
    """Cross-entropy H(p_aug, p) of the plain view's prediction under the target: matching without KL's entropy term."""

    target: Target = DEFAULT

    def __call__(self, out: Outputs) -> Tensor:
        """Return the cross-entropy in nats [B]."""
        return -(self.target.log_probs(out).exp() * out.logits[:, 0].log_softmax(-1)).sum(-1)


@objectives.add("divergence")
@dataclass(frozen=True)
class Divergence(Objective):
    """KL(p_aug || p) from the target to the plain view's prediction: cross-entropy minus the entropy of the target."""

    target: Target = DEFAULT

    def __call__(self, out: Outputs) -> Tensor:
        """Return the divergence in nats [B]."""
        log_target = self.target.log_probs(out)
        return (log_target.exp() * (log_target - out.logits[:, 0].log_softmax(-1))).sum(-1)
