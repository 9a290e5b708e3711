"""CoTS: a temperature per image that gives the confident views their zero-shot confidence (Liang et al., 2026).

Ω are the int(V ρ) views, the plain one left out, with the least entropy after the method. τ minimises the mean over Ω
of (max softmax(z_n / τ) - max softmax(z0_n))², with z0 the logits under the initial prompt; the answer is
softmax(z_0 / τ). The published code takes 50 steps of an optimiser that the paper does not name. Here the loss is
minimised exactly, for τ from 0.05 to 20: the best of 64 values, equally spaced in log τ because there may be several
minima, and from there sections by the sign of the derivative. τ is 1 where that is as good.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from poise.errors import InvalidOptionError
from poise.objectives import view_entropy
from poise.posthoc.steps import PostHoc, posthoc
from poise.types import Outputs

_LOWEST, _HIGHEST, _POINTS = math.log(0.05), math.log(20.0), 64
_DIGITS = 15  # by which an interval between two of these points is narrowed
_PER_PASS, _PER_PASS_CUDA, _MAX_ELEMENTS = 16, 64, 1 << 26  # temperatures per pass, and numbers of a pass


@posthoc.add("cots")
@dataclass(frozen=True)
class ConfidenceMatching(PostHoc):
    """The answer's logits, divided by the temperature that matches the confident views' zero-shot confidence.

    Args:
        selection: the fraction of views that are matched.
    """

    reads_views: ClassVar[bool] = True
    least_views: ClassVar[int] = 2
    citation: ClassVar[str] = "Liang et al., 2026"

    selection: float = 0.1

    def __post_init__(self) -> None:
        if not 0 < self.selection <= 1:
            raise InvalidOptionError(
                f"selection is {self.selection}.", hint="It is a fraction of the views, above 0 and at most 1."
            )

    def __call__(self, out: Outputs) -> Tensor:
        """Return the scaled logits [B, C]."""
        return out.logits[:, 0] / self.match(out)[1][:, None]

    def match(self, out: Outputs) -> tuple[Tensor, Tensor]:
        """Return the confident views' logits [B, K, C] after the method, and the temperatures [B]."""
        count = out.logits.shape[1]
        if count < self.least_views:
            raise InvalidOptionError(
                "CoTS was given the plain view alone.", hint=f"Use {self.least_views} views or more."
            )
        order = torch.argsort(view_entropy(out.logits[:, 1:]), dim=1, stable=True)
        index = 1 + order[:, : max(1, min(count - 1, int(count * self.selection)))]
        index = index[..., None].expand(-1, -1, out.logits.shape[-1])
        logits, reference = (part.gather(1, index) for part in (out.logits, out.reference_logits))
        return logits, matching_temperatures(logits, top_probability(reference.double())).to(logits.dtype)


def top_probability(logits: Tensor) -> Tensor:
    """Return the largest probability [...] of logits [..., C]."""
    return 1 / (logits - logits.amax(-1, keepdim=True)).exp().sum(-1)


def matching_temperatures(logits: Tensor, confidences: Tensor) -> Tensor:
    """Return the temperatures [B], in float64, at which views' logits [B, K, C] have these confidences [B, K]."""
    below = (logits.double() - logits.double().amax(-1, keepdim=True))[:, None]  # [B, 1, K, C], at most 0
    wanted = confidences.double()[:, None]  # [B, 1, K]

    def loss(log_temperatures: Tensor) -> Tensor:  # [B or 1, n] -> [B, n]
        scaled = below * (-log_temperatures).exp()[..., None, None]
        return (top_probability(scaled) - wanted).square().mean(-1)

    def rises(log_temperatures: Tensor) -> Tensor:
        scaled = below * (-log_temperatures).exp()[..., None, None]
        weights = scaled.exp()
        confidence = 1 / weights.sum(-1)
        change = confidence.square() * (weights * scaled).sum(-1)  # derivative of the confidence
        return ((confidence - wanted) * change).mean(-1) > 0

    # Few passes with several temperatures each, because on a GPU it is the number of passes that takes time.
    points = max(1, min(_PER_PASS_CUDA if below.is_cuda else _PER_PASS, _MAX_ELEMENTS // below.numel()))
    grid = torch.linspace(_LOWEST, _HIGHEST, _POINTS, dtype=below.dtype, device=below.device)
    best = torch.cat([loss(part[None]) for part in grid.split(points)], 1).argmin(1)
    low, high = grid[(best - 1).clamp(min=0)], grid[(best + 1).clamp(max=_POINTS - 1)]
    steps = torch.linspace(0, 1, points + 2, dtype=grid.dtype, device=grid.device)
    for _ in range(math.ceil(_DIGITS * math.log(10) / math.log(points + 1))):
        between = low[:, None] + (high - low)[:, None] * steps  # [B, points + 2]
        rising = torch.nn.functional.pad(rises(between[:, 1:-1]), (0, 1), value=True)
        first = rising.to(torch.int8).argmax(1, keepdim=True)  # where the loss begins to rise
        low, high = between.gather(1, first)[:, 0], between.gather(1, first + 1)[:, 0]
    found, one = 0.5 * (low + high), torch.zeros_like(low)
    losses = loss(torch.stack([one, found], 1))
    return torch.where(losses[:, 0] <= losses[:, 1], one, found).exp()
