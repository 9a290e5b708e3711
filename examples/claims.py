"""The claims of the paper in pictures, on the embedded model and real images, without a GPU and without any download.

    python examples/claims.py --out claims                     # 60 pictures made of images that scikit-image carries
    python examples/claims.py --out claims --images FOLDER     # your own, one folder per class

Draws targets and temperatures of one image, and reliability, confidence, entropy change and discrepancy of all, and
says for each claim whether it holds here. A few images decide little: the floor of the ECE is printed beside it.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np

import poise
from poise.data import open_dataset
from poise.evaluate.config import build
from poise.evaluate.run import run
from poise.report.figures.write import write_figures
from poise.report.records.runs import Records, load
from poise.report.records.scores import scoreboard
from poise.report.tables.analyses import analyse

ROOT = Path(__file__).parents[1]
METHODS = ("zero-shot", "tpt", "kld", "kld+cats")
FIGURES = ("reliability", "confidence", "entropy", "discrepancy")


def package_images(out: Path) -> Path:
    """Write the pictures of the board, if they are not there."""
    sys.path.insert(0, str(ROOT))
    from tools.board import IMAGES
    from tools.board import package_images as write

    return out / IMAGES if (out / IMAGES).is_dir() else write(out)


def draw_one(out: Path, folder: Path, model: str, views: int) -> Path:
    """Draw target and temperatures of the image that the model is least sure of, among the first of each class."""
    images = open_dataset(f"folder:{folder}")
    classify = poise.Classifier(list(images.classes), model, list(METHODS), views=views, device="cpu")
    firsts = {item.label: item.read for item in reversed(images.items)}
    results = classify(list(firsts.values()), details=True)
    chosen = min(results, key=lambda answers: answers["zero-shot"].confidence)
    target, ours = chosen["tpt"], chosen["kld+cats"]
    top = [label for label, _ in ours.top(6)]
    figure, (left, right) = plt.subplots(1, 2, figsize=(11, 4), layout="constrained")
    bars = {
        "zero-shot": chosen["zero-shot"].probabilities,
        "TPT": target.probabilities,
        "target p_aug": ours.details.target_probabilities,
        "KLD+CaTS": ours.probabilities,
    }
    for at, (name, probabilities) in enumerate(bars.items()):
        left.bar(np.arange(len(top)) + 0.2 * at, [probabilities[label] for label in top], 0.2, label=name)
    left.set_xticks(np.arange(len(top)) + 0.3, top, rotation=20)
    left.set(title="Entropy has no target; the divergence has the views' mean", ylabel="probability")
    left.legend()
    right.scatter(ours.details.view_confidences, ours.details.view_temperatures)
    right.set(title="Temperature of each view", xlabel="confidence of the view", ylabel="temperature")
    figure.savefig(out / "targets_and_temperatures.png", dpi=110)
    plt.close(figure)
    return out / "targets_and_temperatures.png"


def claims(records: Records) -> list[tuple[str, str, bool]]:
    """Return each claim, its numbers, and whether it holds on these images."""
    groups = {group.method: group for group in records.groups}
    board = {method: entry.scores for (_, _, method), entry in scoreboard(records, resamples=200).entries.items()}
    ece = {name: 100 * board[name]["ece"].value for name in METHODS}
    floor = 100 * board["zero-shot"]["ece_floor"].value
    found = {name: analyse(groups[name]) for name in METHODS}
    wrong = {name: found[name].entropy_change.wrong for name in METHODS}
    discrepancy = {name: found[name].discrepancy for name in METHODS}
    right = {name: 100 * board[name]["accuracy"].value for name in METHODS}
    return [
        (
            "Minimising entropy makes answers over-confident",
            f"ECE {ece['zero-shot']:.1f} -> {ece['tpt']:.1f} with TPT (floor {floor:.1f})",
            ece["tpt"] > ece["zero-shot"],
        ),
        (
            "The divergence to p_aug with temperatures calibrates better",
            f"ECE {ece['tpt']:.1f} with TPT, {ece['kld+cats']:.1f} with KLD+CaTS (floor {floor:.1f})",
            ece["kld+cats"] < ece["tpt"],
        ),
        (
            "Accuracy is kept",
            f"{right['tpt']:.1f} with TPT, {right['kld+cats']:.1f} with KLD+CaTS",
            right["kld+cats"] >= right["tpt"],
        ),
        (
            "Wrong answers are sharpened less",
            f"entropy change of wrong answers {wrong['tpt']:+.2f} with TPT, {wrong['kld+cats']:+.2f} with KLD+CaTS",
            wrong["kld+cats"] > wrong["tpt"],
        ),
        (
            "The tuned prompt agrees with its target",
            f"discrepancy {discrepancy['tpt']:.3f} with TPT, {discrepancy['kld+cats']:.3f} with KLD+CaTS",
            discrepancy["kld+cats"] <= discrepancy["tpt"],
        ),
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=Path, help="folder with one folder of images per class")
    parser.add_argument("--out", type=Path, default=Path("claims"))
    parser.add_argument("--model", default="pocket")
    parser.add_argument("--views", type=int, default=16)
    parser.add_argument("--limit", type=int, default=0)
    options = parser.parse_args()
    began = time.perf_counter()
    options.out.mkdir(parents=True, exist_ok=True)
    folder = options.images or package_images(options.out)
    values = {"datasets": f"folder:{folder}", "model": options.model, "methods": ",".join(METHODS), "seeds": "1"}
    values |= {"views": options.views, "limit": options.limit, "device": "cpu", "out": str(options.out), "name": "run"}
    config, settings = build(values)
    records = load(run(config, settings, quiet=True).folder)
    for file in (
        draw_one(options.out, folder, options.model, options.views),
        *write_figures(records, options.out, only=list(FIGURES)).files,
    ):
        print(file)
    for claim, numbers, holds in claims(records):
        print(f"{'holds' if holds else 'does NOT hold'} here: {claim}: {numbers}")
    print(f"{time.perf_counter() - began:.0f} s")


if __name__ == "__main__":
    main()
