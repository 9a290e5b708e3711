"""The claims of the paper in pictures, on the embedded model and real images, without a GPU and without any download.

    python examples/claims.py --out claims                     # 60 pictures made of images that scikit-image carries
    python examples/claims.py --out claims --images FOLDER     # your own, one folder per class

Draws targets and temperatures of one image, and reliability, confidence, entropy change and discrepancy of all, and
says for each claim whether these images show it, by the 95 % interval of a paired difference. A few images decide
little. Over-confidence is the mean confidence minus the accuracy; discrepancy is the share of images for which the
answer and p_aug, the mean over the confident views, are of different classes. All are in percent, and changes of
entropy in nats.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np

import poise
from poise.data import open_dataset
from poise.evaluate.config import build
from poise.evaluate.run import run
from poise.metrics import ece
from poise.report.figures.write import write_figures
from poise.report.records.runs import Records, load

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


Rows = dict[str, np.ndarray]
MEASURES: dict[str, Callable[[Rows], float]] = {
    "over-confidence": lambda rows: 100 * (rows["confidence"].mean() - rows["correct"].mean()),
    "ECE": lambda rows: 100 * ece(rows["confidence"], rows["correct"].astype(bool)),
    "accuracy": lambda rows: 100 * rows["correct"].mean(),
    "entropy change of wrong answers": lambda rows: _mean(rows["change"][rows["correct"] == 0]),
    "discrepancy": lambda rows: 100 * rows["differs"].mean(),
}
CLAIMS = (  # claim, measure, method, against, the sign of the difference that it predicts
    ("Minimising entropy makes answers over-confident", "over-confidence", "tpt", "zero-shot", 1),
    ("The divergence to p_aug with temperatures calibrates better", "ECE", "kld+cats", "tpt", -1),
    ("Accuracy is not lost", "accuracy", "kld+cats", "tpt", 1),
    ("Wrong answers are sharpened less", "entropy change of wrong answers", "kld+cats", "tpt", 1),
    ("The answer agrees more often with p_aug", "discrepancy", "kld+cats", "tpt", -1),
)


def _mean(values: np.ndarray) -> float:
    return float(values.mean()) if len(values) else 0.0


def claims(records: Records, resamples: int = 1000) -> list[str]:
    """Return a sentence for each claim: shown, contradicted or not decided by the 95 % interval of a difference."""
    groups = {group.method: next(iter(group.seeds.values())) for group in records.groups}
    rows = {name: {key: np.asarray(found[key]) for key in ("confidence", "correct")} for name, found in groups.items()}
    for name, found in groups.items():
        rows[name]["change"] = np.asarray(found["entropy"] - found["init_entropy"])
        rows[name]["differs"] = np.asarray(found["prediction"] != found["target_prediction"])
    count, numbers = len(rows["tpt"]["correct"]), np.random.default_rng(0)
    draws = numbers.integers(0, count, (resamples, count))
    return [_sentence(rows, draws, *claim) for claim in CLAIMS]


def _sentence(
    rows: dict[str, Rows], draws: np.ndarray, claim: str, measure: str, method: str, against: str, sign: int
) -> str:
    of = MEASURES[measure]
    ours, theirs = of(rows[method]), of(rows[against])
    pairs = [[{key: part[draw] for key, part in rows[name].items()} for name in (method, against)] for draw in draws]
    low, high = np.quantile([of(one) - of(two) for one, two in pairs], [0.025, 0.975])
    expected = low > 0 if sign > 0 else high < 0
    opposite = high < 0 if sign > 0 else low > 0
    verdict = "shown" if expected else "CONTRADICTED" if opposite else "not decided"
    return (
        f"{verdict} by these images: {claim}. {measure}: {theirs:.2f} with {against}, {ours:.2f} with {method}; "
        f"difference {ours - theirs:+.2f} [{low:+.2f}, {high:+.2f}]"
    )


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
    print("\n".join(claims(records)))
    print(f"{time.perf_counter() - began:.0f} s, {time.process_time():.0f} s of processor time")


if __name__ == "__main__":
    main()
