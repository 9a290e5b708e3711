"""From outputs to answers, the same for every way of tuning."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import fields, replace
from typing import Any

import torch
from torch import Tensor

from poise.encoding.class_texts import joined
from poise.methods import Method
from poise.types import Answer, Outputs, Prompt


def _same(rows: Tensor) -> Tensor:
    return rows


def make_answers(
    methods: Sequence[Method],
    out: Outputs,
    untuned: Outputs,
    *,
    prompt: Prompt,
    losses: Tensor,
    fallback: Tensor,
    per_image: Callable[[Tensor], Tensor] = _same,
    logits: Tensor | None = None,
) -> dict[str, Answer[Tensor]]:
    """Return the answers for B images by name, of methods that differ in post-hoc steps alone.

    Args:
        methods: at least one.
        out: the outputs under the tuned prompts, n rows.
        untuned: the outputs under the init, B rows.
        prompt: the tuned prompts [B, ...].
        losses: the loss at each step [B, steps].
        fallback: the images [B] that the init answers.
        per_image: makes [B, ...] of [n, ...]: averages over the prompts that one image tuned.
        logits: the answer [B, C] before post-hoc steps, where it is not that of the plain view.
    """
    target, reference, images = methods[0].target(), untuned.logits, len(untuned.logits)
    views = per_image(out.logits)
    before = Outputs(
        image_features=out.image_features[:images],  # rows of one image are of the same views
        text_features=per_image(out.text_features),
        logits=views if logits is None else logits[:, None],
        reference_logits=reference,
    )
    shared: dict[str, Any] = {
        "init_probs": reference[:, 0].softmax(-1),
        "target_probs": per_image(target.log_probs(out).exp()),
        "confidences": reference.softmax(-1).amax(-1),
        "temperatures": target.temperatures(reference),
        "view_labels": views.argmax(-1),
        "selected": target.views(out)[:images],  # likewise
        "losses": losses,
        "fallback": fallback,
        "prompt": prompt,
        "text_features": before.text_features,
    }
    final = {method.name: _after_posthoc(method, before) for method in methods}
    return {name: Answer(logits=rows, probs=rows.softmax(-1), **shared) for name, rows in final.items()}


def _after_posthoc(method: Method, out: Outputs) -> Tensor:
    """Return the logits [B, C] after the method's post-hoc steps, each of which reads the answer of the one before."""
    for step in method.make_posthoc():
        out = replace(out, logits=torch.cat([step(out)[:, None], out.logits[:, 1:]], 1))
    return out.logits[:, 0]


def init_answers(
    methods: Sequence[Method], untuned: Outputs, init: Prompt, *, failed_steps: int | None = None
) -> dict[str, Answer[Tensor]]:
    """Return the init's answers: nothing was tuned, or nothing could be in so many steps."""
    count = len(untuned.logits)
    losses = untuned.logits.new_full((count, failed_steps or 0), torch.nan)
    fallback = torch.full_like(untuned.logits[:, 0, 0], failed_steps is not None, dtype=torch.bool)
    return make_answers(methods, untuned, untuned, prompt=of_each(init, count), losses=losses, fallback=fallback)


def of_each(prompt: Prompt, images: int) -> Prompt:
    """Return a prompt [1 or B, ...] as one per image [B, ...]."""
    return prompt.map(lambda part: part.expand(images, *part.shape[1:]))


def stacked(parts: Sequence[Answer[Tensor]]) -> Answer[Tensor]:
    """Return one method's answers for several groups of images as one."""
    if len(parts) == 1:
        return parts[0]
    names = [field.name for field in fields(Answer) if isinstance(getattr(parts[0], field.name), Tensor)]
    tensors: dict[str, Any] = {name: _concatenated([getattr(part, name) for part in parts]) for name in names}
    return Answer(prompt=joined([part.prompt for part in parts if part.prompt is not None]), **tensors)


def _concatenated(parts: Sequence[Tensor]) -> Tensor:
    """Return ``torch.cat`` of the parts; one row that all images share, such as untuned text features, stays one."""
    first = parts[0]
    if all(part.data_ptr() == first.data_ptr() and (part.stride(0) == 0 or len(part) == 1) for part in parts):
        return first[:1].expand(sum(map(len, parts)), *first.shape[1:])
    return torch.cat(list(parts))
