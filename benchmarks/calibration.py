"""Speed of calibrators and prediction sets against plain NumPy: ``python benchmarks/calibration.py``.

Each pipeline calibrates probabilities in float32 and turns them into sets. The wall time depends on what else runs on
the machine; the CPU time, summed over threads, hardly does. The plain implementation works in float64 on fewer images,
and its time is scaled to all of them. It checks nothing, and under beta calibration it lets other classes overtake the
top label, which is where its decisions differ.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from functools import partial

import numpy as np
from scipy import special

from poise.calibration import Beta, Calibrator, Temperature, scores

QUANTILES = {"lac": 0.95, "aps": 0.9, "raps": 0.95}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--images", type=int, default=50_000)
    parser.add_argument("--classes", type=int, default=1000)
    parser.add_argument("--plain-images", type=int, default=2000, help="images of the plain implementation")
    parser.add_argument("--repeats", type=int, default=3)
    options = parser.parse_args()
    generator = np.random.default_rng(0)
    logits = generator.standard_normal((options.images, options.classes), dtype=np.float32)
    probs = special.softmax(4 * logits, axis=1)
    del logits
    u = generator.random(options.images)
    few = slice(options.plain_images)
    for calibrator in (Temperature(1.3), Beta(0.8, 0.6, -0.2, temperature=1.3)):
        for name, limit in QUANTILES.items():
            ours = partial(fast, calibrator, name, probs, limit, u)
            members, wall, cpu = measured(ours, options.repeats)
            expected, _, slow = measured(partial(plain, calibrator, name, probs[few], limit, u[few]), 1)
            slow *= options.images / len(expected)
            differ = (members[few] != expected).mean()
            print(
                f"{calibrator.name:11s} {name:4s}  wall {wall:5.2f} s  CPU {cpu:5.2f} s  plain CPU {slow:6.2f} s  "
                f"ratio {slow / cpu:4.1f}  mean size {members.sum(1).mean():6.2f}  "
                f"differing decisions {differ:.1e}",
                flush=True,
            )


def measured(work: Callable[[], np.ndarray], repeats: int) -> tuple[np.ndarray, float, float]:
    """Return the result, and the shortest wall and CPU time."""
    times = []
    for _ in range(repeats):
        wall, cpu = time.perf_counter(), time.process_time()
        result = work()
        times.append((time.perf_counter() - wall, time.process_time() - cpu))
    return result, min(wall for wall, _ in times), min(cpu for _, cpu in times)


def fast(calibrator: Calibrator, name: str, probs: np.ndarray, limit: float, u: np.ndarray) -> np.ndarray:
    return scores.get(name).sets(calibrator.apply(probs), limit, u).members


def plain(calibrator: Temperature | Beta, name: str, probs: np.ndarray, limit: float, u: np.ndarray) -> np.ndarray:
    """Compute the same in float64 on the whole table, with a stable sort of indices."""
    wide = probs.astype(np.float64)
    table = special.softmax(np.log(np.maximum(wide, 1e-38)) / calibrator.temperature, axis=1)
    if isinstance(calibrator, Beta):
        top, rows = table.argmax(1), np.arange(len(wide))
        c = np.clip(table[rows, top], 1e-6, 1 - 1e-6)
        q = special.expit(calibrator.a * np.log(c) - calibrator.b * np.log1p(-c) + calibrator.m)
        table *= ((1 - q) / (1 - c))[:, None]
        table[rows, top] = q
    if name == "lac":
        return 1 - table <= limit
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
