"""PromptAlign's term: the views' token statistics are pulled to those of a source dataset (Abdul Samadh et al., 2023).

For each of the image tower's first layers, mean and variance of every token over the chosen views are compared with
stored ones: sum over layers of ½ mean|μ - μ̂| + ½ mean|σ² - σ̂²|. Published: layers 0 and 1, a weight of 100 / 3.
States are what a layer's block reads, with that layer's prompts in place; the views are those of the target.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from poise.errors import InvalidOptionError
from poise.objectives.targets import chosen_views
from poise.types import Outputs

WEIGHT = 100 / 3


@dataclass(frozen=True, eq=False)
class Alignment:
    """Zero when the chosen views' tokens have the source's means and variances."""

    mean: Tensor  # [J, T, W]
    variance: Tensor  # [J, T, W]
    selection: float = 0.1

    def __call__(self, out: Outputs) -> Tensor:
        """[B]."""
        if out.tokens is None or out.tokens.shape[2:] != self.mean.shape:
            given = None if out.tokens is None else list(out.tokens.shape[2:])
            raise InvalidOptionError(
                f"Token states (layers, tokens, width) are {given}, the statistics are {list(self.mean.shape)}.",
                hint="Compute the statistics with the same model and prompt: `poise fit stats`.",
            )
        index = chosen_views(out, self.selection)  # [B, K]
        tokens = out.tokens[torch.arange(len(index), device=index.device)[:, None], index]  # [B, K, J, T, W]
        mean = tokens.mean(1)
        variance = (tokens - mean[:, None]).square().mean(1)
        apart = (mean - self.mean.to(mean)).abs() + (variance - self.variance.to(mean)).abs()
        return 0.5 * apart.mean((2, 3)).sum(1)
