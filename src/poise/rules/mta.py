"""MTA: a robust mean of the views, by mean shift with an inlierness for each view (Zanella and Ben Ayed, 2024).

With views v_n, predictions P = softmax(z) and W = P Pᵀ: each view has a bandwidth h_n² = half the mean of its k =
int(0.3 (V - 1)) smallest squared distances to the others, and K(m)_n = exp(-|v_n - m|² / (2 h_n²)). From m = v_0 and
inlierness y = 1 / V, five times: y = softmax((K(m) + λq W y) / λy), repeated up to five times with K(m) fixed; then
m = unit(Σ K(m)_n y_n v_n), repeated up to five times. The answer is the logits of m.

Below 5 views there is no neighbour: such images are refused. Bandwidths are at least 1e-12, so that equal views answer
as one view; the published code divides by zero there, or by rounding noise.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from poise.errors import InvalidOptionError
from poise.rules.rule import LogitHead, Rule, RuleAnswer, rules
from poise.text import counted
from poise.types import Outputs

_ROUNDS, _REPEATS, _CHANGE = 5, 5, 1e-6
_LEAST = 1e-12  # of a squared bandwidth
_NEIGHBOURS = 0.3  # fraction of the other views that a bandwidth is made of


@rules.add("mta")
@dataclass(frozen=True)
class RobustMean(Rule):
    """The logits of the views' robust mean.

    Args:
        lambda_y: how much the views' inliernesses are pulled to the mean of all.
        lambda_q: the weight of agreement with other views' predictions.
    """

    least_views: ClassVar[int] = 5  # below, no view has a neighbour

    lambda_y: float = 0.2
    lambda_q: float = 4.0

    def __post_init__(self) -> None:
        if not self.lambda_y > 0 or self.lambda_q < 0:
            raise InvalidOptionError(
                f"lambda_y is {self.lambda_y} and lambda_q is {self.lambda_q}.",
                hint="lambda_y must be above 0, lambda_q 0 or above.",
            )

    def __call__(self, out: Outputs, head: LogitHead) -> RuleAnswer:
        """Return the logits [B, C]."""
        count = out.image_features.shape[1]
        if count < self.least_views:
            raise InvalidOptionError(
                f"MTA was given {counted(count, 'view')} per image.", hint=f"Use {self.least_views} views or more."
            )
        mode = self.modes(out.image_features.to(out.logits.dtype), out.logits.softmax(-1))
        return RuleAnswer(head.logits(mode, out.text_features)[:, 0])

    def modes(self, views: Tensor, probs: Tensor) -> Tensor:
        """Return the robust means [B, 1, D] of views [B, V, D] with predictions [B, V, C]."""
        affinity = (self.lambda_q / self.lambda_y) * (probs @ probs.mT)  # [B, V, V]
        factor = -0.5 / bandwidths(views)[:, None]  # [B, 1, V]

        def kernel(mode: Tensor) -> Tensor:  # [B, 1, D] -> [B, 1, V]
            return (_distances(mode, views).square() * factor).exp()

        def inliers(weights: Tensor) -> Tensor:
            return torch.baddbmm(density, weights, affinity).softmax(-1)  # the affinity is symmetric

        def shift(mode: Tensor) -> Tensor:
            return torch.nn.functional.normalize((kernel(mode) * inlierness) @ views, dim=-1)

        mode, inlierness = views[:, :1], torch.full_like(factor, 1 / views.shape[1])
        for _ in range(_ROUNDS):
            density = kernel(mode) / self.lambda_y
            inlierness = _settled(inliers, inlierness)
            mode = _settled(shift, mode)
        return mode


def bandwidths(views: Tensor) -> Tensor:
    """Return the squared bandwidths [B, V] of views [B, V, D]."""
    squares = _distances(views, views).square()  # [B, V, V]
    count = views.shape[1]
    others = squares.masked_fill(torch.eye(count, dtype=torch.bool, device=views.device), torch.inf)
    nearest = others.topk(int(_NEIGHBOURS * (count - 1)), dim=-1, largest=False).values
    return (0.5 * nearest.mean(-1)).clamp(min=_LEAST)


def _distances(one: Tensor, other: Tensor) -> Tensor:
    """Distances [B, n, m], by differences and not by a product: those of equal vectors are exactly 0."""
    return torch.cdist(one, other, compute_mode="donot_use_mm_for_euclid_dist")


def _settled(step: Callable[[Tensor], Tensor], value: Tensor) -> Tensor:
    """Repeat ``step`` on rows [B, 1, n], each until it changes by less than a bound. No row waits for the device."""
    done = torch.zeros_like(value[..., :1], dtype=torch.bool)
    for _ in range(_REPEATS):
        following = torch.where(done, value, step(value))
        done = (following - value).norm(dim=-1, keepdim=True) < _CHANGE  # a row that is done changes by 0
        value = following
    return value
