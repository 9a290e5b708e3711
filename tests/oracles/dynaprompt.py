"""DynaPrompt as a plain loop over a stream: lists of prompts, one full-length text at a time, torch's own AdamW.

Equal prompts have equal scores, exactly: each distinct one is scored and differentiated once (`once`). Ties then go to
the prompt that comes first.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import torch
from torch import Tensor

from poise.types import Outputs
from tests.oracles.objectives import entropy, softmax

T = TypeVar("T")


def run(
    stream: Tensor,
    start: Tensor,
    encode_texts: Callable[[Tensor], Tensor],
    scale: float,
    objective: Callable[[Outputs], Tensor],
    *,
    size: int,
    variant: str,
    steps: int = 1,
    lr: float = 5e-3,
) -> list[tuple[list[int], Tensor]]:
    """For each image of the stream [N, V, D]: the prompts that were tuned, and the answer's logits [C].

    "described" names prompts by their age: 0 is the first ever appended. "as-published" names them by slot.
    """
    images = described if variant == "described" else as_published
    return images(stream, start, encode_texts, scale, objective, size, steps, lr)


def scores(logits: Tensor, of_logits: bool) -> tuple[float, float]:
    """Mean entropy and mean difference of one prompt's logits [V, C]."""
    ent = sum(float(entropy(softmax(view))) for view in logits) / len(logits)
    if of_logits:
        differences = [float(logits[0].max() - view.max()) for view in logits[1:]]
    else:
        label = int(logits[0].argmax())
        differences = [float(softmax(logits[0])[label] - softmax(view)[label]) for view in logits[1:]]
    return ent, sum(differences) / len(differences)


def once(compute: Callable[[Tensor], T]) -> Callable[[Tensor], T]:
    """``compute``, called once for equal tensors."""
    results: dict[bytes, T] = {}

    def look_up(tensor: Tensor) -> T:
        key = tensor.detach().numpy().tobytes()
        if key not in results:
            results[key] = compute(tensor)
        return results[key]

    return look_up


def tune(params, base, used, features, encode_texts, scale, objective, steps, lr):
    """Descend on the mean loss of the used prompts; all ``params`` are the optimiser's. Averaged logits of view 0."""
    leaves = [param.clone() for param in params]
    optimiser = torch.optim.AdamW(leaves, lr=lr, weight_decay=0.01)
    first = [(scale * features @ encode_texts(base + leaves[index]).T).detach() for index in used]
    ranking = torch.stack([torch.stack([entropy(softmax(view)) for view in logits]) for logits in first]).mean(0)

    def gradient(value: Tensor) -> Tensor:
        leaf = value.clone().requires_grad_()
        texts = encode_texts(base + leaf)
        logits = scale * features @ texts.T
        out = Outputs(features[None], texts[None], logits[None], logits[None].detach(), ranking[None])
        return torch.autograd.grad(objective(out).sum() / len(used), leaf)[0]

    for _ in range(steps):
        of_prompt = once(gradient)
        for leaf in leaves:
            leaf.grad = torch.zeros_like(leaf)
        for index in used:
            leaves[index].grad += of_prompt(leaves[index])
        optimiser.step()
    done = [leaf.detach() for leaf in leaves]
    with torch.no_grad():
        answer = once(lambda value: scale * encode_texts(base + value) @ features[0])
        answers = [answer(done[index]) for index in used]
    return done, torch.stack(answers).mean(0)


def described(stream, start, encode_texts, scale, objective, size, steps, lr):
    buffer: list[tuple[int, Tensor]] = []  # (age, prompt), least recently used first
    ages, answers, zero = 0, [], torch.zeros_like(start)
    for features in stream:
        with torch.no_grad():
            score = once(lambda prompt, views=features: scores(scale * views @ encode_texts(prompt).T, False))
            init, judged = score(start), [score(prompt) for _, prompt in buffer]
        chosen = [i for i, (ent, diff) in enumerate(judged) if ent < init[0] and diff > init[1]]
        if chosen:
            used = [buffer[i] for i in chosen]
            buffer = [entry for i, entry in enumerate(buffer) if i not in chosen]
        else:
            buffer = buffer[1:] if len(buffer) == size else buffer
            used = [(ages, start)]
            ages += 1
        prompts, logits = tune(
            [prompt for _, prompt in used], zero, range(len(used)), features, encode_texts, scale, objective, steps, lr
        )
        names = [age for age, _ in used]
        buffer += list(zip(names, prompts, strict=True))
        answers.append((names, logits))
    return answers


def as_published(stream, start, encode_texts, scale, objective, size, steps, lr):
    residuals = [torch.zeros_like(start) for _ in range(size)]
    order, use, answers = list(range(size)), [0] * size, []
    for features in stream:
        if 0 not in use:
            residuals[order[0]] = torch.zeros_like(start)
            use[order[0]] = 0
        with torch.no_grad():
            score = once(lambda each, views=features: scores(scale * views @ encode_texts(start + each).T, True))
            judged = [score(each) for each in residuals]
        by_entropy = sorted(range(size), key=lambda slot: -judged[slot][0])
        by_difference = sorted(range(size), key=lambda slot: -judged[slot][1])
        rank = by_entropy.index(order[0])
        first = by_entropy[rank + 1 :] if rank + 1 < size else [by_entropy[-1]]
        common = sorted(set(first).intersection(by_difference[:rank]))
        used = [by_entropy[slot] for slot in common] + [order[0]]
        residuals, logits = tune(residuals, start, used, features, encode_texts, scale, objective, steps, lr)
        for slot in used:
            order.remove(slot)
            order.append(slot)
            use[slot] += 1
        answers.append((used, logits))
    return answers
