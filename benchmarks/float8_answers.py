"""What float8 changes in the answers of a trained ViT: accuracy, ECE, labels and confidences, paired by image.

python benchmarks/float8_answers.py prepare --data DATA --out FOLDER      # packs images, and copies pocket's folder
python benchmarks/float8_answers.py train --images FOLDER/images --pocket FOLDER/pocket --out VIT   # on a GPU
python benchmarks/float8_answers.py compare --images FOLDER/images --model VIT --out REPORT         # on a GPU

Where no trained ViT is available, `train` distils the image tower of `pocket` into one. It sees a few thousand images
for some minutes, so that it is far worse than CLIP, and than `pocket`. `compare` also takes the folder of a real one.
"""

from __future__ import annotations

import argparse
import json
import shutil
import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import torch
from distil import ABOUT, ARCHITECTURES, Recipe, distil
from pack_images import TEXTS, Size, held_out_images, prepare, train_images

from poise import Classifier
from poise.backbones import resolve
from poise.backbones.loaders.pocket import FOLDER as POCKET
from poise.inference.predictor import Predictor
from poise.metrics.bootstrap import Estimate, estimate
from poise.metrics.sample import Sample

METHODS = ("zero-shot", "tpt", "kld+cats")
METRICS = ("accuracy", "ece")
TRAIN_SETS = ("caltech101@train", "caltech101", "imagenet", "eurosat")
FOLDERS = ("pets", "cifar100")


@dataclass(frozen=True)
class Answers:
    """The answers of the model in one dtype, and the features [N, V, D] of the first images."""

    samples: dict[str, Sample]  # by method
    scores: dict[str, dict[str, Estimate]]  # by method and metric
    features: torch.Tensor
    seconds: float


def main(arguments: Sequence[str] | None = None) -> None:
    options = _options(arguments)
    {"prepare": _prepare, "train": _train, "compare": _compare}[options.command](options)


def _prepare(options: argparse.Namespace) -> None:
    folders = [f"folder:{options.data}/folders/{name}" for name in FOLDERS]
    train = options.train or [*TRAIN_SETS, *folders]
    sizes = Size(options.train_side, options.train_mib), Size(options.test_side, options.test_mib)
    about = prepare(options.out / "images", options.test, train, options.data, options.count, options.most, sizes)
    shutil.copytree(POCKET, options.out / "pocket", dirs_exist_ok=True)
    print(json.dumps(about))


def _train(options: argparse.Namespace) -> None:
    device = resolve(options.device, "auto").device
    texts = (options.images / TEXTS).read_text(encoding="utf-8").splitlines()
    held_out = [item.source() for item in held_out_images(options.images).items]
    recipe = Recipe(
        options.architecture,
        options.seconds,
        options.steps,
        options.batch,
        options.rate,
        every=options.every,
        seed=options.seed,
    )
    about = distil(options.pocket, train_images(options.images), held_out, texts, options.out, recipe, device)
    print(json.dumps(about))


def _compare(options: argparse.Namespace) -> None:
    images = held_out_images(options.images)
    items = images.items[: options.count]
    truth = [item.label for item in items]
    found: dict[str, Answers] = {}
    for dtype in options.dtypes:
        began = time.perf_counter()
        classifier = Classifier(
            images.classes,
            f"local-dir:{options.model}",
            METHODS,
            template=images.template,
            views=options.views,
            seed=options.seed,
            device=options.device,
            dtype=dtype,
        )
        probs = classifier.predict_proba(items)
        seconds = time.perf_counter() - began
        predictor = Predictor(classifier.encoder, views=classifier.recipe)
        features = torch.stack(list(predictor.features(items[: options.feature_images])))  # type: ignore[arg-type]
        samples = {name: Sample.of(rows, truth) for name, rows in probs.items()}
        scores = {name: estimate([sample], names=METRICS) for name, sample in samples.items()}
        found[dtype] = Answers(samples, scores, features, seconds)
        accuracy = ", ".join(f"{name} {100 * row['accuracy'].value:.1f} %" for name, row in scores.items())
        print(f"{dtype}: {len(items)} images in {seconds:.1f} s with loading; accuracy {accuracy}", flush=True)
    about = options.model / ABOUT
    report = {
        "model": json.loads(about.read_text(encoding="utf-8")) if about.is_file() else str(options.model),
        "images": len(items),
        "classes": len(images.classes),
        "views": options.views,
        "seed": options.seed,
        "torch": torch.__version__,
        "device": _device_name(options.device),
        "features_of_views": options.views * len(items[: options.feature_images]),
        "each": {dtype: _each(answers) for dtype, answers in found.items()},
        "pairs": [_pair(first, second, found) for first, second in combinations(found, 2)],
    }
    options.out.mkdir(parents=True, exist_ok=True)
    (options.out / "float8_answers.json").write_text(json.dumps(report, indent=2), encoding="utf-8")
    page = "\n".join(_page(report))
    (options.out / "float8_answers.md").write_text(page + "\n", encoding="utf-8")
    print(page)


def _each(answers: Answers) -> dict[str, Any]:
    scores = {
        name: {metric: row[metric].interval._asdict() for metric in METRICS} for name, row in answers.scores.items()
    }
    return {"seconds_with_loading": round(answers.seconds, 1), "methods": scores}


