"""What the rest of poise asks of a tuner, whatever its framework."""

from __future__ import annotations

from typing import Protocol

from torch import Tensor

from poise.encoding.class_texts import ClassTexts
from poise.types import Adapted


class AnyTuner(Protocol):
    """Images in, each method's answers out."""

    @property
    def reads(self) -> str:
        """What `predict` takes: "features" [B, V, D], or "views" [B, V, 3, S, S]."""

    @property
    def ordered(self) -> bool:
        """Whether answers depend on the images before, so that a stream can't be split."""

    @property
    def texts(self) -> ClassTexts:
        """The class texts, for reports about their features."""

    def predict(self, inputs: Tensor, /) -> dict[str, Adapted]:
        """Each method's answers."""
