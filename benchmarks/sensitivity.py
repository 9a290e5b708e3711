"""How answers depend on T_min, T_max, the number of views, the number of steps, and the parts of the objective.

python benchmarks/sensitivity.py --data DATA [--dataset caltech101,folder:PETS] [--images 150] [--sweep views]

One setting changes at a time, and the others have their defaults. All settings answer the same images from the same
features: views are nested, the first 8 of 64 are those of 8, and AugMix is off, as in `poise.Classifier`. Nothing is
chosen here: the numbers are of test images.
The results are one row per setting in a CSV file (--out), which docs/facts.py writes into docs/sensitivity.md. Rows of
other sweeps and datasets stay in the file.
"""

from __future__ import annotations

import argparse
import csv
from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from poise import load_model, methods
from poise.data import ImageSet, open_dataset
from poise.inference.features import encode
from poise.inference.predictor import Predictor
from poise.methods import Method
from poise.metrics.bootstrap import estimate
from poise.metrics.sample import Sample
from poise.prompts import tokenise
from poise.tuning import make_tuner
from poise.types import DualEncoder
from poise.views import ViewRecipe

VIEWS = 64
BASELINE = "kld+cats"
SWEEPS: dict[str, tuple[float, ...]] = {  # option -> values; the default is among them
    "t_min": (0.01, 0.1, 1.0),
    "t_max": (1.0, 5.0, 10.0, 20.0),
    "steps": (1, 2, 4),
    "views": (8, 16, 32, 64),
}
OBJECTIVES = ("zero-shot", "tpt", "ce", "kld", BASELINE)
METRICS = ("accuracy", "ece", "ece_floor")
COLUMNS = (
    *("sweep", "value", "dataset", "images", "model", "accuracy", "confidence", "ece", "ece_floor"),
    *("over_confidence", "over_confidence_low", "over_confidence_high", "ece_difference", "ece_low", "ece_high"),
    *("accuracy_difference", "accuracy_low", "accuracy_high", "other_labels"),
)


@dataclass(frozen=True, eq=False)
class Variant:
    """A method with one option changed, on the first ``views`` views."""

    sweep: str
    value: str
    method: Method
    views: int = VIEWS


def variants(sweeps: Collection[str]) -> Iterator[Variant]:
    """Yield the settings of some sweeps, the defaults once in each, and zero-shot and the baseline in any case."""
    for name in OBJECTIVES if "objective" in sweeps else ("zero-shot", BASELINE):
        yield Variant("objective", name, methods.get(name))
    for option, values in SWEEPS.items():
        for value in values if option in sweeps else ():
            if option == "views":
                yield Variant(option, f"{value:g}", methods.get(BASELINE), int(value))
            else:
                yield Variant(option, f"{value:g}", methods.get(BASELINE, **{option: value}))


def answers(
    encoder: DualEncoder, images: ImageSet, chosen: list[Variant], seed: int, cache: Path | None
) -> dict[Variant, np.ndarray]:
    """Return the probabilities [N, C] of every variant; variants with the same views share a tuner."""
    recipe = ViewRecipe(VIEWS, seed)
    features = encode(images, encoder, recipe, cache=cache).features
    print(f"{images.name}: {len(images)} images encoded", flush=True)
    found: dict[Variant, np.ndarray] = {}
    for views in sorted({variant.views for variant in chosen}):
        some = [each for each in chosen if each.views == views]
        named = {each.method.before_posthoc(): each.method for each in some}  # the defaults are in every sweep
        rows = [replace(method, name=name) for name, method in named.items()]
        tuner = make_tuner(encoder, tokenise(encoder, images.classes, images.template, repeats=True), rows)
        answered = list(Predictor(encoder, tuner, recipe).answer(features[:, :views]))
        for each in some:
            found[each] = np.stack([row[each.method.before_posthoc()].probs for row in answered if row is not None])
        print(f"{images.name}: {len(rows)} settings with {views} views answered", flush=True)
    return found


def table(images: ImageSet, found: dict[Variant, np.ndarray], model: str) -> Iterator[dict[str, object]]:
    """Yield one row per setting, in percent; differences are from kld+cats at its defaults, paired by image."""
    labels = [item.label for item in images.items]
    samples = {each: Sample.of(probs, labels) for each, probs in found.items()}
    scores = {each: estimate([sample], names=METRICS) for each, sample in samples.items()}
    default = next(each for each in found if (each.sweep, each.value) == ("objective", BASELINE))
    base, baseline = scores[default], found[default]
    for each, score in scores.items():
        over = _mean(samples[each].confidence - samples[each].correct)
        change, gain = score["ece"] - base["ece"], score["accuracy"] - base["accuracy"]
        other = found[each].argmax(1) != baseline.argmax(1)
        numbers = {
            **{name: score[name].value for name in METRICS},
            "confidence": samples[each].confidence.mean(),
            **dict(zip(("over_confidence", "over_confidence_low", "over_confidence_high"), over, strict=True)),
            **dict(zip(("ece_difference", "ece_low", "ece_high"), (change.value, *change.bounds), strict=True)),
            **dict(
                zip(("accuracy_difference", "accuracy_low", "accuracy_high"), (gain.value, *gain.bounds), strict=True)
            ),
            "other_labels": other.mean(),
        }
        facts = {"sweep": each.sweep, "value": each.value, "dataset": images.name.rpartition("/")[2], "model": model}
        yield {**facts, "images": len(labels), **{name: f"{100 * value:.2f}" for name, value in numbers.items()}}


def _mean(values: np.ndarray) -> tuple[float, float, float]:
    """Return a mean over images with its 95 % confidence interval (normal approximation)."""
    half = 1.96 * values.std(ddof=1) / np.sqrt(len(values))
    return values.mean(), values.mean() - half, values.mean() + half


def write(file: Path, rows: list[dict[str, object]]) -> None:
    """Write rows in place of those of the same sweeps and datasets."""
    new = {(row["sweep"], row["dataset"]) for row in rows}
    kept: list[dict[str, object]] = []
    if file.is_file():
        with file.open(newline="") as old:
            kept = [dict(row) for row in csv.DictReader(old) if (row["sweep"], row["dataset"]) not in new]
    with file.open("w", newline="") as out:
        writer = csv.DictWriter(out, COLUMNS, lineterminator="\n")
        writer.writeheader()
        writer.writerows(sorted([*kept, *rows], key=lambda row: (str(row["sweep"]), str(row["dataset"]))))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", default="data", help="folder of the datasets")
    parser.add_argument("--dataset", default="caltech101", help="comma-separated datasets")
    parser.add_argument("--images", type=int, default=150, help="images per dataset")
    parser.add_argument("--sweep", default=",".join(("objective", *SWEEPS)), help="comma-separated sweeps")
    parser.add_argument("--model", default="pocket")
    parser.add_argument("--device", default="cpu", help="cpu, cuda, or openvino (within 1e-6 of cpu)")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--cache", type=Path, help="folder for the features, to answer again without encoding")
    parser.add_argument("--out", type=Path, default=Path(__file__).parents[1] / "docs" / "sensitivity.csv")
    options = parser.parse_args()
    encoder = load_model(options.model, device=options.device, dtype="float32")
    sweeps = options.sweep.split(",")
    rows: list[dict[str, object]] = []
    for name in options.dataset.split(","):
        images = open_dataset(name, options.data).subset(options.images)
        found = answers(encoder, images, list(variants(sweeps)), options.seed, options.cache)
        rows += [row for row in table(images, found, options.model) if row["sweep"] in sweeps]
    write(options.out, rows)
    print(options.out)


if __name__ == "__main__":
    main()
