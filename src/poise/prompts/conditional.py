"""CoCoOp's context, which depends on the image: context(x) = context + W₂ relu(W₁ f(x) + b₁) + b₂."""

from __future__ import annotations

from dataclasses import dataclass, field

from torch import Tensor
from torch.nn.functional import linear

from poise.errors import InvalidCheckpointError
from poise.prompts.files import StoredPrompt
from poise.types import Prompt

PARTS = ("context", "weight1", "bias1", "weight2", "bias2")


@dataclass(frozen=True)
class Conditional:
    """A context and the network that computes an offset to it for each image."""

    context: Tensor  # [M, E]
    weight1: Tensor  # [D / 16, D]
    bias1: Tensor  # [D / 16]
    weight2: Tensor  # [E, D / 16]
    bias2: Tensor  # [E]
    feature_norm: float = field(default=1.0, kw_only=True)  # factor on the features before the network

    @classmethod
    def of(cls, stored: StoredPrompt, like: Tensor) -> Conditional:
        """Create it from a stored prompt, with the device and dtype of ``like``."""
        missing = [name for name in PARTS if name not in stored.tensors]
        if missing:
            raise InvalidCheckpointError(f"The prompt has no {', '.join(missing)}.", hint="It is not a CoCoOp prompt.")
        return cls(*(stored.tensors[name].to(like) for name in PARTS))

    def prompt(self, features: Tensor) -> Prompt:
        """Return one context per image, [B, M, E], for the unit features [B, D] of the plain views."""
        expected, width = self.weight1.shape[1], features.shape[-1]
        if expected != width:
            raise InvalidCheckpointError(
                f"The prompt's network reads features of width {expected}, the model's have {width}.",
                hint="Fit the prompt on this model.",
            )
        hidden = linear(self.feature_norm * features, self.weight1, self.bias1).relu()
        return Prompt(self.context + linear(hidden, self.weight2, self.bias2)[:, None])
