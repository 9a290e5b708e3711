"""From outputs to an answer, the same for every way of tuning."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace

import torch
from torch import Tensor

from poise.encoding.class_texts import joined
from poise.methods import Method
from poise.posthoc import Answered
from poise.types import Adapted, Outputs, Prompt


def _same(rows: Tensor) -> Tensor:
    return rows


@dataclass(frozen=True)
class Solution:
    """What tuning, or a rule, came to for B images; methods that differ in post-hoc steps alone share it."""

    out: Outputs  # outputs under the tuned prompts, n rows; ``per_image`` makes [B, ...] of [n, ...]
    untuned: Outputs  # outputs under the init, B rows
    prompt: Prompt  # the tuned prompts [B, ...]
    losses: Tensor  # the loss at each step [B, steps]
    fallback: Tensor  # the images [B] that the init answers
    per_image: Callable[[Tensor], Tensor] = _same  # averages over the prompts that one image tuned
    logits: Tensor | None = None  # the answer [B, C], where it is not that of a view

    def answered(self) -> Answered:
        """Return what post-hoc steps read."""
        logits = self.per_image(self.out.logits) if self.logits is None else self.logits[:, None]
        return Answered(logits, self.untuned.logits, self.per_image(self.out.text_features))


def make_answer(method: Method, solution: Solution) -> Adapted:
    """Return the answers for B images: the solution's, after the method's post-hoc steps."""
    target, reference, out, answered = method.target(), solution.untuned.logits, solution.out, solution.answered()
    for step in method.make_posthoc():
        logits = torch.cat([step(answered)[:, None], answered.logits[:, 1:]], 1)
        answered = replace(answered, logits=logits)
    logits = answered.logits[:, 0]
    return Adapted(
        logits=logits,
        probs=logits.softmax(-1),
        init_probs=reference[:, 0].softmax(-1),
        target_probs=solution.per_image(target.log_probs(out).exp()),
        confidences=reference.softmax(-1).amax(-1),
        temperatures=target.temperatures(reference),
        view_labels=solution.per_image(out.logits).argmax(-1),
        selected=target.views(out)[: len(reference)],  # rows of one image choose the same views
        losses=solution.losses,
        fallback=solution.fallback,
        prompt=solution.prompt,
        text_features=answered.text_features,
    )


def init_solution(untuned: Outputs, init: Prompt, *, failed_steps: int | None = None) -> Solution:
    """Return the init's answer: nothing was tuned, or nothing could be in so many steps."""
    count = len(untuned.logits)
    prompt = init.map(lambda part: part.expand(count, *part.shape[1:]))
    losses = untuned.logits.new_full((count, failed_steps or 0), torch.nan)
    fallback = torch.full_like(untuned.logits[:, 0, 0], failed_steps is not None, dtype=torch.bool)
    return Solution(untuned, untuned, prompt, losses, fallback)


def stacked(parts: Sequence[Adapted]) -> Adapted:
    """Return one method's answers for several groups of images as one."""
    if len(parts) == 1:
        return parts[0]
    names = [field.name for field in fields(Adapted) if field.name != "prompt"]
    tensors = {name: torch.cat([getattr(part, name) for part in parts]) for name in names}
    return Adapted(prompt=joined([part.prompt for part in parts]), **tensors)
