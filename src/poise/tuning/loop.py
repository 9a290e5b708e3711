"""The one loop: AdamW steps of several problems side by side, and a fallback where something is not finite.

A problem is what differs between episodic, conditional, deep and online tuning: what is tuned, from where it starts,
which outputs follow, and how a gradient comes back to it. Problems that are solved together share every pass through
the text tower.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Generic, Protocol, TypeVar

import torch
from torch import Tensor

from poise.encoding.class_texts import ClassTexts
from poise.methods import Method
from poise.tuning.adamw import AdamW, Parameters
from poise.tuning.answer import fall_back, init_answer, make_answer
from poise.tuning.gradient import Features, ObjectiveGradient
from poise.types import Adapted, Outputs, Prompt

P = TypeVar("P", bound=Parameters)
F = TypeVar("F", bound=Features)


@dataclass(frozen=True)
class SharedInit(Generic[P]):
    """All images are at the same parameters [1, ...], and their text prompt is the init of the class texts.

    They share its text features, the graph behind these, and the gradients of terms that read the texts alone.
    """

    parameters: P


@dataclass(frozen=True)
class PerImage(Generic[P]):
    """Each row has parameters of its own [rows, ...]."""

    parameters: P


class Problem(Protocol[P, F]):
    """B images and one method. Rows are images, unless an image tunes several prompts at once."""

    @property
    def method(self) -> Method:
        """Steps and optimiser."""

    @property
    def objective(self) -> ObjectiveGradient | None:
        """What is minimised; None where there is nothing to tune."""

    @property
    def untuned(self) -> Outputs:
        """Of B images under the init: the answer where nothing is tuned, or where tuning is not finite."""

    @property
    def init_prompt(self) -> Prompt:
        """The prompt [B or 1, ...] behind `untuned`."""

    @property
    def init(self) -> SharedInit[P] | PerImage[P]:
        """Where tuning starts."""

    @property
    def init_features(self) -> F:
        """What follows from the init."""

    def text_prompt(self, parameters: P) -> Prompt:
        """What the text tower reads, [n, ...]."""

    def features(self, parameters: P, texts: Tensor) -> F:
        """What follows from the parameters, given the text features [n, C, D] of their text prompt."""

    def outputs(self, features: F) -> Outputs:
        """What objectives read; differentiable in the features."""

    def gradient(self, parameters: P, cotangent: F, text_gradient: Prompt) -> P:
        """Gradient of the parameters, given that of the features and that of the text prompt."""

    def prompt(self, parameters: P) -> Prompt:
        """The tuned prompts [B, ...], for the answer."""


@dataclass(frozen=True)
class Tuned(Generic[P, F]):
    """How one problem ended."""

    answer: Adapted
    parameters: P  # [rows, ...], whether or not they are finite
    features: F


@torch.no_grad()
def adapt(problems: Sequence[Problem[P, F]], texts: ClassTexts) -> list[Tuned[P, F]]:
    """Each problem's end: ``method.steps`` AdamW steps from a fresh state. All start shared, or none."""
    tracks = [_Track.begin(problem) for problem in problems]
    for step in range(max((track.steps for track in tracks), default=0)):
        _step([track for track in tracks if step < track.steps], texts)
    return [track.end() for track in tracks]


def _step(tracks: Sequence[_Track[P, F]], texts: ClassTexts) -> None:
    """One step of each problem: differentiate, pull back together, move, encode together."""
    found = [track.differentiate() for track in tracks]
    cotangents = torch.cat([cotangent.texts for _, cotangent in found])
    if any(isinstance(track.at, SharedInit) for track in tracks):
        gradient = texts.pullback_to_init(cotangents)
    else:
        gradient = texts.pullback(joined([track.text_prompt() for track in tracks]), cotangents)
    gradients = parted(gradient, [len(cotangent.texts) for _, cotangent in found])
    for track, (value, cotangent), text_gradient in zip(tracks, found, gradients, strict=True):
        track.move(value, cotangent, text_gradient)
    prompts = [track.text_prompt() for track in tracks]
    encoded = texts.features(joined(prompts)).split([len(prompt) for prompt in prompts])
    for track, own in zip(tracks, encoded, strict=True):
        track.features = track.problem.features(track.at.parameters, own)


@dataclass
class _Track(Generic[P, F]):
    """Where one problem stands."""

    problem: Problem[P, F]
    at: SharedInit[P] | PerImage[P]
    features: F
    optimiser: AdamW
    fine: Tensor  # [B]: the images for which all was finite so far
    losses: list[Tensor] = field(default_factory=list)

    @classmethod
    def begin(cls, problem: Problem[P, F]) -> _Track[P, F]:
        method, logits = problem.method, problem.untuned.logits
        optimiser = AdamW(lr=method.lr, weight_decay=method.weight_decay)
        fine = torch.ones(len(logits), dtype=torch.bool, device=logits.device)
        return cls(problem, problem.init, problem.init_features, optimiser, fine)

    @property
    def steps(self) -> int:
        return self.problem.method.steps if self.problem.objective is not None else 0

    def text_prompt(self) -> Prompt:
        return self.problem.text_prompt(self.at.parameters)

    def differentiate(self) -> tuple[Tensor, F]:
        problem = self.problem
        assert problem.objective is not None
        if isinstance(self.at, SharedInit):
            return problem.objective.at_shared(self.features, problem.outputs, len(self.fine))
        return problem.objective.at(self.features, problem.outputs)

    def move(self, value: Tensor, cotangent: F, text_gradient: Prompt) -> None:
        gradient = self.problem.gradient(self.at.parameters, cotangent, text_gradient)
        stepped, self.optimiser = self.optimiser.step(self.at.parameters, gradient)
        self.at = PerImage(stepped)
        self.losses.append(cotangent.per_image(value))
        self.fine = self.fine & self.losses[-1].isfinite() & self._finite(gradient) & self._finite(stepped)

    def end(self) -> Tuned[P, F]:
        problem, parameters = self.problem, self.at.parameters
        answer = init_answer(problem.method, problem.untuned, problem.init_prompt)
        if self.losses:
            tuned = make_answer(
                problem.method, problem.outputs(self.features), problem.untuned, problem.prompt(parameters),
                torch.stack(self.losses, 1), self.features.per_image,
            )  # fmt: skip
            answer = fall_back(~(self.fine & tuned.logits.isfinite().all(-1)), answer, tuned)
        return Tuned(answer, parameters, self.features)

    def _finite(self, parameters: P) -> Tensor:
        """Which images [B] have finite numbers only; rows that aren't images count for all of them."""
        parts = [part.isfinite().flatten(1).all(-1) for part in parameters.parts().values()]
        rows = torch.stack(parts).all(0)
        return rows if len(rows) == len(self.fine) else rows.all(0, keepdim=True)


def joined(prompts: Sequence[Prompt]) -> Prompt:
    """Several problems' prompts [n, ...] as one batch."""
    parts = prompts[0].parts()
    return Prompt(**{name: torch.cat([prompt.parts()[name] for prompt in prompts]) for name in parts})


def parted(prompt: Prompt, sizes: Sequence[int]) -> list[Prompt]:
    """The inverse of `joined`."""
    parts = {name: part.split(list(sizes)) for name, part in prompt.parts().items()}
    return [Prompt(**dict(zip(parts, row, strict=True))) for row in zip(*parts.values(), strict=True)]
