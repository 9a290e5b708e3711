"""Adapt: from B images' features and one starting prompt to B tuned prompts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import torch
from torch import Tensor

from poise.errors import InvalidOptionError
from poise.objectives import Sum, Target, text_only
from poise.tuning.adamw import AdamW
from poise.types import DualEncoder, Objective, Outputs, Prompt


class Recipe(Protocol):
    """What the tuner needs to know of a method."""

    @property
    def name(self) -> str:
        """The method's public name."""

    @property
    def steps(self) -> int:
        """Optimiser steps for each image; 0 answers from the starting prompt."""

    @property
    def lr(self) -> float:
        """Learning rate."""

    @property
    def weight_decay(self) -> float:
        """AdamW's decoupled weight decay."""

    def objective(self) -> Objective | None:
        """What is minimised; None for zero-shot."""

    def target(self) -> Target:
        """How p_aug is made, also where nothing is minimised: it is reported."""


def check_names(methods: Sequence[Recipe]) -> None:
    """Refuse two methods of one name: answers are told apart by it."""
    names = [method.name for method in methods]
    if len(set(names)) < len(names):
        raise InvalidOptionError(f"Methods {names} repeat a name.", hint="Give each method a name of its own.")


class Texts(Protocol):
    """Text features that follow a prompt (see `poise.encoding.class_texts.ClassTexts`)."""

    encoder: DualEncoder
    start: Prompt

    def features(self, prompt: Prompt) -> Tensor:
        """[B, C, D] without a graph."""

    def init_features(self) -> Tensor:
        """[1, C, D] under the starting prompt."""

    def pullback(self, prompt: Prompt, cotangent: Tensor) -> Prompt:
        """Gradient of each image's prompt for a cotangent [B, C, D] of its text features."""


@dataclass(frozen=True)
class Tuned:
    """B tuned prompts and how they came about."""

    prompt: Prompt
    losses: Tensor  # [B, steps]
    gradients: tuple[Prompt, ...]  # one per step, [B, ...]


class Slope:
    """An objective's value and its gradient with respect to the text features.

    Terms that read the text features alone have one gradient at the shared starting prompt; it is kept.
    """

    def __init__(self, objective: Objective) -> None:
        terms = objective.terms if isinstance(objective, Sum) else ((1.0, objective),)
        self._whole = objective
        self._per_image = tuple(term for term in terms if not text_only(term[1]))
        self._of_texts = tuple(term for term in terms if text_only(term[1]))
        self._kept: tuple[Tensor, Tensor] | None = None

    def at_start(self, texts: Tensor, outputs: Callable[[Tensor], Outputs], images: int) -> tuple[Tensor, Tensor]:
        """([B], [B, C, D]) at shared text features [1, C, D]."""
        value = texts.new_zeros(images)
        slope = texts.new_zeros(1, 1, 1)
        if self._per_image:
            value, slope = differentiate(Sum(self._per_image), texts.expand(images, -1, -1), outputs)
        if self._of_texts:
            if self._kept is None:
                self._kept = differentiate(Sum(self._of_texts), texts, outputs)
            value, slope = value + self._kept[0], slope + self._kept[1]
        return value, slope.expand(images, -1, -1)

    def at(self, texts: Tensor, outputs: Callable[[Tensor], Outputs]) -> tuple[Tensor, Tensor]:
        """([B], [B, C, D]) at each image's own text features [B, C, D]."""
        return differentiate(self._whole, texts, outputs)


def differentiate(objective: Objective, texts: Tensor, outputs: Callable[[Tensor], Outputs]) -> tuple[Tensor, Tensor]:
    """The objective's value [B] and its gradient with respect to the text features [B, C, D]."""
    leaf = texts.detach().clone().requires_grad_()
    with torch.enable_grad():
        value = objective(outputs(leaf))
        (slope,) = torch.autograd.grad(value.sum(), leaf)
    return value.detach(), slope


def adapt(recipe: Recipe, slope: Slope, texts: Texts, image_features: Tensor, reference_logits: Tensor) -> Tuned:
    """Tune the starting prompt to each image: ``recipe.steps`` AdamW steps from a fresh state."""
    return adapt_all([(recipe, slope)], texts, image_features, reference_logits)[0]


def adapt_all(
    recipes: Sequence[tuple[Recipe, Slope]], texts: Texts, image_features: Tensor, reference_logits: Tensor
) -> list[Tuned]:
    """`adapt` for several recipes, which share every pass through the text tower: B images times R recipes at once."""

    def outputs(text_features: Tensor) -> Outputs:
        logits = texts.encoder.logits(image_features, text_features)
        return Outputs(image_features, text_features, logits, reference_logits)

    images = len(image_features)
    tracks = [_Track(recipe, slope, AdamW(lr=recipe.lr, weight_decay=recipe.weight_decay)) for recipe, slope in recipes]
    for step in range(max(recipe.steps for recipe, _ in recipes)):
        going = [track for track in tracks if step < track.recipe.steps]
        if step == 0:
            prompt = texts.start
            found = [track.slope.at_start(texts.init_features(), outputs, images) for track in going]
        else:
            prompt = joined([track.prompt for track in going if track.prompt is not None])
            own = texts.features(prompt).split(images)
            found = [track.slope.at(features, outputs) for track, features in zip(going, own, strict=True)]
        gradient = texts.pullback(prompt, torch.cat([cotangent for _, cotangent in found]))
        for track, (value, _), part in zip(going, found, parted(gradient, images), strict=True):
            track.move(texts.start, value, part)
    return [track.tuned() for track in tracks]


def joined(prompts: Sequence[Prompt]) -> Prompt:
    """Several methods' prompts [B, ...] as one batch [R * B, ...]."""
    parts = prompts[0].parts()
    return Prompt(**{name: torch.cat([prompt.parts()[name] for prompt in prompts]) for name in parts})


def parted(prompt: Prompt, images: int) -> list[Prompt]:
    """The inverse of `joined`."""
    parts = {name: part.split(images) for name, part in prompt.parts().items()}
    return [Prompt(**dict(zip(parts, row, strict=True))) for row in zip(*parts.values(), strict=True)]


@dataclass
class _Track:
    """Where one recipe stands."""

    recipe: Recipe
    slope: Slope
    optimiser: AdamW
    prompt: Prompt | None = None
    losses: list[Tensor] = field(default_factory=list)
    gradients: list[Prompt] = field(default_factory=list)

    def move(self, start: Prompt, value: Tensor, gradient: Prompt) -> None:
        self.prompt, self.optimiser = self.optimiser.step(self.prompt or start, gradient)
        self.losses.append(value)
        self.gradients.append(gradient)

    def tuned(self) -> Tuned:
        assert self.prompt is not None
        return Tuned(self.prompt, torch.stack(self.losses, 1), tuple(self.gradients))
