"""The value of an objective and its gradient with respect to the features that follow from what is tuned."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

import torch
from torch import Tensor

from poise.methods import Method
from poise.objectives import Sum
from poise.types import ClassTokens, Objective, Outputs


@dataclass(frozen=True)
class Features:
    """The tensors that objectives are differentiated with respect to; also their gradient."""

    texts: Tensor  # [n, C, D]; [1, C, D] where all images share them
    images: Tensor | None = None  # [n, V, D], where image prompts are tuned
    tokens: Tensor | None = None  # [n, V, J, T, W], where an objective reads them

    def parts(self) -> dict[str, Tensor]:
        """The tensors that are not None, by name."""
        named = {"texts": self.texts, "images": self.images, "tokens": self.tokens}
        return {name: tensor for name, tensor in named.items() if tensor is not None}

    def per_image(self, rows: Tensor) -> Tensor:
        """From n rows [n, ...] to B images [B, ...]. Here each image has one row."""
        return rows


F = TypeVar("F", bound=Features)
AtFeatures = Callable[[F], Outputs]


class ObjectiveGradient:
    """The value and gradient of a method's objective.

    Terms that read the text features alone have one gradient at an init that all images share. It is stored, so an
    object of this class belongs to one init.
    """

    def __init__(self, objective: Sum) -> None:
        self._whole, self.token_layers = objective, objective.token_layers
        per_image = tuple(term for term in objective.terms if not term[1].text_only)
        self._per_image = Sum(per_image) if per_image else objective
        self._of_texts = Sum(tuple(term for term in objective.terms if term[1].text_only)) if per_image else Sum(())
        self._stored: tuple[Tensor, Tensor] | None = None

    def at_shared(self, features: F, outputs: AtFeatures[F], images: int) -> tuple[Tensor, F]:
        """Values [B] and gradients at text features [1, C, D] that ``images`` share."""
        expanded = replace(features, texts=features.texts.expand(images, -1, -1))
        value, gradient = value_and_gradient(self._per_image, expanded, outputs)
        if self._of_texts.terms:
            if self._stored is None:
                text_value, text_gradient = value_and_gradient(self._of_texts, features, outputs)
                self._stored = text_value, text_gradient.texts
            value, gradient = value + self._stored[0], replace(gradient, texts=gradient.texts + self._stored[1])
        return value, gradient

    def at(self, features: F, outputs: AtFeatures[F]) -> tuple[Tensor, F]:
        """Values [n] and gradients at features of n rows."""
        return value_and_gradient(self._whole, features, outputs)


def value_and_gradient(objective: Objective, features: F, outputs: AtFeatures[F]) -> tuple[Tensor, F]:
    """Return the objective's value [n] and its gradient with respect to all of ``features``."""
    leaves = {name: part.detach().clone().requires_grad_() for name, part in features.parts().items()}
    with torch.enable_grad():
        value = objective(outputs(replace(features, **leaves)))
        gradients = torch.autograd.grad(value.sum(), list(leaves.values()), materialize_grads=True)
    return value.detach(), replace(features, **dict(zip(leaves, gradients, strict=True)))


def objective_gradients(methods: Sequence[Method], classes: ClassTokens) -> dict[str, ObjectiveGradient]:
    """Return the gradients by name, of methods with something to tune: one label alone always has probability 1."""
    return {
        method.name: ObjectiveGradient(method.objective()) for method in methods if method.tunes and len(classes) > 1
    }
