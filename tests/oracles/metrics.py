"""Slow, plain versions of the metrics: one loop per definition, Python floats, the edges that torch.linspace gives."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import torch


def ece_and_mce(confidence: Sequence[float], correct: Sequence[bool], bins: int = 20) -> tuple[float, float]:
    edges = torch.linspace(0, 1, bins + 1).tolist()
    expected, largest = 0.0, 0.0
    for lower, upper in itertools.pairwise(edges):
        inside = [i for i, value in enumerate(confidence) if lower < value <= upper or value == lower == 0]
        if inside:
            gap = abs(sum(correct[i] for i in inside) - sum(confidence[i] for i in inside)) / len(inside)
            expected += gap * len(inside) / len(confidence)
            largest = max(largest, gap)
    return expected, largest


def sce(probs: Sequence[Sequence[float]], labels: Sequence[int], bins: int = 20) -> float:
    classes = len(probs[0])
    per_class = [
        ece_and_mce([row[k] for row in probs], [label == k for label in labels], bins)[0] for k in range(classes)
    ]
    return sum(per_class) / classes


def adaptive_ece(confidence: Sequence[float], correct: Sequence[bool], bins: int = 20) -> float:
    ranked, last = sorted(confidence), len(confidence) - 1
    ranks = (torch.linspace(0, 1, bins + 1) * last).round().long().tolist()
    limits = sorted({ranked[rank] for rank in ranks})
    if len(limits) == 1:
        limits = limits * 2
    total = 0.0
    for at, (lower, upper) in enumerate(itertools.pairwise(limits)):
        inside = [i for i, c in enumerate(confidence) if c <= upper and (c > lower or at == 0)]
        total += abs(sum(correct[i] for i in inside) - sum(confidence[i] for i in inside))
    return total / len(confidence)


def aurc(confidence: Sequence[float], correct: Sequence[bool]) -> float:
    """Without ties."""
    order = sorted(range(len(confidence)), key=lambda i: -confidence[i])
    wrong, total = 0, 0.0
    for answered, i in enumerate(order, start=1):
        wrong += not correct[i]
        total += wrong / answered
    return total / len(order)
