"""A picture's file, held in memory; imported also by the processes that read pictures, so free of anything heavy."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Held:
    """Encoded bytes, as a dataset's item stores them."""

    content: bytes

    def load(self) -> bytes:
        """The bytes."""
        return self.content
