"""Flatness-aware prompt pretraining (FPP): an init whose text features hardly move under noise, fitted without images.

A random context is drawn to the template's own text features (alignment) and to where noise on all token vectors
changes the features least (flatness): loss = D · mean((t - t₀)²) - weight · mean cos(t, t_noisy). Noisy features are
constants in the gradient; noise is drawn anew at each step, is the same for all classes, and falls on every position,
the start token included. As in the published code, the labels are those of the test set, and a label that occurs twice
counts twice.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from poise.encoding.class_texts import ClassTexts
from poise.errors import InvalidOptionError
from poise.prompts import DEFAULT_TEMPLATE, init_prompt, tokenise
from poise.prompts.files import Facts, StoredPrompt
from poise.types import ClassTokens, DualEncoder, Prompt

Report = Callable[[int, float, float], None]  # step, alignment, mean cosine under noise


def published_weight(classes: int, *, shift: bool = False) -> float:
    """The weight of the flatness term in the published runs: 1 + 15 / C, and 1.25 on ImageNet's natural shifts.

    >>> published_weight(30), published_weight(1000, shift=True)
    (1.5, 1.25)
    """
    return 1.25 if shift else 1 + 15 / classes


@dataclass(frozen=True, kw_only=True)
class Flatness:
    """The published recipe."""

    steps: int = 1000
    lr: float = 1e-2
    final_lr: float = 1e-4  # the cosine's end
    weight_decay: float = 0.01
    noises: int = 4
    context_sd: float = 0.0707105  # of the noise on the context's vectors
    rest_sd: float = 0.141421  # of the noise on all others
    start_sd: float = 0.141421  # of the random context; 0 = begin at the template's words
    weight: float | None = None  # of the flatness term; None = `published_weight` of the number of classes
    seed: int = 0

    def rate(self, step: int) -> float:
        """Learning rate of a step."""
        return self.final_lr + (self.lr - self.final_lr) * (1 + math.cos(math.pi * step / self.steps)) / 2


# The inits that are fitted on the spot, by the name that `init` takes.
PUBLISHED = {"fpp": Flatness(), "fpp-shift": Flatness(weight=published_weight(0, shift=True))}


class NoisyTexts:
    """Text features of a label set when every token vector is disturbed."""

    def __init__(self, encoder: DualEncoder, classes: ClassTokens, recipe: Flatness) -> None:
        count, length = classes.ids.shape
        # Every position becomes a slot of a class-specific context, so that vectors can be given for all of them.
        soft = replace(classes, slots=torch.arange(length).expand(count, -1).contiguous(), shared=0)
        self._vectors = _wide(encoder.embed(classes.ids.to(encoder.device)))  # [C, L, E]
        self._slots = classes.slots.to(encoder.device)
        spread = torch.full((count, length, 1), recipe.rest_sd, dtype=self._vectors.dtype, device=encoder.device)
        self._spread = spread.scatter(1, self._slots[..., None], recipe.context_sd)  # [C, L, 1]
        self._texts = ClassTexts(encoder, soft, Prompt(self._vectors[None]))

    def features(self, context: Tensor, noise: Tensor) -> Tensor:
        """[K, C, D] under a context [M, E] and K unit noises [K, L, E]; no gradient."""
        index = self._slots[..., None].expand(-1, -1, context.shape[-1])
        clean = self._vectors.scatter(1, index, context.expand(len(index), -1, -1))  # [C, L, E]
        return self._texts.features(Prompt(clean + self._spread * noise[:, None]))


def fit(
    encoder: DualEncoder,
    labels: Sequence[str],
    template: str = DEFAULT_TEMPLATE,
    *,
    recipe: Flatness | None = None,
    report: Report = lambda step, alignment, cosine: None,
) -> StoredPrompt:
    """Fit a flat context for ``labels``; the template gives its place, its length and the features to keep.

    Args:
        encoder: whose text tower reads the context.
        labels: the class names of the test set, in which names may repeat.
        template: the sentence whose words the fitted context replaces.
        recipe: how it is fitted; ``Flatness(weight=1.25)`` is the published one for ImageNet's shifts.
        report: called after each step with the alignment and the mean cosine under noise.
    """
    recipe = recipe or Flatness()
    if recipe.steps < 1 or recipe.noises < 1:
        raise InvalidOptionError(f"steps is {recipe.steps}, noises {recipe.noises}.", hint="Both must be 1 or more.")
    classes = tokenise(encoder, labels, template, repeats=True)
    context, generator = _wide(init_prompt(encoder, classes).context[0]), torch.Generator().manual_seed(recipe.seed)
    if recipe.start_sd:
        context = _draw(context.shape, generator, context) * recipe.start_sd
    shape = (recipe.noises, classes.ids.shape[1], context.shape[-1])
    noises = (_draw(shape, generator, context) for _ in range(recipe.steps))
    facts = Facts(kind="fpp", model=encoder.name, template=template)
    return StoredPrompt({"context": descend(encoder, classes, context, noises, recipe, report)}, facts)


def descend(
    encoder: DualEncoder,
    classes: ClassTokens,
    context: Tensor,
    noises: Iterable[Tensor],
    recipe: Flatness,
    report: Report = lambda step, alignment, cosine: None,
) -> Tensor:
    """The context [M, E] after a step under each of ``noises``: standard normal numbers [K, L, E]."""
    texts, noisy = ClassTexts(encoder, classes, init_prompt(encoder, classes)), NoisyTexts(encoder, classes, recipe)
    goal, parameter = texts.init_features(), context.clone().requires_grad_()
    optimiser = torch.optim.AdamW([parameter], recipe.lr, weight_decay=recipe.weight_decay)
    weight = published_weight(len(classes)) if recipe.weight is None else recipe.weight
    for step, noise in enumerate(noises):
        optimiser.param_groups[0]["lr"] = recipe.rate(step)
        shaken = noisy.features(parameter.detach(), noise)
        alignment, cosine, parameter.grad = gradient(texts, parameter.detach(), goal, shaken, weight)
        optimiser.step()
        report(step, float(alignment), float(cosine))
    return parameter.detach()


def gradient(
    texts: ClassTexts, context: Tensor, goal: Tensor, shaken: Tensor, weight: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Alignment, mean cosine under noise, and the gradient [M, E] of alignment - weight · cosine."""
    found, pullback = texts.with_pullback(Prompt(context[None]))
    leaf = found.requires_grad_()  # [1, C, D]
    alignment = (leaf - goal).square().mean() * goal.shape[-1]
    cosine = torch.nn.functional.cosine_similarity(leaf, shaken, dim=-1).mean()
    (cotangent,) = torch.autograd.grad(alignment - weight * cosine, leaf)
    return alignment.detach(), cosine.detach(), pullback(cotangent).context[0].to(context.dtype)


def sharpness(
    encoder: DualEncoder, labels: Sequence[str], stored: StoredPrompt, *, draws: int = 16, seed: int = 1
) -> float:
    """1 - mean cosine between clean and disturbed text features of a prompt, under the published noise: 0 is flat."""
    recipe = Flatness()
    classes = stored.classes(encoder, labels, repeats=True)
    context = stored.tensors["context"].to(encoder.device, torch.promote_types(encoder.dtype, torch.float32))
    noisy = NoisyTexts(encoder, classes, recipe)
    clean = ClassTexts(encoder, classes, Prompt(context[None])).init_features()
    shape = (draws, classes.ids.shape[1], context.shape[-1])
    noise = _draw(shape, torch.Generator().manual_seed(seed), context)
    return 1 - float((noisy.features(context, noise) * clean).sum(-1).mean())


def _draw(shape: Sequence[int], generator: torch.Generator, like: Tensor) -> Tensor:
    """Standard normal numbers from the CPU's generator, so that every device sees the same."""
    return torch.randn(*shape, generator=generator, dtype=torch.float32).to(like)


def _wide(vectors: Tensor) -> Tensor:
    return vectors.detach().to(torch.promote_types(vectors.dtype, torch.float32))
