"""The target p_aug: which views enter it, and how their predictions are sharpened.

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


def view_entropy(logits: Tensor) -> Tensor:
    """Return the entropy of each view's prediction: [..., C] -> [...]."""
    log_probs = logits.log_softmax(-1)
    return -(log_probs * log_probs.exp()).sum(-1)


def select_views(logits: Tensor, fraction: float) -> Tensor:
    """Return the views of lowest entropy [B, K], lowest first.

    Args:
        logits: of all views [B, V, C].
        fraction: K is int(V * fraction), at least 1.
    """
    return Target(selection=fraction).lowest(view_entropy(logits))


@dataclass(frozen=True, kw_only=True)
class ConfidenceTemperature:
    """A temperature that falls linearly with a view's confidence: certain predictions are sharpened, others softened.

    Args:
        t_min: the temperature at confidence 1.
        t_max: the temperature at confidence 0.
        detach: treat temperatures as constants in the gradient. The paper doesn't say; by default they are not.
    """

    t_min: float = 0.1
    t_max: float = 10.0
    detach: bool = False

    def __post_init__(self) -> None:
        if not 0 < self.t_min <= self.t_max:
            raise InvalidOptionError(
                f"t_min is {self.t_min} and t_max is {self.t_max}.", hint="They must satisfy 0 < t_min <= t_max."
            )

    def __call__(self, logits: Tensor) -> Tensor:
        """Return the temperatures [...] of logits [..., C]."""
        confidence = logits.softmax(-1).amax(-1)
        temperature = self.t_max - (self.t_max - self.t_min) * confidence
        return temperature.detach() if self.detach else temperature


@dataclass(frozen=True, kw_only=True)
class Target:
    """How p_aug is made of the views.

    Args:
        selection: the fraction of views in it; 1.0 uses all, the paper's formula read literally.
        include_plain: whether the plain view may be among them; the paper's N counts augmented views.
        temperature: the temperature of each view; 1 by default.
    """

    selection: float = 0.1
    include_plain: bool = True
    temperature: ConfidenceTemperature | None = None

    def __post_init__(self) -> None:
        if not 0 < self.selection <= 1:
            raise InvalidOptionError(
                f"selection is {self.selection}.", hint="It is a fraction of the views, above 0 and at most 1."
            )

    def temperatures(self, logits: Tensor) -> Tensor:
        """Return what each view's logits [B, V, C] are divided by: [B, V]."""
        return torch.ones_like(logits[..., 0]) if self.temperature is None else self.temperature(logits)

    def views(self, out: Outputs) -> Tensor:
        """Return the views [B, K] in the target: by entropy under the init, unless ``out`` has a ranking.

        They are chosen under the init, so they are the same in all steps.
        """
        return self.lowest(view_entropy(out.reference_logits) if out.ranking is None else out.ranking)

    def lowest(self, scores: Tensor) -> Tensor:
        """Return the views [B, K] with the lowest scores [B, V], lowest first."""
        first = 0 if self.include_plain else 1
        count = scores.shape[1] - first
        if count < 1:
            raise InvalidOptionError(
                "There is the plain view alone, and include_plain is False.", hint="Use 2 views or more."
            )
        # Ties go to the earlier view. Copies of one view tie in exact arithmetic and may differ in the last bits;
        # whichever of them is selected, p_aug is the same, so no answer depends on it.
        order = torch.argsort(scores[:, first:], dim=1, stable=True)
        return order[:, : max(1, int(count * self.selection))] + first

    def logits(self, out: Outputs) -> Tensor:
        """Return the logits [B, K, C] of the views in the target."""
        return out.logits.gather(1, self.views(out)[..., None].expand(-1, -1, out.logits.shape[-1]))

    def log_probs(self, out: Outputs) -> Tensor:
        """Return the logarithm of p_aug [B, C]."""
        logits = self.logits(out)
        if self.temperature is not None:
            logits = logits / self.temperature(logits)[..., None]
        log_mean = logits.log_softmax(-1).logsumexp(1) - math.log(logits.shape[1])
        return log_mean.clamp(min=torch.finfo(log_mean.dtype).min)  # so that 0 · log 0 is 0 and never NaN


DEFAULT = Target()  # immutable, so one can serve as every objective's default
