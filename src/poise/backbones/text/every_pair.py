"""The text forward for towers whose attention is not causal: every (prompt, class) pair goes through in full."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from poise.errors import InvalidOptionError
from poise.types import ClassTokens, Prompt

_PAIRS = 256  # (prompt, class) pairs per call of the tower


class EveryPair:
    """Text features of label sets under soft prompts, through any tower that accepts token vectors."""

    def __init__(self, table: nn.Embedding, run: Callable[[Tensor, Tensor], Tensor]) -> None:
        """``run`` maps token vectors [N, L, E] (positions not added) and ids [N, L] to features [N, D]."""
        self.table = table
        self.run = run

    def __call__(self, classes: ClassTokens, prompt: Prompt) -> Tensor:
        """Features [B, C, D], not normalised; differentiable in the prompt."""
        if prompt.text_layers is not None:
            raise InvalidOptionError("Deep text prompts need a causal text tower.", hint="Use a CLIP model.")
        step = max(1, _PAIRS // len(prompt))
        spans = [(start, min(start + step, len(classes))) for start in range(0, len(classes), step)]
        return torch.cat([self._rows(classes, prompt, *span) for span in spans], 1)

    def pullback_at(self, classes: ClassTokens, prompt: Prompt, unit: Callable[[Tensor], Tensor]) -> None:
        """Nothing is faster than autograd here."""

    def _rows(self, classes: ClassTokens, prompt: Prompt, start: int, stop: int) -> Tensor:
        part = classes.rows(start, stop)
        count, length = part.ids.shape
        device = self.table.weight.device
        context = prompt.context.to(self.table.weight.dtype)
        context = context[:, start:stop] if context.dim() == 4 else context[:, None].expand(-1, count, -1, -1)
        ids = part.ids.to(device)
        places = length + torch.arange(part.slots.shape[1]).expand_as(part.slots)  # [c, M]; M may be 0
        sources = torch.arange(length).repeat(count, 1).scatter(1, part.slots, places)  # [c, L]
        pool = torch.cat([self.table(ids).expand(len(prompt), -1, -1, -1), context], 2)  # [B, c, L + M, E]
        flat = (sources + torch.arange(count)[:, None] * pool.shape[2]).flatten().to(device)
        vectors = pool.flatten(1, 2).index_select(1, flat).unflatten(1, (count, length))  # [B, c, L, E]
        pairs = ids.expand(len(prompt), -1, -1).flatten(0, 1)
        return self.run(vectors.flatten(0, 1), pairs).unflatten(0, (len(prompt), count))
