"""Speed of calibrating, and of calibrated sets against plain NumPy: ``python benchmarks/calibration.py``.

First, 1,000 images with 1,000 labels are calibrated as `poise calibrate --probabilities` does: metrics with intervals,
the calibrator, cross-validation, scores and the recommendation. Then the calibrator that was fitted is applied to many
probabilities in float32, alone and before each kind of set.

The wall time depends on what else runs on the machine; the CPU time, summed over threads, hardly does. The plain
implementation works in float64 on fewer images, and its time is scaled to all of them. It checks nothing, and it lets
other classes overtake the top label, which is where its decisions differ.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from functools import partial
from typing import TypeVar

import numpy as np
from scipy import special

from poise.calibration import Calibrator, calibrate_probabilities, fit_calibrator, scores

QUANTILES = {"": 0.0, "lac": 3.0, "aps": 0.9, "raps": 0.95}
LABELLED = 1000
T = TypeVar("T")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=int, default=50_000)
    parser.add_argument("--classes", type=int, default=1000)
    parser.add_argument("--plain-images", type=int, default=200, help="images of the plain implementation")
    parser.add_argument("--repeats", type=int, default=3)
    options = parser.parse_args()
    generator = np.random.default_rng(0)
    logits = generator.standard_normal((options.images, options.classes), dtype=np.float32)
    probs = special.softmax(4 * logits, axis=1)
    del logits
    right = np.cumsum(probs[:LABELLED], axis=1, dtype=np.float64)
    labels = (right < generator.random((LABELLED, 1)) * right[:, -1:]).sum(1)
    given = special.softmax(2 * np.log(np.maximum(probs[:LABELLED], 1e-30)), axis=1)  # too sure of itself
    _, wall, cpu = measured(partial(calibrate_probabilities, given, labels), options.repeats)
    print(f"calibrate {LABELLED} x {options.classes}  wall {wall:5.2f} s  CPU {cpu:5.2f} s")
    calibrator = fit_calibrator(given, labels).calibrator
    print(f"{len(calibrator.curves)} curves with {len(list(calibrator.groups()))} temperatures")
    u = generator.random(options.images)
    few = slice(options.plain_images)
    for name, limit in QUANTILES.items():
        found, wall, cpu = measured(partial(fast, calibrator, name, probs, limit, u), options.repeats)
        expected, _, slow = measured(partial(plain, calibrator, name, probs[few], limit, u[few]), 1)
        slow *= options.images / len(expected)
        differ = (found[few] != expected).mean() if name else np.abs(found[few] - expected).max()
        print(
            f"{name or 'probabilities':13s}  wall {wall:5.2f} s  CPU {cpu:5.2f} s  plain CPU {slow:7.2f} s  "
            f"ratio {slow / cpu:5.1f}  {'differing decisions' if name else 'largest difference'} {differ:.1e}",
            flush=True,
        )


def measured(work: Callable[[], T], repeats: int) -> tuple[T, float, float]:
    """Return the result, and the shortest wall and CPU time."""
    times = []
    for _ in range(repeats):
        wall, cpu = time.perf_counter(), time.process_time()
        result = work()
        times.append((time.perf_counter() - wall, time.process_time() - cpu))
    return result, min(wall for wall, _ in times), min(cpu for _, cpu in times)


def fast(calibrator: Calibrator, name: str, probs: np.ndarray, limit: float, u: np.ndarray) -> np.ndarray:
    table = calibrator.apply(probs)
    return scores.get(name).sets(table, limit, u).members if name else table


def plain(calibrator: Calibrator, name: str, probs: np.ndarray, limit: float, u: np.ndarray) -> np.ndarray:
    """Compute the same in float64 on the whole table, with a stable sort of indices."""
    wide = probs.astype(np.float64)
    rows, top, table = np.arange(len(wide)), wide.argmax(1), np.zeros_like(wide)
    for weight, temperature, a, b, m in calibrator.curves:
        scaled = special.softmax(np.log(np.maximum(wide, 1e-38)) / temperature, axis=1)
        c = np.clip(scaled[rows, top], 1e-6, 1 - 1e-6)
        q = special.expit(a * np.log(c) - b * np.log1p(-c) + m)
        scaled *= ((1 - q) / (1 - c))[:, None]
        scaled[rows, top] = q
        table += weight * scaled
    if not name:
        return table
    if name == "lac":
        return -np.log(np.maximum(table, 1e-300)) <= limit
    order = np.argsort(-table, axis=1, kind="stable")
    ranked = np.take_along_axis(table, order, axis=1)
    total = np.cumsum(ranked, axis=1) - u[:, None] * ranked
    if name == "raps":
        total += 0.01 * np.maximum(np.arange(1, table.shape[1] + 1) - 5, 0)
    inside = np.empty(table.shape, dtype=bool)
    np.put_along_axis(inside, order, total <= limit, axis=1)
    return inside


if __name__ == "__main__":
    main()
