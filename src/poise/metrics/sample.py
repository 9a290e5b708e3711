"""The predictions that metrics read."""

from __future__ import annotations

from dataclasses import dataclass

from numpy.typing import ArrayLike

from poise.metrics.checks import Bools, Floats, Ints, checked_probs, checked_top, in_top


@dataclass(frozen=True)
class Sample:
    """Predictions for N images; ``probs`` and ``labels`` are missing where only the top label was kept."""

    confidence: Floats  # [N]
    correct: Bools  # [N]
    top5: Bools | None = None  # [N]
    probs: Floats | None = None  # [N, C]
    labels: Ints | None = None  # [N]

    @classmethod
    def of(cls, probs: ArrayLike, labels: ArrayLike) -> Sample:
        """The sample of full probabilities [N, C] and labels [N]."""
        table, truth = checked_probs(probs, labels)
        return cls(table.max(1), table.argmax(1) == truth, in_top(table, truth, 5), table, truth)

    @classmethod
    def of_top(cls, confidence: ArrayLike, correct: ArrayLike, top5: Bools | None = None) -> Sample:
        """The sample of top-label confidences [N] alone."""
        values, hits = checked_top(confidence, correct)
        return cls(values, hits, top5)

    def __len__(self) -> int:
        return len(self.confidence)

    def take(self, rows: Ints) -> Sample:
        """The images at the positions ``rows``, which may repeat."""
        parts = (self.confidence, self.correct, self.top5, self.probs, self.labels)
        return Sample(*(None if part is None else part[rows] for part in parts))  # type: ignore[arg-type]
