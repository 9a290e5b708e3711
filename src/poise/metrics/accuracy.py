"""Top-1 and top-k accuracy as fractions."""

from __future__ import annotations

from numpy.typing import ArrayLike

from poise.metrics.checks import in_top, known
from poise.metrics.rows import Metric, mean_of, register


def top_k(probs: ArrayLike, labels: ArrayLike, k: int = 5) -> float:
    """The fraction of images whose label is among the ``k`` most probable classes."""
    return float(in_top(probs, labels, k).mean())


def accuracy(probs: ArrayLike, labels: ArrayLike) -> float:
    """The fraction of images whose most probable class is the label.

    >>> accuracy([[0.9, 0.1], [0.4, 0.6], [0.7, 0.3]], [0, 1, 1])
    0.6666666666666666
    """
    return top_k(probs, labels, 1)


register(Metric(
    name="accuracy", title="Acc.", about="Share of images whose most probable class is right.",
    higher_is_better=True,
    value=lambda sample: float(sample.correct.mean()),
    weighted=lambda sample: mean_of(sample.correct),
))  # fmt: skip
register(Metric(
    name="top5", title="Top-5", about="Share of images whose class is among the five most probable.",
    needs="top5", higher_is_better=True,
    value=lambda sample: float(known(sample.top5).mean()),
    weighted=lambda sample: mean_of(known(sample.top5)),
))  # fmt: skip
