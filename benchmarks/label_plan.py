"""Which images to label: ``python benchmarks/label_plan.py --data DATA --cache FOLDER --clip FILE``.

Populations and options are those of few_labels.py. In each split, half of the images are the unlabelled pool of
`plan_labels`, and everything is measured on the others: how often a threshold is certified with the labels of the plan
and with as many at random, the images that are then answered, and how often their error exceeds the level. "Top 25 %"
is a fixed cut-off, with all labels above it.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
from few_labels import Population, stored_features, zero_shot

from poise.calibration import certify, plan_labels

WAYS = ("at random", "plan", "top 40 %", "top 25 %")


def main() -> None:
    """Print one row per population, level and number of labels."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path)
    parser.add_argument("--cache", type=Path)
    parser.add_argument("--clip", type=Path)
    parser.add_argument("--model", default="pocket")
    parser.add_argument("--sets", nargs="+", default=["caltech101", "imagenet", "pets"])
    parser.add_argument("--levels", type=float, nargs="+", default=[0.05, 0.1, 0.2])
    parser.add_argument("--budgets", type=int, nargs="+", default=[100])
    parser.add_argument("--splits", type=int, default=100)
    options = parser.parse_args()
    populations: dict[str, Population] = {}
    if options.data is not None:
        populations |= zero_shot(options.model, options.sets, options.data, options.cache)
    if options.clip is not None:
        populations |= stored_features(options.clip)
    print("Percent of splits with a certificate / of images answered / of splits in which the level is exceeded")
    print(f"| population | level | labels | {' | '.join(WAYS)} | share above the cut-off |\n|---|--:|--:|{'--:|' * 5}")
    for name, (probs, labels) in populations.items():
        top, right = probs.max(1), probs.argmax(1) == labels
        for level in options.levels:
            for budget in options.budgets:
                rows = np.array([one_split(top, right, level, budget, seed) for seed in range(options.splits)])
                cells = [
                    " / ".join(f"{value:.0f}" for value in part) for part in 100 * rows.mean(0)[:-1].reshape(-1, 3)
                ]
                share = f"{100 * rows[:, -1].mean():.0f}"
                print(f"| {name} | {100 * level:g} % | {budget} | {' | '.join(cells)} | {share} |", flush=True)


def one_split(top: np.ndarray, right: np.ndarray, level: float, budget: int, seed: int) -> list[float]:
    """Return three numbers for each way to choose the labels, and the plan's share of images above its cut-off."""
    order = np.random.default_rng([seed, budget]).permutation(len(top))
    pool, others = order[: len(top) // 2], order[len(top) // 2 :]
    plan = plan_labels(top[pool], budget, max_error=level, seed=seed)
    planned = pool[np.concatenate([plan.random, plan.above])]
    chosen = [pool[:budget], planned[top[planned] > plan.cutoff]]
    for share in (0.4, 0.25):
        chosen.append(pool[top[pool] > np.quantile(top[pool], 1 - share)][:budget])
    found: list[float] = []
    for images in chosen:
        threshold = certify(top[images], right[images], level).threshold
        answered = top[others] >= (2 if threshold is None else threshold)
        wrong = float((~right[others][answered]).mean()) if answered.any() else 0.0
        found += [float(threshold is not None), float(answered.mean()), float(wrong > level)]
    return [*found, plan.share]


if __name__ == "__main__":
    main()
