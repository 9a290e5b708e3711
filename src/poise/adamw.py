"""AdamW on a batch of prompts (Loshchilov and Hutter, 2019).

Every operation is element by element, so B prompts stepped in one batch equal B prompts stepped apart. torch's
optimiser gives the same numbers, but it owns its parameters; here the state is a value, zero at first for each image.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Protocol, TypeVar

import torch
from torch import Tensor


class Parameters(Protocol):
    """Named tensors [B, ...] that are stepped together: a `Prompt`, or MaPLe's `Coupled`."""

    def parts(self) -> dict[str, Tensor]:
        """Return the tensors by name; the class accepts them as keyword arguments."""


P = TypeVar("P", bound=Parameters)


@dataclass(frozen=True)
class AdamW:
    """The optimiser's settings and state; ``step`` returns the stepped prompt and the next state."""

    lr: float = 5e-3
    weight_decay: float = 0.01
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8
    count: int = 0
    mean: dict[str, Tensor] | None = None
    square: dict[str, Tensor] | None = None

    def step(self, prompt: P, gradient: P) -> tuple[P, AdamW]:
        """Return the prompts after one step, and the optimiser for the next one.

        Args:
            prompt: prompts [B, ...], or one [1, ...] that all images share.
            gradient: of each image [B, ...].
        """
        count, means, squares, stepped = self.count + 1, {}, {}, {}
        for name, grad in gradient.parts().items():
            means[name] = _decayed(self.mean, name, self.betas[0], grad)
            squares[name] = _decayed(self.square, name, self.betas[1], grad * grad)
            stepped[name] = self._moved(prompt.parts()[name], means[name], squares[name], count)
        return type(prompt)(**stepped), replace(self, count=count, mean=means, square=squares)

    def _moved(self, value: Tensor, mean: Tensor, square: Tensor, count: int) -> Tensor:
        first, second = 1 - self.betas[0] ** count, 1 - self.betas[1] ** count
        scale = square.sqrt() / second**0.5 + self.eps
        return value * (1 - self.lr * self.weight_decay) - self.lr / first * (mean / scale)


def _decayed(state: dict[str, Tensor] | None, name: str, beta: float, value: Tensor) -> Tensor:
    before = torch.zeros_like(value) if state is None else state[name]
    return beta * before + (1 - beta) * value