def _pair(first: str, second: str, found: dict[str, Answers]) -> dict[str, Any]:
    """Return how the answers of the dtype ``second`` differ from those of ``first``."""
    base, other = found[first], found[second]
    cosines = (base.features.double() * other.features.double()).sum(-1)
    methods = {}
    for name, plain in base.samples.items():
        changed = other.samples[name]
        same = plain.probs.argmax(1) == changed.probs.argmax(1)
        moved = np.abs(plain.confidence - changed.confidence)
        methods[name] = {
            **{metric: _difference(other.scores[name][metric] - base.scores[name][metric]) for metric in METRICS},
            "labels_changed": float(1 - same.mean()),
            "confidence_change_mean": float(moved.mean()),
            "confidence_change_max": float(moved.max()),
            "became_right": int((changed.correct & ~plain.correct).sum()),
            "became_wrong": int((plain.correct & ~changed.correct).sum()),
        }
    return {
        "first": first,
        "second": second,
        "least_cosine": float(cosines.min()),
        "mean_cosine": float(cosines.mean()),
        "methods": methods,
    }


def _difference(change: Estimate) -> dict[str, Any]:
    low, high = change.bounds
    return {"value": change.value, "low": low, "high": high, "clear": change.clear}


def _page(report: dict[str, Any]) -> list[str]:
    """Return the lines of a Markdown report."""
    model = report["model"]
    if isinstance(model, dict):
        what = (
            f"a {model['architecture']} distilled from pocket for {model['trained_seconds'] / 60:.1f} minutes on "
            f"{model['train_images']} unlabelled images (cosine with pocket's features on held-out images "
            f"{model['held_out_cosine']:.3f})"
        )
    else:
        what = model
    lines = [
        f"Model: {what}. {report['images']} images, {report['classes']} classes, {report['views']} views, "
        f"{report['device']}, torch {report['torch']}.",
        "",
        "| method | dtype | accuracy in % (95 % CI) | ECE in % (95 % CI) |",
        "|---|---|---:|---:|",
    ]
    for method in METHODS:
        for dtype, each in report["each"].items():
            cells = [_shown(each["methods"][method][metric], "") for metric in METRICS]
            lines.append(f"| {method} | {dtype} | {' | '.join(cells)} |")
    head = (
        "method",
        "dtypes",
        "accuracy in % (95 % CI)",
        "ECE in % (95 % CI)",
        "labels changed",
        "wrong to right",
        "right to wrong",
        "mean change of confidence",
        "largest",
    )
    lines += [
        "",
        "Paired differences, second minus first dtype:",
        "",
        f"| {' | '.join(head)} |",
        "|---|---|" + 7 * "---:|",
    ]
    for method in METHODS:
        for pair in report["pairs"]:
            row = pair["methods"][method]
            cells = [
                *(_shown(row[metric], "+") for metric in METRICS),
                f"{100 * row['labels_changed']:.1f} %",
                str(row["became_right"]),
                str(row["became_wrong"]),
                f"{row['confidence_change_mean']:.4f}",
                f"{row['confidence_change_max']:.3f}",
            ]
            lines.append(f"| {method} | {pair['first']} to {pair['second']} | {' | '.join(cells)} |")
    lines += ["", f"Cosines of the features of {report['features_of_views']} views:", ""]
    lines += [
        f"- {pair['first']} and {pair['second']}: smallest {pair['least_cosine']:.6f}, mean {pair['mean_cosine']:.6f}"
        for pair in report["pairs"]
    ]
    return lines


def _shown(value: dict[str, Any], sign: str) -> str:
    number, low, high = (f"{100 * value[key]:{sign}.2f}" for key in ("value", "low", "high"))
    return f"{number} ({low} to {high})"


def _device_name(device: str) -> str:
    place = resolve(device, "auto").device
    return torch.cuda.get_device_name(place) if place.type == "cuda" else place.type


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    pack = commands.add_parser("prepare")
    pack.add_argument("--data", type=Path, help="root folder of the data sets")
    pack.add_argument("--test", default="caltech101", help="data set of the test images")
    pack.add_argument("--train", nargs="*", help="data sets of the training images; NAME@SPLIT for another split")
    pack.add_argument("--count", type=int, default=1000, help="test images")
    pack.add_argument("--most", type=int, default=2000, help="training images of each data set")
    pack.add_argument("--train-side", type=int, default=180)
    pack.add_argument("--train-mib", type=float, default=39)
    pack.add_argument("--test-side", type=int, default=192)
    pack.add_argument("--test-mib", type=float, default=10)
    train = commands.add_parser("train")
    train.add_argument("--pocket", type=Path, default=POCKET)
    train.add_argument("--architecture", choices=ARCHITECTURES, default=Recipe.architecture)
    train.add_argument("--seconds", type=float, default=Recipe.seconds)
    train.add_argument("--steps", type=int, default=Recipe.steps)
    train.add_argument("--batch", type=int, default=Recipe.batch)
    train.add_argument("--rate", type=float, default=Recipe.rate)
    train.add_argument("--every", type=float, default=Recipe.every, help="seconds between validations")
    against = commands.add_parser("compare")
    against.add_argument("--model", type=Path, required=True, help="folder in open_clip's format")
    against.add_argument("--dtypes", nargs="+", default=["float32", "float16", "float8"])
    against.add_argument("--views", type=int, default=64)
    against.add_argument("--count", type=int, default=1000, help="test images")
    against.add_argument("--feature-images", type=int, default=200, help="images whose features are compared")
    for command in (train, against):
        command.add_argument("--images", type=Path, required=True, help="folder `images` that `prepare` wrote")
        command.add_argument("--device", default="auto")
        command.add_argument("--seed", type=int, default=0)
    for command in (pack, train, against):
        command.add_argument("--out", type=Path, required=True)
    return parser.parse_args(arguments)


if __name__ == "__main__":
    main()
