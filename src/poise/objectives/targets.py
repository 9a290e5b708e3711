"""The target p_aug: which views enter it, and how sharp each one is.

Confidence-aware temperature (the paper, section 5): with α_i = max_k softmax(z_i)_k,
T_i = T_max - (T_max - T_min) α_i and p_aug = mean_i softmax(z_i / T_i).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from poise.errors import InvalidOptionError
from poise.types import Outputs


def select_views(logits: Tensor, fraction: float) -> Tensor:
    """The int(V * fraction) views of lowest entropy (at least one), most certain first: [B, V, C] -> [B, K]."""
    return _lowest(view_entropy(logits), fraction)


def view_entropy(logits: Tensor) -> Tensor:
    """Entropy of each view's prediction: [..., C] -> [...]."""
    log_probs = logits.log_softmax(-1)
    return -(log_probs * log_probs.exp()).sum(-1)


def _lowest(scores: Tensor, fraction: float) -> Tensor:
    if not 0 < fraction <= 1:
        raise InvalidOptionError(
            f"selection is {fraction}.", hint="It is the fraction of views kept, above 0 and at most 1."
        )
    keep = max(1, int(scores.shape[1] * fraction))
    # Ties go to the earlier view. Copies of one view tie in exact arithmetic and may differ in the last bits; whichever
    # of them is kept, p_aug is the same, so no answer depends on it.
    return torch.argsort(scores, dim=1, stable=True)[:, :keep]


@dataclass(frozen=True, kw_only=True)
class ConfidenceTemperature:
    """A temperature that falls linearly with a view's confidence: sharp where it is sure, soft where it is not."""

    t_min: float = 0.1
    t_max: float = 10.0
    detach: bool = (
        False  # True: temperatures are constants in the gradient. The paper doesn't say; flowing is the default
    )

    def __post_init__(self) -> None:
        if not 0 < self.t_min <= self.t_max:
            raise InvalidOptionError(
                f"t_min is {self.t_min} and t_max is {self.t_max}.", hint="They must satisfy 0 < t_min <= t_max."
            )

    def __call__(self, logits: Tensor) -> Tensor:
        """Logits [..., C] -> temperatures [...]."""
        confidence = logits.softmax(-1).amax(-1)
        temperature = self.t_max - (self.t_max - self.t_min) * confidence
        return temperature.detach() if self.detach else temperature


@dataclass(frozen=True, kw_only=True)
class Target:
    """How p_aug is made of the views."""

    selection: float = 0.1  # fraction of views kept; 1.0 keeps all, the paper's formula read literally
    include_plain: bool = True  # whether the plain view is a candidate; the paper's N counts augmented views
    temperature: ConfidenceTemperature | None = None

    def temperatures(self, logits: Tensor) -> Tensor:
        """What each view's logits [B, V, C] are divided by: [B, V]."""
        if self.temperature is None:
            return torch.ones_like(logits[..., 0])
        return self.temperature(logits)

    def views(self, out: Outputs) -> Tensor:
        """The views [B, K] that enter the target: by entropy under the init, unless a ranking was given.

        They are chosen under the init, so they stay over all steps.
        """
        scores = view_entropy(out.reference_logits) if out.ranking is None else out.ranking
        if self.include_plain:
            return _lowest(scores, self.selection)
        if scores.shape[1] < 2:
            raise InvalidOptionError(
                "There is the plain view alone, and include_plain is False.", hint="Use 2 views or more."
            )
        return _lowest(scores[:, 1:], self.selection) + 1

    def log_probs(self, out: Outputs) -> Tensor:
        """Logarithm of p_aug [B, C]."""
        index = self.views(out)  # [B, K]
        logits = out.logits.gather(1, index[..., None].expand(-1, -1, out.logits.shape[-1]))  # [B, K, C]
        if self.temperature is not None:
            logits = logits / self.temperature(logits)[..., None]
        log_mean = logits.log_softmax(-1).logsumexp(1) - math.log(index.shape[1])
        return log_mean.clamp(min=torch.finfo(log_mean.dtype).min)  # so that 0 · log 0 is 0 and never NaN


DEFAULT = Target()  # immutable, so one can serve as every objective's default
