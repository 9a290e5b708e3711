"""Penalty: keep the logits within the range of the zero-shot ones (Murugesan et al., 2024).

mean relu(o - hi) + mean relu(lo - o) over the logits o of the views in the target; lo and hi are the smallest and the
largest zero-shot logit of the image. As described, these are the plain view's under the initial prompt. The published
code takes those of the surest view in the target, under the tuned prompt and with a gradient, anew in each step.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from poise.errors import InvalidOptionError
from poise.objectives.base import objectives
from poise.objectives.targets import DEFAULT, Target
from poise.types import Objective, Outputs

REFERENCES = ("plain", "as-published")


@dataclass(frozen=True)
class RangeObjective(Objective):
    """An objective that compares logits with the range of the zero-shot ones.

    Args:
        target: chooses the views.
        reference: whose range: "plain" (the plain view under the initial prompt) or "as-published".
    """

    target: Target = DEFAULT
    reference: str = "plain"

    def __post_init__(self) -> None:
        if self.reference not in REFERENCES:
            raise InvalidOptionError(
                f"reference={self.reference!r} is not accepted.", hint=f"Accepted: {', '.join(REFERENCES)}."
            )

    def zero_shot_range(self, out: Outputs) -> tuple[Tensor, Tensor]:
        """Return the smallest and the largest logit of the reference view, [B, 1, 1] each."""
        logits = out.reference_logits[:, 0] if self.reference == "plain" else self.target.logits(out)[:, 0]
        return logits.amin(-1)[:, None, None], logits.amax(-1)[:, None, None]


@objectives.add("penalty")
@dataclass(frozen=True)
class RangePenalty(RangeObjective):
    """How far the logits of the target's views are outside the zero-shot range."""

    def __call__(self, out: Outputs) -> Tensor:
        """Return the mean excess [B]."""
        low, high = self.zero_shot_range(out)
        logits = self.target.logits(out)
        return ((logits - high).relu() + (low - logits).relu()).mean((1, 2))
