"""PromptAlign's term: the views' token statistics are pulled to those of a source dataset (Abdul Samadh et al., 2023).

For each of the image tower's first layers, mean and variance of every token over the chosen views are compared with
stored ones: sum over layers of ½ mean|μ - μ̂| + ½ mean|σ² - σ̂²|. Published: layers 0 and 1, a weight of 100 / 3.
States are what a layer's block reads, with that layer's prompts in place; the views are those of the target.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from poise.errors import InvalidCheckpointError, InvalidOptionError
from poise.objectives.base import objectives
from poise.objectives.targets import DEFAULT, Target
from poise.types import Objective, Outputs

WEIGHT = 100 / 3  # as published


@objectives.add("alignment")
def read_alignment(statistics: str | Path, target: Target = DEFAULT) -> Alignment:
    """The term for token statistics that `poise fit stats` wrote."""
    try:
        tensors = load_file(statistics)
        return Alignment(tensors["mean"], tensors["variance"], target)
    except (SafetensorError, OSError, KeyError) as problem:
        raise InvalidCheckpointError(
            f"'{statistics}' holds no token statistics: {problem}.", hint="Compute them with `poise fit stats`."
        ) from None


@dataclass(frozen=True, eq=False)
class Alignment(Objective):
    """Zero when the chosen views' tokens have the source's means and variances."""

    mean: Tensor  # [J, T, W]
    variance: Tensor  # [J, T, W]
    target: Target = DEFAULT  # whose views are compared

    @property
    def token_layers(self) -> int:
        """J: those that there are statistics of."""
        return int(self.mean.shape[0])

    def __call__(self, out: Outputs) -> Tensor:
        """Half the mean absolute differences, summed over layers [B]."""
        if out.tokens is None or out.tokens.shape[2:] != self.mean.shape:
            given = None if out.tokens is None else list(out.tokens.shape[2:])
            raise InvalidOptionError(
                f"Token states (layers, tokens, width) are {given}, the statistics are {list(self.mean.shape)}.",
                hint="Compute the statistics with the same model and prompt: `poise fit stats`.",
            )
        index = self.target.views(out)  # [B, K]
        tokens = out.tokens[torch.arange(len(index), device=index.device)[:, None], index]  # [B, K, J, T, W]
        mean = tokens.mean(1)
        variance = (tokens - mean[:, None]).square().mean(1)
        apart = (mean - self.mean.to(mean)).abs() + (variance - self.variance.to(mean)).abs()
        return 0.5 * apart.mean((2, 3)).sum(1)
