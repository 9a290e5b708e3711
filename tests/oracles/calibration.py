"""Slow, plain versions of calibrators, prediction sets and certified thresholds: loops over Python floats."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from fractions import Fraction

Row = Sequence[float]


def temperature(probs: Sequence[Row], t: float) -> list[list[float]]:
    out = []
    for row in probs:
        logits = [math.log(max(p, 2.0**-126)) / t for p in row]
        powers = [math.exp(z - max(logits)) for z in logits]
        out.append([power / math.fsum(powers) for power in powers])
    return out


def beta_confidence(c: float, a: float, b: float, m: float) -> float:
    c = min(max(c, 1e-6), 1 - 1e-6)
    logit = a * math.log(c) - b * math.log(1 - c) + m
    return 1 / (1 + math.exp(-logit)) if logit > -700 else 0.0


def beta(probs: Sequence[Row], a: float, b: float, m: float) -> list[list[float]]:
    """Scale the other classes; where one of them reaches the top label, mix the row with the uniform distribution."""
    out = []
    for row in probs:
        top = max(range(len(row)), key=lambda j: (row[j], -j))
        if len(row) == 1:
            out.append([1.0])
            continue
        even = 1 / len(row)
        q = max(beta_confidence(row[top], a, b, m), even + 0.01 * max(row[top] - even, 0))
        rest = {j: max(p, 2.0**-126) for j, p in enumerate(row) if j != top}
        scale = (1 - q) / math.fsum(rest.values())
        if max(rest.values()) * scale < q:
            out.append([q if j == top else rest[j] * scale for j in range(len(row))])
        else:
            share = (q - even) / max(row[top] - even, 2.0**-126)
            out.append([even + share * (p - even) for p in row])
    return out


def temperature_objective(probs: Sequence[Row], labels: Sequence[int], t: float) -> float:
    total = math.log(t) ** 2 / 2
    for row, y in zip(probs, labels, strict=True):
        logits = [math.log(max(p, 2.0**-126)) / t for p in row]
        total += max(logits) + math.log(math.fsum(math.exp(z - max(logits)) for z in logits)) - logits[y]
    return total


def beta_objective(probs: Sequence[Row], labels: Sequence[int], a: float, b: float, m: float) -> float:
    total = 4 * ((a - 1) ** 2 + (b - 1) ** 2 + m**2) / 2
    for row, y in zip(probs, labels, strict=True):
        q = beta_confidence(max(row), a, b, m)
        total -= math.log(q if list(row).index(max(row)) == y else 1 - q)
    return total


def lac(row: Row, label: int, u: float) -> float:
    return 1 - row[label]


def raps(row: Row, label: int, u: float, penalty: float = 0.01, free: int = 5) -> float:
    order = sorted(range(len(row)), key=lambda j: (-row[j], j))
    rank = order.index(label) + 1
    return math.fsum(row[j] for j in order[:rank]) - u * row[label] + penalty * max(rank - free, 0)


def aps(row: Row, label: int, u: float) -> float:
    return raps(row, label, u, penalty=0.0)


SCORES: dict[str, Callable[[Row, int, float], float]] = {"lac": lac, "aps": aps, "raps": raps}


def sets(
    name: str, probs: Sequence[Row], limits: Sequence[float], u: Sequence[float]
) -> tuple[list[list[bool]], list[bool]]:
    members, empty = [], []
    for row, noise in zip(probs, u, strict=True):
        inside = [SCORES[name](row, j, noise) <= limits[j] + 1e-8 for j in range(len(row))]
        empty.append(not any(inside))
        if empty[-1]:
            inside[max(range(len(row)), key=lambda j: (row[j], -j))] = True
        members.append(inside)
    return members, empty


def quantile(scores: Sequence[float], coverage: str) -> float:
    """Take the coverage as a decimal number, such as "0.9"."""
    rank = math.ceil((len(scores) + 1) * Fraction(coverage))
    return sorted(scores)[rank - 1] if rank <= len(scores) else math.inf


def class_quantiles(scores: Sequence[float], labels: Sequence[int], classes: int, coverage: str) -> list[float]:
    found = []
    for label in range(classes):
        own = [score for score, y in zip(scores, labels, strict=True) if y == label]
        q = quantile(own, coverage)
        found.append(quantile(scores, coverage) if math.isinf(q) else q)
    return found


def binomial_tail(errors: int, images: int, rate: float) -> float:
    """Return the probability of at most ``errors`` errors."""
    return math.fsum(math.comb(images, k) * rate**k * (1 - rate) ** (images - k) for k in range(errors + 1))


def upper_bound(errors: int, images: int, delta: float) -> float:
    """Return the rate at which so few errors have the probability ``delta``, by bisection."""
    if errors >= images:
        return 1.0
    low, high = 0.0, 1.0
    for _ in range(200):
        middle = (low + high) / 2
        low, high = (middle, high) if binomial_tail(errors, images, middle) > delta else (low, middle)
    return high


def certified(
    confidence: Sequence[float], correct: Sequence[bool], max_error: str, delta: str, starts: int
) -> float | None:
    """Return the threshold; a bound is at most ``max_error`` if so few errors at that rate have probability delta.

    Sequence i starts where 2**i times as many images are answered as a test without errors needs.
    """
    rate, level = Fraction(max_error), Fraction(delta) / starts
    needed = next(n for n in range(1, 10_000) if (1 - rate) ** n <= level)
    thresholds = []
    for start in range(starts):
        for value in sorted(set(confidence), reverse=True):
            hits = [hit for c, hit in zip(confidence, correct, strict=True) if c >= value]
            n, errors = len(hits), hits.count(False)
            if n < needed * 2**start:
                continue
            if sum(math.comb(n, k) * rate**k * (1 - rate) ** (n - k) for k in range(errors + 1)) > level:
                break
            thresholds.append(value)
    return min(thresholds, default=None)


def room(images: int, max_error: str, delta: str) -> int:
    """Return the number of sequences that so many images have room for."""
    rate, starts = 1 - Fraction(max_error), 1
    while rate ** (images // 2**starts) <= Fraction(delta) / (starts + 1):
        starts += 1
    return starts
