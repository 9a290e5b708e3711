"""From a tuned forward pass to an answer, the same for every way of tuning."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields

import torch
from torch import Tensor

from poise.objectives import chosen_views
from poise.tuning.step import Recipe, joined
from poise.types import Adapted, Outputs, Prompt


def make_answer(method: Recipe, out: Outputs, prompt: Prompt, losses: Tensor, bad: Tensor) -> Adapted:
    """B images' answers, given all that is known under their tuned prompts; ``bad`` [B] marks those that fell back."""
    target, reference = method.target(), out.reference_logits
    return Adapted(
        logits=out.logits[:, 0],
        probs=out.logits[:, 0].softmax(-1),
        init_probs=reference[:, 0].softmax(-1),
        target_probs=target.log_probs(out).exp(),
        confidences=reference.softmax(-1).amax(-1),
        temperatures=target.temperatures(reference),
        selected=chosen_views(out, target.selection),
        losses=losses,
        fallback=bad,
        prompt=prompt,
        text_features=out.text_features,
    )


def untuned_answer(method: Recipe, out: Outputs, start: Prompt) -> Adapted:
    """The starting prompt's answer, where there is nothing to tune."""
    count = len(out.logits)
    prompt = start.map(lambda part: part.expand(count, *part.shape[1:]))
    nothing = torch.zeros(count, dtype=torch.bool, device=out.logits.device)
    return make_answer(method, out, prompt, out.logits.new_zeros(count, 0), nothing)


def stacked(parts: Sequence[Adapted]) -> Adapted:
    """One method's answers for several groups of images, as one."""
    joint = {
        name: torch.cat([getattr(part, name) for part in parts])
        for name in (entry.name for entry in fields(Adapted))
        if name != "prompt"
    }
    return Adapted(prompt=joined([part.prompt for part in parts]), **joint)


def start_where(bad: Tensor, start: Tensor, value: Tensor) -> Tensor:
    """``value`` [B, ...], with the starting one [B or 1, ...] for the images marked in ``bad`` [B]."""
    return torch.where(bad.reshape(-1, *[1] * (value.ndim - 1)), start, value)
