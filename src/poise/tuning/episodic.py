"""Episodic tuning: each image is tuned for itself, and no image learns from another."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from poise.encoding.class_texts import ClassTexts
from poise.errors import InvalidOptionError
from poise.methods import Method
from poise.tuning.answer import stacked
from poise.tuning.gradient import Features, ObjectiveGradient, objective_gradients
from poise.tuning.loop import PerImage, Problem, SharedInit, adapt
from poise.types import Adapted, ClassTokens, DualEncoder, Outputs, Prompt

MAX_TEXT_FEATURE_ELEMENTS = 1 << 25  # images x methods x classes x width of one group


@dataclass(frozen=True)
class ContextProblem:
    """A context is tuned; the views' features don't depend on it."""

    encoder: DualEncoder
    method: Method
    objective: ObjectiveGradient | None
    images: Tensor  # [B, V, D]
    init: SharedInit[Prompt] | PerImage[Prompt]
    init_features: Features
    untuned: Outputs

    @property
    def init_prompt(self) -> Prompt:
        """One for all images, or one each."""
        return self.init.parameters

    def text_prompt(self, parameters: Prompt) -> Prompt:
        """The parameters themselves."""
        return parameters

    def features(self, parameters: Prompt, texts: Tensor) -> Features:
        """The text features alone."""
        return Features(texts)

    def outputs(self, features: Features) -> Outputs:
        """Under other texts, the views as they are."""
        logits = self.encoder.logits(self.images, features.texts)
        return Outputs(self.images, features.texts, logits, self.untuned.logits)

    def gradient(self, parameters: Prompt, cotangent: Features, text_gradient: Prompt) -> Prompt:
        """The text prompt's."""
        return text_gradient

    def prompt(self, parameters: Prompt) -> Prompt:
        """The parameters themselves."""
        return parameters


class EpisodicTuner(ABC):
    """Several methods over one label set; images come in once and serve them all."""

    reads = "features"  # what `predict` takes: features [B, V, D], or views [B, V, 3, S, S]
    ordered = False  # whether answers depend on the images before

    def __init__(
        self, encoder: DualEncoder, classes: ClassTokens, methods: Sequence[Method], texts: ClassTexts
    ) -> None:
        check_names(methods)
        self.encoder, self.classes, self.methods, self.texts = encoder, classes, tuple(methods), texts
        self._objectives = objective_gradients(methods, classes)

    @torch.no_grad()
    def predict(self, inputs: Tensor) -> dict[str, Adapted]:
        """Each method's answer for B images, view 0 of each the plain one: features [B, V, D], or what `reads` says."""
        # Text features are [B, C, D] for each method: with many labels, fewer images go together.
        elements = max(1, len(self.methods)) * self.texts.init_features().numel()
        groups = [
            [tuned.answer for tuned in adapt(self._problems(part), self.texts)]
            for part in inputs.split(max(1, MAX_TEXT_FEATURE_ELEMENTS // elements))
        ]
        return {method.name: stacked(parts) for method, *parts in zip(self.methods, *groups, strict=True)}

    def _context_problems(
        self, inputs: Tensor, init: SharedInit[Prompt] | PerImage[Prompt], texts: Tensor
    ) -> list[Problem[Any, Any]]:
        """Of images' features [B, V, D], from an init whose text features are [1 or B, C, D]."""
        images = inputs.to(self.encoder.device)
        logits = self.encoder.logits(images, texts)  # [B, V, C]
        untuned = Outputs(images, texts.expand(len(images), -1, -1), logits, logits)
        return [
            ContextProblem(
                self.encoder, method, self._objectives.get(method.name), images, init, Features(texts), untuned
            )
            for method in self.methods
        ]

    @abstractmethod
    def _problems(self, inputs: Tensor) -> list[Problem[Any, Any]]:
        """One problem per method."""


def check_names(methods: Sequence[Method]) -> None:
    """Refuse two methods of one name: answers are told apart by it."""
    names = [method.name for method in methods]
    if len(set(names)) < len(names):
        raise InvalidOptionError(f"Methods {names} repeat a name.", hint="Give each method a name of its own.")
