"""An online memory of prompts, and which of them an image uses (DynaPrompt, Xiao et al., 2025).

An image's candidates are judged by two numbers: the entropy of their predictions, averaged over the views (low means
certain), and the difference between the plain view's top score and the other views' (high means that the prediction
depends on the object).
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from poise.errors import InvalidOptionError


class PromptMemory:
    """A fixed number of slots, in the order of their last use. Unused slots contain the init.

    A memory of another kind overrides `fresh` (which prompt is replaced) or `finish` (what a use changes), and is
    passed to `DynaPrompt` or `StreamTuner` as ``memory``; `poise.testing.check_memory` checks it.

    Args:
        init: the initial value of every slot [M, E].
        size: the number of slots.
    """

    ordered = True  # the stream's order matters, so a stream is never split

    def __init__(self, init: Tensor, size: int) -> None:
        if size < 1:
            raise InvalidOptionError(f"The memory's size is {size}.", hint="It must be 1 or more.")
        self.init = init  # [M, E]
        self.values = init.repeat(size, 1, 1)  # [size, M, E]
        self.order = list(range(size))  # least recently used first
        self.uses = [0] * size

    def used(self) -> list[int]:
        """Return the slots with a tuned prompt, least recently used first."""
        return [slot for slot in self.order if self.uses[slot]]

    def fresh(self) -> int:
        """Return a slot with the init: an unused one, or the least recently used one, whose prompt is replaced."""
        for slot in self.order:
            if not self.uses[slot]:
                return slot
        slot = self.order[0]
        self.values = self.values.clone()
        self.values[slot] = self.init
        self.uses[slot] = 0
        return slot

    def finish(self, picked: Sequence[int], values: Tensor) -> None:
        """Store what an image tuned.

        Args:
            picked: the slots that were tuned; they become the most recently used ones.
            values: the prompts [size, M, E] of all slots.
        """
        self.values = values
        for slot in picked:
            self.order.remove(slot)
            self.order.append(slot)
            self.uses[slot] += 1

    def state(self) -> tuple[Tensor, list[int], list[int]]:
        """Return the state that `reset` restores."""
        return self.values, list(self.order), list(self.uses)

    def reset(self, values: Tensor, order: Sequence[int], uses: Sequence[int]) -> None:
        """Restore a state that `state` returned.

        Args:
            values: the prompts [size, M, E].
            order: all slots, least recently used first.
            uses: how often each slot was tuned.
        """
        self.values, self.order, self.uses = values, list(order), list(uses)


def probability_difference(logits: Tensor) -> Tensor:
    """Top probability of the plain view minus the other views' mean probability of that class: [P, V, C] -> [P]."""
    probs = logits.softmax(-1)
    top, label = probs[:, 0].max(-1)  # classes that tie have one text, so each gives the same difference
    others = probs[:, 1:].gather(2, label[:, None, None].expand(-1, probs.shape[1] - 1, 1))
    return top - others.mean((1, 2)) if probs.shape[1] > 1 else torch.zeros_like(top)


def logit_difference(logits: Tensor) -> Tensor:
    """Top logit of the plain view minus the other views' mean top logit, as published: [P, V, C] -> [P]."""
    top = logits.amax(-1)
    return top[:, 0] - top[:, 1:].mean(1) if logits.shape[1] > 1 else torch.zeros_like(top[:, 0])


def pick_described(entropy: Tensor, difference: Tensor) -> list[int]:
    """Return the candidates of lower entropy and larger difference than the init, which is candidate 0.

    A candidate that equals the init must have exactly its numbers, so that neither comparison is true.
    """
    better = (entropy < entropy[0]) & (difference > difference[0])
    return [int(index) for index in better.nonzero()[:, 0]]


def pick_as_published(entropy: Tensor, difference: Tensor, fresh: int) -> list[int]:
    """Return the slots that the published code picks; slot ``fresh`` contains the init.

    That code cuts both lists at the rank of ``fresh`` in the entropies, and uses the common slots' numbers once more as
    positions in the list of entropies. ``fresh`` comes last and may occur twice; ties go to the lower slot.
    """
    by_entropy = torch.argsort(entropy, descending=True, stable=True).tolist()
    by_difference = torch.argsort(difference, descending=True, stable=True).tolist()
    rank = by_entropy.index(fresh)
    certain = by_entropy[min(rank + 1, len(by_entropy) - 1) :]
    both = sorted(set(certain) & set(by_difference[:rank]))
    return [*(by_entropy[slot] for slot in both), fresh]
