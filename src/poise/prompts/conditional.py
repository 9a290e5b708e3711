"""CoCoOp's context, which follows the image: context(x) = context + W₂ relu(W₁ f(x) + b₁) + b₂."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from poise.errors import InvalidCheckpointError
from poise.prompts.files import StoredPrompt
from poise.types import Prompt

PARTS = ("context", "weight1", "bias1", "weight2", "bias2")


@dataclass(frozen=True)
class Conditional:
    """A context and the network that moves it for each image."""

    context: Tensor  # [M, E]
    weight1: Tensor  # [D / 16, D]
    bias1: Tensor  # [D / 16]
    weight2: Tensor  # [E, D / 16]
    bias2: Tensor  # [E]
    feature_norm: float = field(default=1.0, kw_only=True)

    @classmethod
    def of(cls, stored: StoredPrompt, width: int, like: Tensor, *, feature_norm: float = 1.0) -> Conditional:
        """From a file, for features of ``width``, on the device and in the dtype of ``like``."""
        missing = [name for name in PARTS if name not in stored.tensors]
        if missing:
            raise InvalidCheckpointError(f"The prompt has no {', '.join(missing)}.", hint="It is not a CoCoOp prompt.")
        given = stored.tensors["weight1"].shape[1]
        if given != width:
            raise InvalidCheckpointError(
                f"The prompt's network reads features of width {given}, the model's have {width}.",
                hint="Fit the prompt on this model.",
            )
        tensors = {name: stored.tensors[name].to(like) for name in PARTS}
        return cls(**tensors, feature_norm=feature_norm)

    def prompt(self, features: Tensor) -> Prompt:
        """Plain views' unit features [B, D] -> one context each [B, M, E]."""
        hidden = torch.nn.functional.linear(self.feature_norm * features, self.weight1, self.bias1).relu()
        return Prompt(self.context + torch.nn.functional.linear(hidden, self.weight2, self.bias2)[:, None])
