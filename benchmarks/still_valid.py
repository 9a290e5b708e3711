"""How soon `Calibration.monitor` notices other images: ``python benchmarks/still_valid.py --data DATA``.

DATA holds `folders/pets`, `folders/cifar100` and Caltech101 in CoOp's layout. Pets are drawn at random; a split takes
100 of them as calibration images, and shows the others, unchanged and changed, and images of other datasets to a
monitor, in random order. "sketch" is an image of edges; "other camera" is darker, warmer, noisy and compressed.
In the row "blur 4 after 100", the first 100 images are unchanged; in "a fifth Caltech101", every fifth of them is
foreign. Images to the alarm are counted from the change on,
and an alarm before it counts as none; the median is over the streams with an alarm. Coverage is that of 90 % sets.
"""

from __future__ import annotations

import argparse
import io
import json
import random
from pathlib import Path

import numpy as np
from PIL import Image, ImageFilter, ImageOps

import poise
from poise.calibration import Monitor, quantile, scores

CALIBRATION, ALPHA, COVERAGE = 100, 0.01, 0.9
CHANGES = {
    "none": lambda image: image,
    "grey": lambda image: image.convert("L").convert("RGB"),
    "blur 2": lambda image: image.filter(ImageFilter.GaussianBlur(2)),
    "blur 4": lambda image: image.filter(ImageFilter.GaussianBlur(4)),
    "sketch": lambda image: ImageOps.invert(image.convert("L").filter(ImageFilter.FIND_EDGES)).convert("RGB"),
    "32 pixels": lambda image: image.resize((32, 32), Image.Resampling.BOX).resize(image.size),
    "other camera": lambda image: other_camera(image),
}
OTHERS = ("Caltech101", "CIFAR-100")
FIFTH = "a fifth Caltech101"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--images", type=int, default=300)
    parser.add_argument("--splits", type=int, default=200)
    options = parser.parse_args()
    pets = sorted((options.data / "folders" / "pets").rglob("*.jpg"))
    labels = sorted({path.parent.name for path in pets})
    random.Random(0).shuffle(pets)
    pets = pets[: options.images]
    truth = np.array([labels.index(path.parent.name) for path in pets])
    split = json.loads((options.data / "caltech-101" / "split_zhou_Caltech101.json").read_text())["test"]
    other = [options.data / "caltech-101" / "101_ObjectCategories" / row[0] for row in split]
    random.Random(0).shuffle(other)
    classify = poise.Classifier(labels, method="zero-shot")
    found = {name: answers(classify, pets, change) for name, change in CHANGES.items()}
    found["Caltech101"] = answers(classify, other[: options.images - CALIBRATION], CHANGES["none"])
    small = sorted((options.data / "folders" / "cifar100").rglob("*.jpg"))
    random.Random(0).shuffle(small)
    found["CIFAR-100"] = answers(classify, small[: options.images - CALIBRATION], CHANGES["none"])
    print(f"| images | alarm in % of {options.splits} streams | images to the alarm | coverage |\n|---|--:|--:|--:|")
    for name in (*found, FIFTH, "blur 4 after 100"):
        rang = [one_stream(found, name, seed) for seed in range(options.splits)]
        heard = [image for image in rang if image is not None and image > 0]
        typical = f"{np.median(heard):.0f}" if heard else ""
        print(f"| {name} | {100 * len(heard) / len(rang):.1f} | {typical} | {covered(found, name, truth, options)} |")


def answers(classify: poise.Classifier, paths: list[Path], change) -> list[poise.Result]:
    """The results of images, after a change of their pixels."""
    images = (change(Image.open(path).convert("RGB")) for path in paths)
    return [outcome["zero-shot"] for outcome in classify.each(images)]


def other_camera(image: Image.Image) -> Image.Image:
    """Return the image as a cheap camera in warm light might give it."""
    pixels = (np.asarray(image, dtype=np.float64) / 255) ** 1.6 * [1.0, 0.85, 0.65]
    pixels += np.random.default_rng(image.size).normal(0, 0.04, pixels.shape)
    stream = io.BytesIO()
    Image.fromarray((255 * pixels.clip(0, 1)).astype(np.uint8)).save(stream, "JPEG", quality=20)
    return Image.open(stream).convert("RGB")


def order(found: dict, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """The calibration images of a split, and the others."""
    shuffled = np.random.default_rng(seed).permutation(len(found["none"]))
    return shuffled[:CALIBRATION], shuffled[CALIBRATION:]


def one_stream(found: dict, name: str, seed: int) -> int | None:
    """The image of the alarm, counted from the change on."""
    first, rest = order(found, seed)
    known = [found["none"][at] for at in first]
    changed, _, before = name.partition(" after ")
    same = int(before or 0)
    if name in OTHERS:
        stream = list(np.random.default_rng(seed).permutation(np.array(found[name], dtype=object)))
    elif name == FIFTH:
        stream = [found["none"][at] for at in rest]
        foreign = np.random.default_rng(seed).permutation(np.array(found["Caltech101"], dtype=object))
        for place, row in zip(range(0, len(stream), 5), foreign, strict=False):
            stream[place] = row
    else:
        stream = [found["none"][at] for at in rest[:same]] + [found[changed][at] for at in rest[same:]]
    watch = Monitor([row.confidence for row in known], [row.match for row in known], alpha=ALPHA, seed=seed)
    for row in stream:
        watch.update(row)
    return None if watch.rang is None else watch.rang - same


def covered(found: dict, name: str, truth: np.ndarray, options: argparse.Namespace) -> str:
    """The mean coverage of prediction sets, where images have a correct label."""
    if name not in CHANGES:
        return ""
    probs = {key: np.array([label_order(row) for row in found[key]]) for key in ("none", name)}
    u = np.zeros(len(truth))
    score = {key: scores.get("lac").of_labels(values, truth, u) for key, values in probs.items()}
    shares = []
    for seed in range(options.splits):
        first, rest = order(found, seed)
        shares.append((score[name][rest] <= quantile(score["none"][first], COVERAGE)).mean())
    return f"{np.mean(shares):.2f}"


def label_order(row: poise.Result) -> list[float]:
    return [row.probabilities[label] for label in sorted(row.probabilities)]


if __name__ == "__main__":
    main()
