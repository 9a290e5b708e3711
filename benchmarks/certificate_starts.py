"""Where the sequences of `certify` should start, on simulated models: `python benchmarks/certificate_starts.py`.

An answer is right with the probability sigmoid(z), z normal with a mean and a spread; confidences have the order of z
plus noise. The worlds run from models that are mostly wrong to such that are nearly always right. Printed for each
choice of the second start: the share of draws with a certificate and the share of images that it answers, as means over
all worlds, numbers of images and errors, and the worst and the best change from a single start at a quarter.
"""

from __future__ import annotations

import argparse
import itertools

import numpy as np
from scipy import stats

from poise.calibration.certify import first_rank, images_for_error

DELTA = 0.05
WORLDS = list(itertools.product((-1, 0, 1, 2, 3, 4, 5), (1.0, 2.5), (0.0, 1.5)))  # mean, spread, noise
IMAGES = (50, 100, 150, 200, 300, 400, 700)
ERRORS = (0.01, 0.02, 0.05, 0.1, 0.2)
Parts = list[tuple[float, float]]  # share of delta, and of the images


def choices() -> dict[str, Parts]:
    """Return what is compared."""
    found: dict[str, Parts] = {"one start at 0.25": [(1.0, 0.25)], "one start at 0.5": [(1.0, 0.5)]}
    for part, share in itertools.product((0.05, 0.1, 0.2), (0.6, 0.8, 0.9, 1.0)):
        found[f"and {part} of delta at {share}"] = [(1 - part, 0.25), (part, share)]
    return found


def errors_by_rank(world: tuple[float, float, float], images: int, draws: int, seed: int) -> np.ndarray:
    """Return the number of errors [draws, images] among the surest answers."""
    mean, spread, noise = world
    generator = np.random.default_rng(seed)
    z = mean + spread * generator.standard_normal((draws, images))
    wrong = generator.random(z.shape) >= 1 / (1 + np.exp(-z))
    order = np.argsort(-(z + noise * generator.standard_normal(z.shape)), axis=1)
    return np.take_along_axis(wrong, order, axis=1).cumsum(1)


def answered(errors: np.ndarray, max_error: float, parts: Parts) -> np.ndarray:
    """Return how many images [draws] are answered at the certified threshold; 0 without one."""
    draws, images = errors.shape
    ranks, best = np.arange(1, images + 1), np.zeros(draws, dtype=int)
    if any(share * images < images_for_error(max_error, part * DELTA) for part, share in parts[1:]):
        parts = [(1.0, parts[0][1])]
    for part, share in parts:
        start = first_rank(images, max_error, part * DELTA, share)
        if start > images:
            continue
        allowed = stats.binom.ppf(part * DELTA, ranks, max_error).astype(int)
        allowed -= stats.binom.cdf(allowed, ranks, max_error) > part * DELTA * (1 + 1e-9)
        passed = errors[:, start - 1 :] <= allowed[start - 1 :]
        run = np.where(passed.all(1), passed.shape[1], passed.argmin(1))
        best = np.maximum(best, np.where(run > 0, start - 1 + run, 0))
    return best


def main() -> None:
    """Print the comparison."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--draws", type=int, default=400)
    draws = parser.parse_args().draws
    found: dict[str, list[tuple[float, float]]] = {name: [] for name in choices()}
    for seed, (world, images) in enumerate(itertools.product(WORLDS, IMAGES)):
        errors = errors_by_rank(world, images, draws, seed)
        for max_error in ERRORS:
            if images >= images_for_error(max_error, DELTA):
                for name, parts in choices().items():
                    number = answered(errors, max_error, parts)
                    found[name].append((float((number > 0).mean()), float(number.mean()) / images))
    base = np.array(next(iter(found.values())))
    print(f"{'':26}  certified  answered  worst change  best change   (of certified; {len(base)} cells)")
    for name, rows in found.items():
        table = np.array(rows)
        change = (table - base)[:, 0]
        print(f"{name:26}  {table[:, 0].mean():9.3f}  {table[:, 1].mean():8.3f}", end="")
        print(f"  {change.min():+12.2f}  {change.max():+11.2f}")


if __name__ == "__main__":
    main()
