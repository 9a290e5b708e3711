"""Slow, plain versions of calibrators, prediction sets and certified thresholds: loops over Python floats."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from fractions import Fraction

Row = Sequence[float]


def temperature(row: Row, t: float) -> list[float]:
    logits = [math.log(max(p, 2.0**-126)) / t for p in row]
    powers = [math.exp(z - max(logits)) for z in logits]
    return [power / math.fsum(powers) for power in powers]


def curve(c: float, a: float, b: float, m: float) -> float:
    c = min(max(c, 1e-6), 1 - 1e-6)
    logit = a * math.log(c) - b * math.log(1 - c) + m
    return 1 / (1 + math.exp(-logit)) if logit > -700 else 0.0


def calibrated(row: Row, curves: Sequence[Sequence[float]]) -> list[float]:
    """Average the rows of curves (weight, temperature, a, b, m).

    Where a class reaches the top label, mix the row at its temperatures with the uniform distribution.
    """
    size, top = len(row), max(range(len(row)), key=lambda j: (row[j], -j))
    if size == 1:
        return [1.0]
    out, plain = [0.0] * size, [0.0] * size
    for weight, t, a, b, m in curves:
        scaled = temperature(row, t)
        q = curve(scaled[top], a, b, m)
        rest = {j: max(p, 2.0**-126) for j, p in enumerate(scaled) if j != top}
        for j in range(size):
            plain[j] += weight * scaled[j]
            out[j] += weight * (q if j == top else rest[j] * (1 - q) / math.fsum(rest.values()))
    even = 1 / size
    chance = max(out[top], even + 0.01 * max(plain[top] - even, 0))
    total = math.fsum(out[j] for j in range(size) if j != top)
    out = [chance if j == top else out[j] * (1 - chance) / total for j in range(size)]
    if max(out[j] for j in range(size) if j != top) < chance:
        return out
    share = min((chance - even) / max(plain[top] - even, 2.0**-126), 1)
    return [even + share * (p - even) for p in plain]


def posterior_mean(
    probs: Sequence[Row], labels: Sequence[int], unchanged: float, scales: Sequence[float], tests: Sequence[float]
) -> list[float]:
    """Return the calibrated confidences of ``tests``, which are confidences of two classes.

    The prior is cut into cells of equal probability along each axis (quantiles of Student's t with 2 degrees of
    freedom), and each cell is represented by its middle.
    """
    cells = [(2 * at + 1) / (2 * CELLS) for at in range(CELLS)]
    nodes = [(2 * u - 1) * math.sqrt(1 / (2 * u * (1 - u))) for u in cells]
    total, means = 0.0, [0.0] * len(tests)
    points = [(0.0, 0.0, 0.0, unchanged * CELLS**3)]
    points += [
        (scales[0] * x, scales[1] * y, scales[2] * z, 1 - unchanged) for x in nodes for y in nodes for z in nodes
    ]
    scaled: dict[float, list[list[float]]] = {}
    for theta, m, log_b, weight in points:
        t, b = math.exp(min(max(theta, -5), 5)), math.exp(min(max(log_b, -5), 5))
        rows = scaled.setdefault(t, [temperature(row, t) for row in (*probs, *([c, 1 - c] for c in tests))])
        for row, given, y in zip(rows, probs, labels, strict=False):
            top = max(range(len(row)), key=lambda j: (given[j], -j))
            q = curve(row[top], b, b, m)
            share = 0.95 * row[y] / (1 - row[top]) + 0.05 / (len(row) - 1)
            weight *= q if y == top else (1 - q) * share
        total += weight
        for at, row in enumerate(rows[len(probs) :]):
            means[at] += weight * curve(row[0], b, b, m)
    return [mean / total for mean in means]


CELLS = 24


def lac(row: Row, label: int, u: float) -> float:
    return -math.log(max(row[label], 1e-300))


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
    """Classes that have too few images are taken together; if they still have too few, with the next smallest ones."""
    by_class = [[score for score, y in zip(scores, labels, strict=True) if y == label] for label in range(classes)]
    order = sorted(range(classes), key=lambda label: len(by_class[label]))
    together = [label for label in order if math.isinf(quantile(by_class[label], coverage))]
    if together:
        while (
            math.isinf(quantile([score for at in together for score in by_class[at]], coverage))
            and len(together) < classes
        ):
            together = order[: len(together) + 1]
    rest = quantile([score for at in together for score in by_class[at]], coverage)
    return [rest if label in together else quantile(by_class[label], coverage) for label in range(classes)]


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


def first_rank(images: int, max_error: str, delta: str) -> int:
    """Return the last rank up to a quarter of the images at which one more error is allowed than at the rank before."""
    rate, level = Fraction(max_error), Fraction(delta)

    def allowed(n: int) -> int:
        errors = -1
        while errors < n and fewer(errors + 1, n, rate) <= level:
            errors += 1
        return errors

    needed = next(n for n in range(1, 10_000) if (1 - rate) ** n <= level)
    ranks = [n for n in range(needed, max(needed, images // 4) + 1) if allowed(n) > allowed(n - 1)]
    return ranks[-1]


def fewer(errors: int, n: int, rate: Fraction) -> Fraction:
    """Return the exact probability of at most ``errors`` errors."""
    return sum((math.comb(n, k) * rate**k * (1 - rate) ** (n - k) for k in range(errors + 1)), Fraction(0))


def certified(
    confidence: Sequence[float], correct: Sequence[bool], max_error: str, delta: str, start: int
) -> float | None:
    """Return the threshold; a bound is at most ``max_error`` if so few errors at that rate have probability delta."""
    found = None
    for value in sorted(set(confidence), reverse=True):
        hits = [hit for c, hit in zip(confidence, correct, strict=True) if c >= value]
        if len(hits) < start:
            continue
        if fewer(hits.count(False), len(hits), Fraction(max_error)) > Fraction(delta):
            break
        found = value
    return found
