"""From outputs to an answer, the same for every way of tuning."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import fields

import torch
from torch import Tensor

from poise.encoding.class_texts import joined
from poise.methods import Method
from poise.types import Adapted, Outputs, Prompt


def make_answer(
    method: Method,
    out: Outputs,
    untuned: Outputs,
    prompt: Prompt,
    losses: Tensor,
    fallback: Tensor,
    per_image: Callable[[Tensor], Tensor] = lambda rows: rows,
) -> Adapted:
    """Return the answers for B images.

    Args:
        method: the method whose target is reported.
        out: outputs under the tuned prompts, n rows; ``per_image`` makes [B, ...] of [n, ...].
        untuned: outputs under the init, B rows.
        prompt: the tuned prompts [B, ...].
        losses: the loss at each step [B, steps].
        fallback: the images [B] that the init answers.
        per_image: averages over the prompts that one image tuned.
    """
    target, reference = method.target(), untuned.logits
    views = per_image(out.logits)
    logits = views[:, 0]
    return Adapted(
        logits=logits,
        probs=logits.softmax(-1),
        init_probs=reference[:, 0].softmax(-1),
        target_probs=per_image(target.log_probs(out).exp()),
        confidences=reference.softmax(-1).amax(-1),
        temperatures=target.temperatures(reference),
        view_labels=views.argmax(-1),
        selected=target.views(out)[: len(reference)],  # rows of one image choose the same views
        losses=losses,
        fallback=fallback,
        prompt=prompt,
        text_features=per_image(out.text_features),
    )


def init_answer(method: Method, untuned: Outputs, init: Prompt, *, failed: bool = False) -> Adapted:
    """Return the init's answer: nothing was tuned, or nothing could be (``failed``)."""
    count = len(untuned.logits)
    prompt = init.map(lambda part: part.expand(count, *part.shape[1:]))
    losses = untuned.logits.new_full((count, method.steps if failed else 0), torch.nan)
    return make_answer(method, untuned, untuned, prompt, losses, losses.new_full((count,), failed, dtype=torch.bool))


def stacked(parts: Sequence[Adapted]) -> Adapted:
    """Return one method's answers for several groups of images as one."""
    if len(parts) == 1:
        return parts[0]
    names = [field.name for field in fields(Adapted) if field.name != "prompt"]
    tensors = {name: torch.cat([getattr(part, name) for part in parts]) for name in names}
    return Adapted(prompt=joined([part.prompt for part in parts]), **tensors)
