"""Episodic tuning: each image is tuned for itself, from one init for all images or from one that follows the image."""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import torch
from torch import Tensor

from poise.encoding.class_texts import ClassTexts
from poise.errors import InvalidOptionError
from poise.methods import Method
from poise.objectives.targets import view_entropy
from poise.prompts import init_prompt
from poise.prompts.conditional import Conditional
from poise.tuning.answer import stacked
from poise.tuning.gradient import Features, ObjectiveGradient, objective_gradients
from poise.tuning.loop import Problem, Scope, adapt
from poise.tuning.rule_answers import RuleRunner
from poise.types import Answer, ClassTokens, DualEncoder, Outputs, Prompt

# Images x methods x classes x width of one group. Each group launches all kernels again, which takes a GPU longer than
# small groups save.
_MAX_ELEMENTS = {"cuda": 1 << 27, "cpu": 1 << 25, "mps": 1 << 25}


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
        logits = self.texts.logits(images, features.texts)
        return Outputs(images, features.texts, logits, self.untuned.logits, self.untuned.ranking)

    def gradient(self, cotangent: Features, text_gradient: Prompt) -> Prompt:
        """The gradient of the text prompt."""
        return text_gradient

    def prompt(self) -> Prompt:
        """The parameters themselves."""
        return self.parameters


@dataclass(frozen=True)
class Start:
    """Where B images start."""

    untuned: Outputs  # their outputs under the init
    init: Prompt  # its prompt [B or 1, ...]
    texts: Tensor  # its text features [B or 1, C, D]
    problem: Callable[[Method, ObjectiveGradient | None], Problem[Any, Any]]  # what a method solves from there


class EpisodicTuner(ABC):
    """Several methods over one label set; images come in once and serve them all.

    Methods that differ in post-hoc steps alone are tuned once. A rule answers beside tuned prompts.
    """

    reads = "features"  # what `predict` takes: features [B, V, D], or views [B, V, 3, S, S]

    def __init__(self, methods: Sequence[Method], texts: ClassTexts) -> None:
        check_names(methods)
        self.methods, self.texts = tuple(methods), texts
        self._tuned: dict[str, list[Method]] = {}  # those that share a problem
        for method in methods:
            if not method.rule:
                self._tuned.setdefault(method.before_posthoc(), []).append(method)
        self._objectives = objective_gradients([shared[0] for shared in self._tuned.values()], texts.classes)
        self.rules = RuleRunner(methods, texts)

    @property
    def ordered(self) -> bool:
        """Whether answers depend on the images before, as those of some rules do."""
        return self.rules.ordered

    def only(self, method: str) -> Self:
        """Return a tuner with one of the methods; the labels are not encoded again."""
        single = copy.copy(self)
        EpisodicTuner.__init__(single, [row for row in self.methods if row.name == method], self.texts)
        return single

    @torch.no_grad()
    def predict(self, inputs: Tensor) -> dict[str, Answer[Tensor]]:
        """Return each method's answers for B images, of which view 0 is the plain one.

        Args:
            inputs: features [B, V, D] or normalised views [B, V, 3, S, S], as `reads` says.
        """
        # Text features are [B, C, D] for each method: with many labels, fewer images go together.
        elements = max(1, len(self._tuned)) * self.texts.init_features().numel()
        most = _MAX_ELEMENTS[self.texts.encoder.device.type]
        groups = [self._answers(part) for part in inputs.split(max(1, most // elements))]
        return {method.name: stacked([group[method.name] for group in groups]) for method in self.methods}

    def save(self, folder: str | Path) -> None:
        """Write the states of rules along a stream into ``folder``."""
        self.rules.save(folder)

    def restore(self, folder: str | Path) -> None:
        """Restore what `save` wrote; answers are then bitwise those of an uninterrupted stream."""
        self.rules.restore(folder)

    def _answers(self, inputs: Tensor) -> dict[str, Answer[Tensor]]:
        start = self._start(inputs)
        groups = list(self._tuned.values())
        problems = [start.problem(shared[0], self._objectives.get(shared[0].name)) for shared in groups]
        adapt(problems, self.texts)
        answers = self.rules.answers(start.untuned, start.init, start.texts)
        for problem, shared in zip(problems, groups, strict=True):
            answers |= problem.answers(shared)
        return answers

    @abstractmethod
    def _start(self, inputs: Tensor) -> Start:
        """The images under the init."""

    def _context_start(self, inputs: Tensor, init: Prompt, texts: Tensor, scope: Scope) -> Start:
        """The start of images' features [B, V, D], from an init [1 or B, ...] with text features [1 or B, C, D]."""
        images = inputs.to(self.texts.encoder.device)
        logits = self.texts.logits(images, texts)  # [B, V, C]
        # The views' entropies are computed once, for all methods and steps.
        untuned = Outputs(images, texts.expand(len(images), -1, -1), logits, logits, view_entropy(logits))
        features = Features(texts)

        def problem(method: Method, objective: ObjectiveGradient | None) -> ContextProblem:
            return ContextProblem(method, objective, self.texts, untuned, init, init, features, scope)

        return Start(untuned, init, texts, problem)


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

    def _start(self, inputs: Tensor) -> Start:
        return self._context_start(inputs, self.texts.init, self.texts.init_features(), Scope.SHARED)


class ConditionalTuner(EpisodicTuner):
    """The same from CoCoOp's context, which is made once for each image, from its plain view."""

    def __init__(
        self, encoder: DualEncoder, classes: ClassTokens, methods: Sequence[Method], init: Conditional
    ) -> None:
        super().__init__(methods, ClassTexts(encoder, classes, Prompt(init.context[None])))
        self.init = init

    def _start(self, inputs: Tensor) -> Start:
        init = self.init.prompt(inputs[:, 0].to(self.init.context))
        return self._context_start(inputs, init, self.texts.features(init), Scope.PER_IMAGE)


def check_names(methods: Sequence[Method]) -> None:
    """Refuse two methods of one name, because answers are returned by name."""
    names = [method.name for method in methods]
    if len(set(names)) < len(names):
        raise InvalidOptionError(f"Methods {names} repeat a name.", hint="Give each method another name.")
