"""Flatness-aware prompt pretraining (FPP): an init whose text features are robust to noise, fitted without images.

A random context is trained so that its text features are close to those of the template (alignment) and change little
under noise on the token embeddings (flatness): loss = D · mean((t - t₀)²) - weight · mean cos(t, t_noisy). Noisy
features are constants in the gradient. The noise is drawn at each step, is the same for all classes, and is added at
every position, including the start token. As in the published code, the labels are those of the test set, and a label
that occurs twice counts twice.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from poise.backbones.encoder import wide
from poise.encoding.class_texts import ClassTexts
from poise.errors import InvalidOptionError
from poise.prompts import DEFAULT_TEMPLATE, init_prompt, tokenise
from poise.prompts.files import Facts, StoredPrompt
from poise.types import ClassTokens, DualEncoder, Prompt

Report = Callable[[int, float, float], None]  # step, alignment, mean cosine under noise


def published_weight(classes: int, *, shift: bool = False) -> float:
    """Return the published weight of the flatness term: 1 + 15 / C, or 1.25 on ImageNet's natural shifts.

    >>> published_weight(30), published_weight(1000, shift=True)
    (1.5, 1.25)
    """
    return 1.25 if shift else 1 + 15 / classes


@dataclass(frozen=True, kw_only=True)
class Flatness:
    """The published training recipe."""

    steps: int = 1000
    lr: float = 1e-2
    final_lr: float = 1e-4  # learning rate at the end of the cosine decay
    weight_decay: float = 0.01
    noises: int = 4  # noise samples per step
    context_sd: float = 0.0707105  # standard deviation of the noise on the context
    rest_sd: float = 0.141421  # standard deviation of the noise on all other tokens
    start_sd: float = 0.141421  # standard deviation of the initial context; 0 to start from the template's words
    weight: float | None = None  # weight of the flatness term; None for `published_weight`
    seed: int = 0

    def rate(self, step: int) -> float:
        """Return the learning rate of a step."""
        return self.final_lr + (self.lr - self.final_lr) * (1 + math.cos(math.pi * step / self.steps)) / 2


# Recipes by the name of the init.
PUBLISHED = {"fpp": Flatness(), "fpp-shift": Flatness(weight=published_weight(0, shift=True))}


class NoisyTexts:
    """Text features of a label set with noise on every token embedding."""

    def __init__(self, encoder: DualEncoder, classes: ClassTokens, recipe: Flatness) -> None:
        count, length = classes.ids.shape
        # Every position becomes a slot of a class-specific context, so that all embeddings can be passed as a prompt.
        soft = replace(classes, slots=torch.arange(length).expand(count, -1).contiguous(), shared=0)
        self._vectors = encoder.embed(classes.ids.to(encoder.device)).detach().to(wide(encoder.dtype))  # [C, L, E]
        self._slots = classes.slots.to(encoder.device)
        spread = torch.full((count, length, 1), recipe.rest_sd, dtype=self._vectors.dtype, device=encoder.device)
        self._spread = spread.scatter(1, self._slots[..., None], recipe.context_sd)  # [C, L, 1]
        self._texts = ClassTexts(encoder, soft, Prompt(self._vectors[None]))

    def features(self, context: Tensor, noise: Tensor) -> Tensor:
        """Return features [K, C, D] for a context [M, E] and K samples of unit noise [K, L, E], without gradient."""
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
    """Fit a context for the labels of the test set; its alignment target is the ``template``."""
    recipe = recipe or Flatness()
    if recipe.steps < 1 or recipe.noises < 1:
        raise InvalidOptionError(f"steps={recipe.steps}, noises={recipe.noises}.", hint="Both must be at least 1.")
    classes = tokenise(encoder, labels, template, repeats=True)
    context = init_prompt(encoder, classes).context[0].to(wide(encoder.dtype))
    generator = torch.Generator().manual_seed(recipe.seed)
    if recipe.start_sd:
        context = _draw(context.shape, generator, context) * recipe.start_sd
    shape = (recipe.noises, classes.ids.shape[1], context.shape[-1])
    noises = (_draw(shape, generator, context) for _ in range(recipe.steps))
    facts = Facts.of(encoder, kind="fpp", template=template)
    return StoredPrompt({"context": descend(encoder, classes, context, noises, recipe, report)}, facts)


def descend(
    encoder: DualEncoder,
    classes: ClassTokens,
    context: Tensor,
    noises: Iterable[Tensor],
    recipe: Flatness,
    report: Report = lambda step, alignment, cosine: None,
) -> Tensor:
    """Return the context [M, E] after one step for each of ``noises``, standard normal samples [K, L, E]."""
    texts, noisy = ClassTexts(encoder, classes, init_prompt(encoder, classes)), NoisyTexts(encoder, classes, recipe)
    target, parameter = texts.init_features(), context.clone().requires_grad_()
    optimiser = torch.optim.AdamW([parameter], recipe.lr, weight_decay=recipe.weight_decay)
    weight = published_weight(len(classes)) if recipe.weight is None else recipe.weight
    for step, noise in enumerate(noises):
        optimiser.param_groups[0]["lr"] = recipe.rate(step)
        disturbed = noisy.features(parameter.detach(), noise)
        alignment, cosine, parameter.grad = gradient(texts, parameter.detach(), target, disturbed, weight)
        optimiser.step()
        report(step, float(alignment), float(cosine))
    return parameter.detach()


def gradient(
    texts: ClassTexts, context: Tensor, target: Tensor, disturbed: Tensor, weight: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Return alignment, mean cosine under noise, and the gradient [M, E] of alignment - weight · cosine.

    ``target`` [1, C, D] are the features of the template, ``disturbed`` [K, C, D] those under noise.
    """
    features, pullback = texts.with_pullback(Prompt(context[None]))
    leaf = features.requires_grad_()  # [1, C, D]
    alignment = (leaf - target).square().mean() * target.shape[-1]
    cosine = torch.nn.functional.cosine_similarity(leaf, disturbed, dim=-1).mean()
    (cotangent,) = torch.autograd.grad(alignment - weight * cosine, leaf)
    return alignment.detach(), cosine.detach(), pullback(cotangent).context[0].to(context.dtype)


def sharpness(
    encoder: DualEncoder, labels: Sequence[str], stored: StoredPrompt, *, draws: int = 16, seed: int = 1
) -> float:
    """Return 1 - the mean cosine between text features with and without the published noise (0 is flat)."""
    classes = stored.classes(encoder, labels, repeats=True)
    context = stored.tensors["context"].to(encoder.device, wide(encoder.dtype))
    clean = ClassTexts(encoder, classes, Prompt(context[None])).init_features()
    shape = (draws, classes.ids.shape[1], context.shape[-1])
    noise = _draw(shape, torch.Generator().manual_seed(seed), context)
    return 1 - float((NoisyTexts(encoder, classes, Flatness()).features(context, noise) * clean).sum(-1).mean())


def _draw(shape: Sequence[int], generator: torch.Generator, like: Tensor) -> Tensor:
    """Draw standard normal numbers on the CPU, so that they are the same for every device."""
    return torch.randn(*shape, generator=generator, dtype=torch.float32).to(like)
