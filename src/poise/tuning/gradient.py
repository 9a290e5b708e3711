"""An objective's value and its gradient with respect to the features that follow from what is tuned."""

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
    """What objectives are differentiated with respect to; also the gradient itself, in the same places."""

    texts: Tensor  # [n, C, D]; [1, C, D] where all images share them
    images: Tensor | None = None  # [n, V, D], where image prompts are tuned
    tokens: Tensor | None = None  # [n, V, J, T, W], where an objective reads them

    def parts(self) -> dict[str, Tensor]:
        """The tensors that are there, by name."""
        named = {"texts": self.texts, "images": self.images, "tokens": self.tokens}
        return {name: tensor for name, tensor in named.items() if tensor is not None}

    def per_image(self, rows: Tensor) -> Tensor:
        """Numbers of the n rows [n, ...] -> of the B images [B, ...]. Here each image has one row."""
        return rows


F = TypeVar("F", bound=Features)
AtFeatures = Callable[[F], Outputs]


class ObjectiveGradient:
    """The value and gradient of a method's objective.

    Terms that read the text features alone have one gradient at an init that all images share. It is kept, so an
    object of this class belongs to one init.
    """

    def __init__(self, objective: Sum) -> None:
        self._whole = objective
        self._per_image = tuple(term for term in objective.terms if not term[1].text_only)
        self._of_texts = tuple(term for term in objective.terms if term[1].text_only)
        self._kept: tuple[Tensor, Tensor] | None = None
        self.token_layers = objective.token_layers

    def at_shared(self, features: F, outputs: AtFeatures[F], images: int) -> tuple[Tensor, F]:
        """Values [B] and gradients at text features [1, C, D] that ``images`` share."""
        own = replace(features, texts=features.texts.expand(images, -1, -1))
        if self._per_image:
            value, gradient = value_and_gradient(Sum(self._per_image), own, outputs)
        else:
            value = features.texts.new_zeros(images)
            gradient = replace(own, **{name: torch.zeros_like(part) for name, part in own.parts().items()})
        if self._of_texts:
            if self._kept is None:
                found, at = value_and_gradient(Sum(self._of_texts), features, outputs)
                self._kept = found, at.texts
            value, gradient = value + self._kept[0], replace(gradient, texts=gradient.texts + self._kept[1])
        return value, gradient

    def at(self, features: F, outputs: AtFeatures[F]) -> tuple[Tensor, F]:
        """Values [n] and gradients at each row's own features."""
        return value_and_gradient(self._whole, features, outputs)


def value_and_gradient(objective: Objective, features: F, outputs: AtFeatures[F]) -> tuple[Tensor, F]:
    """The objective's value [n] and its gradient with respect to all of ``features``."""
    leaves = {name: part.detach().clone().requires_grad_() for name, part in features.parts().items()}
    with torch.enable_grad():
        value = objective(outputs(replace(features, **leaves)))
        found = torch.autograd.grad(value.sum(), list(leaves.values()), materialize_grads=True)
    return value.detach(), replace(features, **dict(zip(leaves, found, strict=True)))


def objective_gradients(methods: Sequence[Method], classes: ClassTokens) -> dict[str, ObjectiveGradient]:
    """By name, for each method that has something to tune here: one label alone has probability 1 whatever is done."""
    return {
        method.name: ObjectiveGradient(method.objective()) for method in methods if method.tunes and len(classes) > 1
    }
