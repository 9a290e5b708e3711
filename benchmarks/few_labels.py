"""What a few labelled images give: ``python benchmarks/few_labels.py RUN [--splits 100]``.

RUN is the folder of a run with all probabilities (`poise bench run --calibrate N`). For each dataset and method, and
for 25 to 200 labelled images, the images are split at random many times. On the labelled ones a calibrator is chosen,
the quantile of 90 % prediction sets (LAC) is computed and thresholds are certified; everything is measured on the
others. Numbers are means over the splits, in percent. "Failed" is the share of splits whose certified error is exceeded
on the other images, which 5 % of the splits may do (more where few images are answered: their error is itself noisy).
"""

from __future__ import annotations

import argparse
from collections import defaultdict
from pathlib import Path

import numpy as np

from poise.calibration import certify, choose, quantile, scores
from poise.evaluate import records
from poise.metrics import Sample, ece
from poise.metrics.floor import ece_floor

NUMBERS = (25, 50, 100, 200)
COVERAGE = 0.9
ERRORS = (0.05, 0.1)
CERTIFIED = [f"{name} {100 * error:g} %" for error in ERRORS for name in ("certified", "answered", "error", "failed")]
COLUMNS = ("ECE before", "floor", "ECE after", "floor", "beta chosen", "coverage", "size", *CERTIFIED)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path)
    parser.add_argument("--splits", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    print(f"| dataset | method | labelled | {' | '.join(COLUMNS)} |\n|---|---|--:|{'--:|' * len(COLUMNS)}")
    found: dict[tuple[str, int], list[np.ndarray]] = defaultdict(list)
    for (dataset, method), (probs, labels) in read(options.run).items():
        for number in NUMBERS:
            draws = [one_split(probs, labels, number, [options.seed, draw]) for draw in range(options.splits)]
            mean = np.nanmean(np.array(draws), axis=0)
            found[method, number].append(mean)
            print(f"| {dataset} | {method} | {number} | {shown(mean)} |", flush=True)
    for (method, number), rows in found.items():
        print(f"| **mean** | {method} | {number} | {shown(np.nanmean(rows, axis=0))} |")


def read(run: Path) -> dict[tuple[str, str], tuple[np.ndarray, np.ndarray]]:
    """Return probabilities [N, C] and labels [N] by dataset and method, of the first seed."""
    table = records.read(run)
    columns = {name: table[name].to_pylist() for name in ("dataset", "method", "seed", "error", "label")}
    rows: dict[tuple[str, str], list[int]] = defaultdict(list)
    first = min(columns["seed"])
    for at, (dataset, method, seed, error) in enumerate(
        zip(*(columns[name] for name in ("dataset", "method", "seed", "error")), strict=True)
    ):
        if seed == first and error is None:
            rows[dataset.rpartition("/")[2], method].append(at)
    probs = table["probs"]
    return {
        key: (np.array(probs.take(places).to_pylist(), dtype=np.float64), np.array(columns["label"])[places])
        for key, places in rows.items()
    }


def one_split(probs: np.ndarray, labels: np.ndarray, number: int, seed: list[int]) -> list[float]:
    """Return one value per column; NaN where nothing could be certified."""
    order = np.random.default_rng(seed).permutation(len(labels))
    given, others = order[:number], order[number:]
    before = Sample.of(probs[others], labels[others])
    choice = choose(probs[given], labels[given], resamples=1)
    after = Sample.of(choice.calibrator.apply(probs[others]), labels[others])
    lac = scores.get("lac")
    members = lac.sets(probs[others], quantile(lac.of_labels(probs[given], labels[given]), COVERAGE)).members
    row = [
        100 * ece(before.confidence, before.correct),
        100 * ece_floor(before.confidence),
        100 * ece(after.confidence, after.correct),
        100 * ece_floor(after.confidence),
        100.0 * (choice.calibrator.name == "beta"),
        100 * members[np.arange(len(others)), labels[others]].mean(),
        members.sum(1).mean(),
    ]
    known = Sample.of(probs[given], labels[given])
    for error in ERRORS:
        threshold = certify(known.confidence, known.correct, error).threshold
        answered = np.zeros(len(others), bool) if threshold is None else before.confidence >= threshold
        wrong = float((~before.correct[answered]).mean()) if answered.any() else np.nan
        row += [100.0 * (threshold is not None), 100 * answered.mean(), 100 * wrong, 100.0 * (wrong > error)]
    return row


def shown(values: np.ndarray) -> str:
    return " | ".join("" if np.isnan(value) else f"{value:.1f}" for value in values)


if __name__ == "__main__":
    main()
