"""Slow, plain versions of the metrics: one loop per definition, Python floats, edges in exact fractions."""

from __future__ import annotations

import itertools
import struct
from collections.abc import Sequence
from fractions import Fraction


def float32(value: Fraction | float) -> float:
    return float(struct.unpack("f", struct.pack("f", value))[0])


def edges(bins: int = 20) -> list[float]:
    """Multiples of float32(1 / bins), counted from the nearer end, rounded to float32 once."""
    step = Fraction(float32(1 / bins))
    exact = [k * step if k < (bins + 1) // 2 else 1 - (bins - k) * step for k in range(bins + 1)]
    return [float32(edge) for edge in exact]


def ece_and_mce(confidence: Sequence[float], correct: Sequence[bool], bins: int = 20) -> tuple[float, float]:
    expected, largest = 0.0, 0.0
    for lower, upper in itertools.pairwise(edges(bins)):
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
    ranks = [round(float32(edge * last)) for edge in edges(bins)]
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


def ece_floor(confidence: Sequence[float], bins: int = 20) -> float:
    """The exact expectation: the distribution of the number of hits in each bin, one image at a time."""
    total = 0.0
    for lower, upper in itertools.pairwise(edges(bins)):
        inside = [value for value in confidence if lower < value <= upper or value == lower == 0]
        chance = [1.0]  # of 0, 1, 2, ... hits
        for value in inside:
            chance = [
                (chance[k] * (1 - value) if k < len(chance) else 0.0) + (chance[k - 1] * value if k else 0.0)
                for k in range(len(chance) + 1)
            ]
        total += sum(share * abs(hits - sum(inside)) for hits, share in enumerate(chance))
    return total / len(confidence)


def auroc(confidence: Sequence[float], correct: Sequence[bool]) -> float:
    right = [value for value, hit in zip(confidence, correct, strict=True) if hit]
    wrong = [value for value, hit in zip(confidence, correct, strict=True) if not hit]
    wins = [1.0 if one > two else 0.5 if one == two else 0.0 for one in right for two in wrong]
    return sum(wins) / len(wins) if wins else 0.5
