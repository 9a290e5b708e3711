"""E-CoTS: CoTS, averaged with the confident views' predictions (Liang et al., 2026).

p = α softmax(z_0 / τ) + (1 - α) mean_n softmax(z_n / τ) over CoTS's views, with its temperature τ and α the mean cosine
of two class texts after the method, at least 0.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from poise.posthoc.cots import ConfidenceMatching
from poise.posthoc.steps import posthoc
from poise.types import Outputs


@posthoc.add("e-cots")
@dataclass(frozen=True)
class AveragedMatching(ConfidenceMatching):
    """A mean of the scaled predictions of the plain view and of the confident views."""

    keeps_label: ClassVar[bool] = False
    dash: ClassVar[str] = "-."

    def __call__(self, out: Outputs) -> Tensor:
        """Return the logarithms of the probabilities [B, C]."""
        views, temperatures = self.match(out)
        share = mean_pair_cosine(out.text_features).to(views.dtype)[:, None]
        plain = (out.logits[:, 0] / temperatures[:, None]).log_softmax(-1)
        mean = (views / temperatures[:, None, None]).log_softmax(-1).logsumexp(1) - math.log(views.shape[1])
        return torch.logaddexp(share.log() + plain, (-share).log1p() + mean)


def mean_pair_cosine(text_features: Tensor) -> Tensor:
    """Return the mean cosine [B] of two different classes' texts [B, C, D], within 0 and 1; 1 for one class."""
    count = text_features.shape[1]
    if count == 1:
        return torch.ones_like(text_features[:, 0, 0])
    texts = torch.nn.functional.normalize(text_features, dim=-1)
    total = texts.sum(1).square().sum(-1) - count  # cosines of all ordered pairs
    return (total / (count * (count - 1))).clamp(0, 1)
