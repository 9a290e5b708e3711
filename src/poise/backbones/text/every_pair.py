"""Text forward pass for towers without causal attention: each (prompt, class) pair is encoded in full."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from poise.errors import InvalidOptionError
from poise.types import ClassTokens, Prompt

_PAIRS = 256  # (prompt, class) pairs per call of the tower


class EveryPair:
    """Encode label sets under soft prompts with any text tower that accepts token embeddings."""

    def __init__(self, table: nn.Embedding, run: Callable[[Tensor, Tensor], Tensor]) -> None:
        """``run`` maps token embeddings [N, L, E] (without positions) and token ids [N, L] to features [N, D]."""
        self.table = table
        self.run = run

    def __call__(self, classes: ClassTokens, prompt: Prompt) -> Tensor:
        """Return unnormalised features [B, C, D], differentiable with respect to the prompt."""
        if prompt.text_layers is not None:
            raise InvalidOptionError("Deep text prompts need a causal text tower.", hint="Use a CLIP model.")
        step = max(1, _PAIRS // len(prompt))
        spans = [(start, min(start + step, len(classes))) for start in range(0, len(classes), step)]
        return torch.cat([self._encode(classes, prompt, *span) for span in spans], 1)

    def pullback_at(self, classes: ClassTokens, prompt: Prompt, unit: Callable[[Tensor], Tensor]) -> None:
        """Return None: autograd is used."""

    def _encode(self, classes: ClassTokens, prompt: Prompt, start: int, stop: int) -> Tensor:
        part = classes.rows(start, stop)
        count, length = part.ids.shape
        device = self.table.weight.device
        context = prompt.context.to(self.table.weight.dtype)
        context = context[:, start:stop] if context.dim() == 4 else context[:, None].expand(-1, count, -1, -1)
        ids = part.ids.to(device)
        context_index = length + torch.arange(part.slots.shape[1]).expand_as(part.slots)  # [c, M]; M may be 0
        sources = torch.arange(length).repeat(count, 1).scatter(1, part.slots, context_index)  # [c, L]
        pool = torch.cat([self.table(ids).expand(len(prompt), -1, -1, -1), context], 2)  # [B, c, L + M, E]
        flat = (sources + torch.arange(count)[:, None] * pool.shape[2]).flatten().to(device)
        vectors = pool.flatten(1, 2).index_select(1, flat).unflatten(1, (count, length))  # [B, c, L, E]
        pair_ids = ids.expand(len(prompt), -1, -1).flatten(0, 1)
        return self.run(vectors.flatten(0, 1), pair_ids).unflatten(0, (len(prompt), count))
