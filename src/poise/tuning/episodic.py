"""Episodic tuning: each image is tuned for itself, from one init for all images or from one that follows the image."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from poise.encoding.class_texts import ClassTexts
from poise.errors import InvalidOptionError
from poise.methods import Method
from poise.prompts import init_prompt
from poise.prompts.conditional import Conditional
from poise.tuning.answer import stacked
from poise.tuning.gradient import Features, objective_gradients
from poise.tuning.loop import Problem, Scope, adapt
from poise.types import Adapted, ClassTokens, DualEncoder, Outputs, Prompt

MAX_TEXT_FEATURE_ELEMENTS = 1 << 25  # images x methods x classes x width of one group


class ContextProblem(Problem[Prompt, Features]):
    """A context is tuned; the views' features don't depend on it."""

    def text_prompt(self) -> Prompt:
        """The parameters themselves."""
        return self.parameters

    def follow(self, texts: Tensor) -> Features:
        """The text features alone."""
        return Features(texts)

    def outputs(self, features: Features) -> Outputs:
        """The outputs under other texts, with the views as they are."""
        images = self.untuned.image_features
        return Outputs(images, features.texts, self.texts.logits(images, features.texts), self.untuned.logits)

    def gradient(self, cotangent: Features, text_gradient: Prompt) -> Prompt:
        """The gradient of the text prompt."""
        return text_gradient

    def prompt(self) -> Prompt:
        """The parameters themselves."""
        return self.parameters


class EpisodicTuner(ABC):
    """Several methods over one label set; images come in once and serve them all."""

    reads = "features"  # what `predict` takes: features [B, V, D], or views [B, V, 3, S, S]
    ordered = False  # whether answers depend on the images before

    def __init__(self, methods: Sequence[Method], texts: ClassTexts) -> None:
        check_names(methods)
        self.methods, self.texts = tuple(methods), texts
        self._objectives = objective_gradients(methods, texts.classes)

    @torch.no_grad()
    def predict(self, inputs: Tensor) -> dict[str, Adapted]:
        """Return each method's answers for B images, of which view 0 is the plain one.

        Args:
            inputs: features [B, V, D] or normalised views [B, V, 3, S, S], as `reads` says.
        """
        # Text features are [B, C, D] for each method: with many labels, fewer images go together.
        elements = max(1, len(self.methods)) * self.texts.init_features().numel()
        groups = [
            adapt(self._problems(part), self.texts)
            for part in inputs.split(max(1, MAX_TEXT_FEATURE_ELEMENTS // elements))
        ]
        return {method.name: stacked(parts) for method, *parts in zip(self.methods, *groups, strict=True)}

    @abstractmethod
    def _problems(self, inputs: Tensor) -> Sequence[Problem[Any, Any]]:
        """One problem per method."""

    def _context_problems(self, inputs: Tensor, init: Prompt, texts: Tensor, scope: Scope) -> list[ContextProblem]:
        """The problems of images' features [B, V, D], from an init [1 or B, ...] with text features [1 or B, C, D]."""
        images = inputs.to(self.texts.encoder.device)
        logits = self.texts.logits(images, texts)  # [B, V, C]
        untuned, features = Outputs(images, texts.expand(len(images), -1, -1), logits, logits), Features(texts)
        return [
            ContextProblem(method, self._objectives.get(method.name), self.texts, untuned, init, init, features, scope)
            for method in self.methods
        ]


class Tuner(EpisodicTuner):
    """Test-time prompt tuning: every image starts from the same context.

    Labels are encoded when the tuner is made, and never again under the init.

    Args:
        encoder: the model.
        classes: the labels under a template (`poise.prompts.tokenise`).
        methods: what to tune by; they share all passes through the model.
        init: the context [1, M, E] to start from, or [1, C, M, E] with one for each class; the template's words by
            default.
        tokens_per_pass: text tokens that go through the text tower at once; 0 chooses.
    """

    def __init__(
        self,
        encoder: DualEncoder,
        classes: ClassTokens,
        methods: Sequence[Method],
        init: Prompt | None = None,
        *,
        tokens_per_pass: int = 0,
    ) -> None:
        init = init or init_prompt(encoder, classes)
        super().__init__(methods, ClassTexts(encoder, classes, init, tokens_per_pass=tokens_per_pass))

    def _problems(self, inputs: Tensor) -> Sequence[Problem[Any, Any]]:
        return self._context_problems(inputs, self.texts.init, self.texts.init_features(), Scope.SHARED)


class ConditionalTuner(EpisodicTuner):
    """The same from CoCoOp's context, which is made once for each image, from its plain view."""

    def __init__(
        self, encoder: DualEncoder, classes: ClassTokens, methods: Sequence[Method], init: Conditional
    ) -> None:
        super().__init__(methods, ClassTexts(encoder, classes, Prompt(init.context[None])))
        self.init = init

    def _problems(self, inputs: Tensor) -> Sequence[Problem[Any, Any]]:
        init = self.init.prompt(inputs[:, 0].to(self.init.context))
        return self._context_problems(inputs, init, self.texts.features(init), Scope.PER_IMAGE)


def check_names(methods: Sequence[Method]) -> None:
    """Refuse two methods of one name, because answers are returned by name."""
    names = [method.name for method in methods]
    if len(set(names)) < len(names):
        raise InvalidOptionError(f"Methods {names} repeat a name.", hint="Give each method another name.")
