"""Adapt: from B images' features and one starting prompt to B tuned prompts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

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


class Texts(Protocol):
    """Text features that follow a prompt (see `poise.forward.ClassTexts`)."""

    encoder: DualEncoder
    start: Prompt

    def features(self, prompt: Prompt) -> Tensor:
        """[B, C, D] without a graph."""

    def start_features(self) -> Tensor:
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

    def outputs(text_features: Tensor) -> Outputs:
        logits = texts.encoder.logits(image_features, text_features)
        return Outputs(image_features, text_features, logits, reference_logits)

    prompt, optimiser = texts.start, AdamW(lr=recipe.lr, weight_decay=recipe.weight_decay)
    losses, gradients = [], []
    for step in range(recipe.steps):
        if step == 0:
            value, cotangent = slope.at_start(texts.start_features(), outputs, len(image_features))
        else:
            value, cotangent = slope.at(texts.features(prompt), outputs)
        gradient = texts.pullback(prompt, cotangent)
        prompt, optimiser = optimiser.step(prompt, gradient)
        losses.append(value)
        gradients.append(gradient)
    return Tuned(prompt, torch.stack(losses, 1), tuple(gradients))
