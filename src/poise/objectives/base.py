"""The registry of objectives, and their weighted sum."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor

from poise.registry import Registry
from poise.types import Objective, Outputs

objectives: Registry[Callable[..., Objective]] = Registry("objective")


def text_only(objective: Objective) -> bool:
    """Whether the objective reads the text features alone, so that its gradient is the same for every image.

    Such a class says so with ``text_only = True``. At the shared starting prompt its gradient is computed once.
    """
    return bool(getattr(objective, "text_only", False))


@dataclass(frozen=True)
class Sum:
    """A weighted sum of objectives."""

    terms: tuple[tuple[float, Objective], ...]

    def __call__(self, out: Outputs) -> Tensor:
        """[B]."""
        weighted = [weight * term(out) for weight, term in self.terms]
        total = weighted[0]
        for value in weighted[1:]:
            total = total + value
        return total
