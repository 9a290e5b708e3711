"""From outputs to an answer, the same for every way of tuning."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import fields, replace

import torch
from torch import Tensor

from poise.methods import Method
from poise.types import Adapted, Outputs, Prompt


def make_answer(
    method: Method,
    out: Outputs,
    untuned: Outputs,
    prompt: Prompt,
    losses: Tensor,
    per_image: Callable[[Tensor], Tensor] = lambda rows: rows,
) -> Adapted:
    """B images' answers.

    Args:
        method: whose target is reported.
        out: all that is known under the tuned prompts, n rows; ``per_image`` makes [B, ...] of [n, ...].
        untuned: the same under the init, B rows.
        prompt: the tuned prompts [B, ...].
        losses: of each step [B, steps].
        per_image: averages over the prompts that one image tuned.
    """
    target, reference = method.target(), untuned.logits
    logits = per_image(out.logits[:, 0])
    return Adapted(
        logits=logits,
        probs=logits.softmax(-1),
        init_probs=reference[:, 0].softmax(-1),
        target_probs=per_image(target.log_probs(out).exp()),
        confidences=reference.softmax(-1).amax(-1),
        temperatures=target.temperatures(reference),
        selected=target.views(out)[: len(reference)],  # rows of one image choose the same views
        losses=losses,
        fallback=torch.zeros(len(reference), dtype=torch.bool, device=reference.device),
        prompt=prompt,
        text_features=per_image(out.text_features),
    )


def init_answer(method: Method, untuned: Outputs, init: Prompt, *, failed: bool = False) -> Adapted:
    """The init's answer: nothing was tuned, or nothing could be (``failed``)."""
    count = len(untuned.logits)
    prompt = init.map(lambda part: part.expand(count, *part.shape[1:]))
    losses = untuned.logits.new_full((count, method.steps if failed else 0), torch.nan)
    answer = make_answer(method, untuned, untuned, prompt, losses)
    return replace(answer, fallback=~answer.fallback) if failed else answer


def fall_back(bad: Tensor, init: Adapted, tuned: Adapted) -> Adapted:
    """The tuned answers, with the init's for the images marked in ``bad`` [B]."""

    def where(one: Tensor, other: Tensor) -> Tensor:
        return torch.where(bad.reshape(-1, *[1] * (other.ndim - 1)), one, other)

    names = ("logits", "probs", "target_probs", "selected", "text_features")
    kept = {name: where(getattr(init, name), getattr(tuned, name)) for name in names}
    parts = init.prompt.parts()
    prompt = Prompt(**{name: where(parts[name], part) for name, part in tuned.prompt.parts().items()})
    return replace(tuned, **kept, prompt=prompt, fallback=bad)


def stacked(parts: Sequence[Adapted]) -> Adapted:
    """One method's answers for several groups of images, as one."""
    if len(parts) == 1:
        return parts[0]
    names = [entry.name for entry in fields(Adapted) if entry.name != "prompt"]
    joint = {name: torch.cat([getattr(part, name) for part in parts]) for name in names}
    prompts = [part.prompt.parts() for part in parts]
    return Adapted(prompt=Prompt(**{name: torch.cat([each[name] for each in prompts]) for name in prompts[0]}), **joint)
