"""PromptAlign's term: the distance of token statistics to those of a source dataset (Abdul Samadh et al., 2023).

For each of the image tower's first layers, the mean and variance of every token over the target's views are compared
with stored ones: sum over layers of ½ mean|μ - μ̂| + ½ mean|σ² - σ̂²|. Published: layers 0 and 1, a weight of 100 / 3.
Token states are the inputs of a layer's block, with that layer's prompts in place.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from poise.errors import InvalidCheckpointError, InvalidOptionError, reason_of
from poise.objectives.base import objectives
from poise.objectives.targets import DEFAULT, Target
from poise.types import Objective, Outputs

WEIGHT = 100 / 3  # as published


@objectives.add("alignment")
def read_alignment(statistics: str | Path, target: Target = DEFAULT) -> Alignment:
    """Return the term for a file of token statistics from `poise fit stats`."""
    try:
        tensors = load_file(statistics)
        return Alignment(tensors["mean"], tensors["variance"], target)
    except (SafetensorError, OSError, KeyError) as problem:
        raise InvalidCheckpointError(
            f"'{statistics}' has no token statistics: {reason_of(problem)}.",
            hint="Compute them with `poise fit stats`.",
        ) from None


@dataclass(frozen=True, eq=False)
class Alignment(Objective):
    """Distance of the tokens' means and variances over the target's views to those of the source."""

    mean: Tensor  # [J, T, W]
    variance: Tensor  # [J, T, W]
    target: Target = DEFAULT  # chooses the views

    @property
    def token_layers(self) -> int:
        """The number of layers J with statistics."""
        return int(self.mean.shape[0])

    def __call__(self, out: Outputs) -> Tensor:
        """Return half the mean absolute differences, summed over layers [B]."""
        if out.tokens is None or out.tokens.shape[2:] != self.mean.shape:
            shape = None if out.tokens is None else list(out.tokens.shape[2:])
            raise InvalidOptionError(
                f"Token states (layers, tokens, width) are {shape}, the statistics are {list(self.mean.shape)}.",
                hint="Compute the statistics with the same model and prompt: `poise fit stats`.",
            )
        index = self.target.views(out)  # [B, K]
        tokens = out.tokens[torch.arange(len(index), device=index.device)[:, None], index]  # [B, K, J, T, W]
        mean = tokens.mean(1)
        variance = (tokens - mean[:, None]).square().mean(1)
        distance = (mean - self.mean.to(mean)).abs() + (variance - self.variance.to(mean)).abs()
        return 0.5 * distance.mean((2, 3)).sum(1)
