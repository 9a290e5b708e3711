"""ZERO: the confident views vote (Farina et al., 2024).

The int(V γ) views of least entropy are kept, γ = 0.3, and each has one vote for its label. If labels tie, the other
views are asked in the order of their entropy: the first whose label is tied gets one more vote. If there is none, the
tied label with the largest logit in the first of the other views gets it; without other views, the first tied label
does. The answer is each label's share of the votes. Classes with equal logits share a vote, but not the deciding one.

The published code differs: it runs in float16 and weighs labels by softmax(cosine / eps), with eps = 2^-10 there, which
``temperature`` = 2^-10 reproduces up to rounding. Its last rule for ties reads the wrong labels, and a view whose
probabilities underflow gets no vote; neither is reproduced.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from poise.errors import InvalidOptionError
from poise.objectives import Target, view_entropy
from poise.rules.rule import Gives, LogitHead, Rule, RuleAnswer, rules
from poise.types import Outputs

_KEPT = Target(selection=0.3)


@rules.add("zero")
@dataclass(frozen=True)
class ConfidentVotes(Rule):
    """The share of the confident views' votes.

    Args:
        target: chooses the views.
        temperature: None for whole votes, or the temperature of the softmax of cosines that divides a vote.
    """

    gives: ClassVar[Gives] = Gives.PROBABILITIES

    target: Target = _KEPT
    temperature: float | None = None

    def __post_init__(self) -> None:
        if self.temperature is not None and not self.temperature > 0:
            raise InvalidOptionError(f"temperature is {self.temperature}.", hint="It must be above 0, or None.")

    def __call__(self, out: Outputs, head: LogitHead) -> RuleAnswer:
        """Return the logarithms of the shares [B, C]; they are minus infinity for labels without votes."""
        votes = self.votes(out, head)
        return RuleAnswer((votes / votes.sum(-1, keepdim=True)).log())

    def votes(self, out: Outputs, head: LogitHead) -> Tensor:
        """Return the votes [B, C]."""
        order = Target(selection=1.0, include_plain=self.target.include_plain).lowest(view_entropy(out.logits))
        kept = self.target.views(out)
        others = order[:, kept.shape[1] :]
        logits = _rows(out.logits, kept)
        if self.temperature is None:
            votes = _whole_votes(logits).sum(1)
        else:
            votes = (logits / (head.scale * self.temperature)).softmax(-1).sum(1)
        return votes + _deciding(votes, _rows(out.logits, others))


def _rows(logits: Tensor, views: Tensor) -> Tensor:
    """The logits [B, K, C] of views [B, K]."""
    return logits.gather(1, views[..., None].expand(-1, -1, logits.shape[-1]))


def _whole_votes(logits: Tensor) -> Tensor:
    """One vote per view, for the largest of its logits [..., C]; equal ones share it."""
    largest = (logits == logits.amax(-1, keepdim=True)).to(logits.dtype)
    return largest / largest.sum(-1, keepdim=True)


def _deciding(votes: Tensor, logits: Tensor) -> Tensor:
    """The vote [B, C] that decides between tied labels, given the logits [B, K, C] of the other views in order."""
    tied = votes == votes.amax(-1, keepdim=True)  # [B, C]
    scores = tied.to(votes.dtype)
    if logits.shape[1]:
        asked = ((_whole_votes(logits) > 0) & tied[:, None]).any(-1)  # [B, K]: which views vote for a tied label
        first = asked.to(torch.int8).argmax(-1)[:, None]  # the first view if there is none
        scores = _rows(logits, first)[:, 0].masked_fill(~tied, -torch.inf)
    decided = torch.zeros_like(votes).scatter(1, scores.argmax(-1, keepdim=True), 1.0)
    return decided * (tied.sum(-1, keepdim=True) > 1)
