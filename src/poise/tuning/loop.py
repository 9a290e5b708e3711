"""The one loop: AdamW steps of several problems side by side, and the init's answer where something is not finite.

A problem is what differs between episodic, conditional, deep and online tuning: what is tuned, where it starts, which
outputs follow from it, and how a gradient gets back to it. Problems that are solved together share every pass through
the text tower.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor

from poise.adamw import AdamW, Parameters
from poise.encoding.class_texts import ClassTexts, joined
from poise.methods import Method
from poise.tuning.answer import init_answers, make_answers
from poise.tuning.gradient import Features, ObjectiveGradient
from poise.types import Answer, Outputs, Prompt

P = TypeVar("P", bound=Parameters)
F = TypeVar("F", bound=Features)


class Scope(Enum):
    """Whose parameters a problem has at the moment."""

    SHARED = "shared"  # all images are at the init of the class texts, and share its features and graph
    PER_IMAGE = "per image"


@dataclass
class Problem(ABC, Generic[P, F]):
    """B images that one method tunes: `adapt` steps it in place, and then it has `answers`.

    Rows are images, unless an image tunes several prompts at once.
    """

    method: Method
    objective: ObjectiveGradient | None  # None: there is nothing to tune
    texts: ClassTexts
    untuned: Outputs  # of the B images under the init
    init_prompt: Prompt  # the prompt [B or 1, ...] of ``untuned``
    parameters: P  # what is tuned [rows, ...]; [1, ...] while all images share the init
    features: F  # those that follow from the parameters
    scope: Scope = Scope.PER_IMAGE
    losses: list[Tensor] = field(default_factory=list)  # [B] per step

    def __post_init__(self) -> None:
        self.steps = self.method.steps if self.objective is not None else 0
        rms = self.texts.init_rms if self.steps and self.method.relative_lr else 1.0
        self.optimiser = AdamW(lr=self.method.absolute_lr(rms), weight_decay=self.method.weight_decay)

    @abstractmethod
    def text_prompt(self) -> Prompt:
        """The prompt [n, ...] that the text tower reads."""

    @abstractmethod
    def follow(self, texts: Tensor) -> F:
        """The features that follow from the parameters, given the text features [n, C, D] of the text prompt."""

    @abstractmethod
    def outputs(self, features: F) -> Outputs:
        """What objectives read; differentiable in the features."""

    @abstractmethod
    def gradient(self, cotangent: F, text_gradient: Prompt) -> P:
        """The gradient of the parameters, given those of the features and of the text prompt."""

    @abstractmethod
    def prompt(self) -> Prompt:
        """The tuned prompts [B, ...], for the answer."""

    def differentiate(self) -> tuple[Tensor, F]:
        """Losses [n] and the gradient of the features."""
        assert self.objective is not None
        if self.scope is Scope.SHARED:
            return self.objective.at_shared(self.features, self.outputs, len(self.untuned.logits))
        return self.objective.at(self.features, self.outputs)

    def move(self, losses: Tensor, cotangent: F, text_gradient: Prompt) -> None:
        """Take one step of the optimiser."""
        self.losses.append(cotangent.per_image(losses))
        gradient = self.gradient(cotangent, text_gradient)
        self.parameters, self.optimiser = self.optimiser.step(self.parameters, gradient)
        self.scope = Scope.PER_IMAGE

    def answers(self, methods: Sequence[Method]) -> dict[str, Answer[Tensor]]:
        """The answers under the tuned prompt, and the init's for images where something is not finite.

        Args:
            methods: the one that tuned, or others that differ from it in post-hoc steps alone.
        """
        if not self.losses:
            return init_answers(methods, self.untuned, self.init_prompt)
        out, per_image, losses = self.outputs(self.features), self.features.per_image, torch.stack(self.losses, 1)
        # A gradient that is not finite leaves NaN in the parameters for good.
        numbers = [losses, per_image(out.logits[:, 0]), *self.parameters.parts().values()]
        bad = ~torch.stack([self._finite(rows) for rows in numbers]).all(0)

        def where(init: Tensor, tuned: Tensor) -> Tensor:
            return torch.where(bad.reshape(-1, *[1] * (tuned.ndim - 1)), init, tuned)

        out = replace(
            out,
            logits=where(self.untuned.logits, out.logits),
            text_features=where(self.untuned.text_features, out.text_features),
        )
        init = self.init_prompt.parts()
        prompt = Prompt(**{name: where(init[name], part) for name, part in self.prompt().parts().items()})
        return make_answers(methods, out, self.untuned, prompt=prompt, losses=losses, fallback=bad, per_image=per_image)

    def _finite(self, rows: Tensor) -> Tensor:
        """Which images [B] have finite numbers only; rows that are not images count for all of them."""
        finite = rows.isfinite().flatten(1).all(-1)
        return finite if len(finite) == len(self.untuned.logits) else finite.all(0, keepdim=True)


@torch.no_grad()
def adapt(problems: Sequence[Problem[Any, Any]], texts: ClassTexts) -> None:
    """Take ``method.steps`` AdamW steps of each problem, in place.

    Args:
        problems: all start from a shared init, or none; they share each pass through the text tower.
        texts: the class texts of all of them.
    """
    for step in range(max((problem.steps for problem in problems), default=0)):
        _step([problem for problem in problems if step < problem.steps], texts)


def _step(problems: Sequence[Problem[Any, Any]], texts: ClassTexts) -> None:
    """One step of each problem: differentiate, pull back together, move, encode together."""
    pairs = [problem.differentiate() for problem in problems]
    cotangents = torch.cat([cotangent.texts for _, cotangent in pairs])
    if problems[0].scope is Scope.SHARED:
        gradient = texts.pullback_to_init(cotangents)
    else:
        gradient = texts.pullback(joined([problem.text_prompt() for problem in problems]), cotangents)
    gradients = parted(gradient, [len(cotangent.texts) for _, cotangent in pairs])
    for problem, (losses, cotangent), text_gradient in zip(problems, pairs, gradients, strict=True):
        problem.move(losses, cotangent, text_gradient)
    prompts = [problem.text_prompt() for problem in problems]
    encoded = texts.features(joined(prompts)).split([len(prompt) for prompt in prompts])
    for problem, features in zip(problems, encoded, strict=True):
        problem.features = problem.follow(features)


def parted(prompt: Prompt, sizes: Sequence[int]) -> list[Prompt]:
    """The inverse of `joined`."""
    parts = {name: part.split(list(sizes)) for name, part in prompt.parts().items()}
    return [Prompt(**dict(zip(parts, row, strict=True))) for row in zip(*parts.values(), strict=True)]
