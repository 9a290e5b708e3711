"""The interface of a tuner, whatever its framework."""

from __future__ import annotations

from typing import Protocol

from torch import Tensor

from poise.encoding.class_texts import ClassTexts
from poise.types import Answer


class AnyTuner(Protocol):
    """A tuner of several methods over one label set."""

    @property
    def reads(self) -> str:
        """The input of `predict`: "features" [B, V, D], or "views" [B, V, 3, S, S]."""

    @property
    def ordered(self) -> bool:
        """Whether answers depend on the images before, so that a stream can't be split."""

    @property
    def texts(self) -> ClassTexts:
        """The class texts, for reports about their features."""

    def predict(self, inputs: Tensor, /) -> dict[str, Answer[Tensor]]:
        """Return each method's answers."""
