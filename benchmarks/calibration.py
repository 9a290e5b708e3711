"""Speed of calibrators and prediction sets against plain NumPy: ``python benchmarks/calibration.py``.

Each pipeline calibrates probabilities in float32 and turns them into sets. The wall time depends on what else runs on
the machine; the CPU time, summed over threads, hardly does. The plain implementation works in float64 on fewer images,
and its time is scaled to all of them. It checks nothing, and it lets other classes overtake the top label, which is
where its decisions differ.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from functools import partial

import numpy as np
from scipy import special

from poise.calibration import Calibrator, Curve, scores

QUANTILES = {"lac": 3.0, "aps": 0.9, "raps": 0.95}
CURVE = Curve(1.0, 1.3, 0.8, 0.6, -0.2)
SEVERAL = tuple(
    Curve(1 / 150, float(t), 1.0, 1.0, float(m)) for t in np.linspace(0.8, 2, 6) for m in np.linspace(-1, 1, 25)
)  # as many as a fit gives


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
    for calibrator in (Calibrator((CURVE,)), Calibrator(SEVERAL)):
        for name, limit in QUANTILES.items():
            ours = partial(fast, calibrator, name, probs, limit, u)
            members, wall, cpu = measured(ours, options.repeats)
            expected, _, slow = measured(partial(plain, calibrator, name, probs[few], limit, u[few]), 1)
            slow *= options.images / len(expected)
            differ = (members[few] != expected).mean()
            print(
                f"{len(calibrator.curves):3d} curves {name:4s}  wall {wall:5.2f} s  CPU {cpu:5.2f} s  "
                f"plain CPU {slow:6.2f} s  ratio {slow / cpu:4.1f}  mean size {members.sum(1).mean():6.2f}  "
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
