"""Image prompts of MaPLe: M tokens are appended to the patches of a ViT and replaced at the input of blocks 1..J."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from poise.errors import InvalidOptionError


class PromptedViT:
    """open_clip's ViT with prompts; maps images [N, 3, S, S] and prompts [N, 1 + J, M, W] to features [N, D]."""

    def __init__(self, visual: Any) -> None:
        self.visual = visual
        self.depth = len(visual.transformer.resblocks)
        self.width = int(visual.class_embedding.shape[0])

    def with_tokens(self, images: Tensor, layers: Tensor, count: int) -> tuple[Tensor, Tensor]:
        """Return features [N, D], and the states [N, count, T, W] of all tokens at the input of blocks 0..count-1.

        The prompts of each layer [N, 1 + J, M, W] are the last of the T tokens.
        """
        if layers.shape[1] > self.depth or layers.shape[-1] != self.width:
            raise InvalidOptionError(
                f"Image prompts for {layers.shape[1]} layers of width {layers.shape[-1]} were given.",
                hint=f"This image tower has {self.depth} layers of width {self.width}.",
            )
        visual = self.visual
        x = visual.conv1(images).flatten(2).transpose(1, 2)  # [N, patches, W]
        first = visual.class_embedding.expand(len(x), 1, -1)
        x = torch.cat([first, x], 1) + visual.positional_embedding
        keep = x.shape[1]
        x = visual.ln_pre(torch.cat([x, layers[:, 0]], 1))
        states = []
        for i, block in enumerate(visual.transformer.resblocks):
            if 0 < i < layers.shape[1]:
                x = torch.cat([x[:, :keep], layers[:, i]], 1)
            if i < count:
                states.append(x)
            x = block(x)
        pooled, _ = visual._pool(x[:, :keep])
        features = pooled if visual.proj is None else pooled @ visual.proj
        return features, torch.stack(states, 1) if states else x.new_zeros(len(x), 0, *x.shape[1:])
