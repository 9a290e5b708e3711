"""How often the promises of independent labels and of trees fail: ``python benchmarks/label_guarantees.py``.

Simulated worlds with known probabilities (those of tests/calibration, where shorter simulations run as tests): in each
draw, 20 to 200 calibration images, certified thresholds for 5 to 500 labels, and what these thresholds do in the whole
population. A promise fails if the population's error, precision or recall is worse than what was certified, for any
label; it may in at most 5 % of the draws. Draws that certify nothing promise nothing, and count as kept.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))
from tests.calibration.test_independent import failures
from tests.calibration.test_tree import exceeded, population

IMAGES = (20, 50, 100, 200)
LABELS = (5, 50, 500)
ERRORS = (0.1, 0.2, 0.3)
KINDS = {"right": "exact", "sure": "too sure", "odd": "the surest are wrong most often"}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--draws", type=int, default=2000)
    options = parser.parse_args()
    print("| labels | images | yes: thresholds per draw | precision fails % | recall fails % |\n|--:|--:|--:|--:|--:|")
    for labels in LABELS:
        for images in IMAGES:
            draws = options.draws if labels < 500 else max(options.draws // 10, 1)
            precision, recall, found = failures(images, labels, draws, 0.7)
            print(f"| {labels} | {images} | {found / draws:.2f} | {share(precision, draws)} | {share(recall, draws)} |")
    print(f"\n(Precision and recall of 70 %; {options.draws} draws, a tenth of them for 500 labels.)\n")
    print(
        "| labels | probabilities | images | certified % | fails %, of draws | fails %, worst error |\n"
        "|--:|---|--:|--:|--:|--:|"
    )
    for labels in LABELS:
        for kind, name in KINDS.items():
            answered, wrong = population(labels, kind)
            for images in IMAGES:
                found = [exceeded(answered, wrong, images, options.draws, error) for error in ERRORS]
                certified, failed = np.array(found).T / options.draws
                row = f"{100 * certified.mean():.0f} | {100 * failed.mean():.2f} | {100 * failed.max():.2f}"
                print(f"| {labels} | {name} | {images} | {row} |", flush=True)
    print(f"\n(Trees; errors of 10, 20 and 30 %, {options.draws} draws each.)")


def share(count: int, draws: int) -> str:
    return f"{100 * count / draws:.2f}"


if __name__ == "__main__":
    main()
