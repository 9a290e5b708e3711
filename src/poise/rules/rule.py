"""What a rule is: a way to answer from the features under the initial prompt, without tuning it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, ClassVar, Protocol

from torch import Tensor

from poise.registry import Makers
from poise.types import Outputs

State = Mapping[str, Tensor]  # what a stream remembers: named tensors, which can be saved


class Gives(Enum):
    """What a rule answers with, which decides the post-hoc steps that can follow it."""

    PROBABILITIES = "probabilities"  # their logarithms [B, C]; some may be minus infinity
    LOGITS = "logits"  # finite logits [B, C]
    ALL_VIEWS = "the logits of all views"  # finite logits [B, V, C]; the first are the answer


class LogitHead(Protocol):
    """Logits from features; `poise.encoding.class_texts.ClassTexts` is one."""

    @property
    def scale(self) -> float:
        """The factor from cosine to logit."""

    def logits(self, image_features: Tensor, text_features: Tensor, /) -> Tensor:
        """Return logits: [B, V, D] x [B or 1, C, D] -> [B, V, C]."""


@dataclass(frozen=True)
class CosineHead:
    """Logits of a model with this scale and bias, for rules that are called without a model.

    Example:
        >>> import torch
        >>> CosineHead(scale=10.0).logits(torch.tensor([[[1.0, 0.0]]]), torch.eye(2)[None]).tolist()
        [[[10.0, 0.0]]]
    """

    scale: float = 100.0  #: factor from cosine to logit
    bias: float = 0.0  #: added to each logit

    def logits(self, image_features: Tensor, text_features: Tensor, /) -> Tensor:
        """Return scale * cosine + bias: [B, V, D] x [B or 1, C, D] -> [B, V, C]."""
        return self.scale * (image_features @ text_features.mT) + self.bias

    def outputs(self, image_features: Tensor, text_features: Tensor) -> Outputs:
        """Return what a rule reads.

        Args:
            image_features: unit features [B, V, D] of views; view 0 is the plain image.
            text_features: unit features [1 or B, C, D] of the labels.
        """
        logits = self.logits(image_features, text_features)
        return Outputs(image_features, text_features, logits, logits)


@dataclass(frozen=True)
class RuleAnswer:
    """A rule's answer for B images."""

    logits: Tensor  #: [B, C], or [B, V, C] if the rule gives all views
    text_features: Tensor | None = None  #: [B, C, D], if the rule changed them


class Rule(ABC):
    """Answers from the outputs under the initial prompt. Row b of the answer depends on image b alone.

    A rule is a frozen dataclass; its fields are its parameters. A field that is also one of `poise.Method`
    (``target``, ``lr``, ``steps``, ...) receives the method's.
    """

    ordered: ClassVar[bool] = False
    gives: ClassVar[Gives] = Gives.LOGITS
    least_views: ClassVar[int] = 1  #: per image, the plain one included
    labelled: ClassVar[bool] = False  #: whether it needs a file made of labelled images

    @property
    def reads_views(self) -> bool:
        """Whether the answer depends on views other than the plain one."""
        return True

    def check(self, model: str, labels: Sequence[str]) -> None:  # noqa: B027  most rules have no file
        """Refuse a model or labels that the rule's file was not made for.

        Args:
            model: the model's name.
            labels: in the order of the classes.
        """

    def published(self, dataset: str) -> Mapping[str, Any]:
        """Return the parameters published for a dataset, if the rule is told to use them; others keep their values."""
        return {}

    @abstractmethod
    def __call__(self, out: Outputs, head: LogitHead) -> RuleAnswer:
        """Return the answer for B images.

        Args:
            out: views [B, V, D], texts [1 or B, C, D] and logits [B, V, C] under the initial prompt.
            head: makes logits of other features.
        """


class StreamRule(Rule):
    """A rule whose answers depend on the images before: it carries a state from image to image."""

    ordered: ClassVar[bool] = True

    @abstractmethod
    def start(self, text_features: Tensor) -> State:
        """Return the state before the first image, for texts [C, D], on their device."""

    @abstractmethod
    def answer(self, state: State, out: Outputs, head: LogitHead) -> tuple[State, RuleAnswer]:
        """Return the next state and the answer for B images in order, as B calls with one image each would.

        Args:
            state: before these images; its tensors are not changed.
            out: views, texts and logits under the initial prompt, all finite.
            head: makes logits of other features.
        """

    def __call__(self, out: Outputs, head: LogitHead) -> RuleAnswer:
        """Return the answers of a stream that consists of these images."""
        return self.answer(self.start(out.text_features[0]), out, head)[1]


rules = Makers[Rule]("rule", Rule)
