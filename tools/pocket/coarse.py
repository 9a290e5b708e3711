"""Coarse labels: `python tools/pocket/coarse.py --models pocket local-dir:FOLDER`, zero-shot on one view of each image.

Pets as cat or dog, CIFAR-100's 20 superclasses, ImageNet by about 20 coarse groups, and by label sets of mixed depth.
The groups and sets are drawn from WordNet (`nouns.py`); an image belongs to the narrowest label that covers its class.
The limit is the sum over the model's answers to the fine names of the dataset, or to ImageNet's for Pets. Then each
dataset with its own names. All models must have the image tower of the first.
"""

from __future__ import annotations

import argparse
import json
import lzma
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from label_sets import Drawer
from torch import Tensor
from train import REPOSITORY

from poise import data
from poise.backbones import load_model
from poise.encoding.class_texts import ClassTexts
from poise.inference.features import LabelledFeatures, encode
from poise.metrics import ece
from poise.prompts import init_prompt, tokenise
from poise.types import DualEncoder
from poise.views import ViewRecipe

CATS = (
    "abyssinian bengal birman bombay british_shorthair egyptian_mau maine_coon persian ragdoll russian_blue siamese "
    "sphynx"
)
SUPERCLASSES = {
    "aquatic mammals": "beaver dolphin otter seal whale",
    "fish": "aquarium_fish flatfish ray shark trout",
    "flowers": "orchid poppy rose sunflower tulip",
    "food containers": "bottle bowl can cup plate",
    "fruit and vegetables": "apple mushroom orange pear sweet_pepper",
    "household electrical devices": "clock keyboard lamp telephone television",
    "household furniture": "bed chair couch table wardrobe",
    "insects": "bee beetle butterfly caterpillar cockroach",
    "large carnivores": "bear leopard lion tiger wolf",
    "large man-made outdoor things": "bridge castle house road skyscraper",
    "large natural outdoor scenes": "cloud forest mountain plain sea",
    "large omnivores and herbivores": "camel cattle chimpanzee elephant kangaroo",
    "medium-sized mammals": "fox porcupine possum raccoon skunk",
    "non-insect invertebrates": "crab lobster snail spider worm",
    "people": "baby boy girl man woman",
    "reptiles": "crocodile dinosaur lizard snake turtle",
    "small mammals": "hamster mouse rabbit shrew squirrel",
    "trees": "maple_tree oak_tree palm_tree pine_tree willow_tree",
    "vehicles 1": "bicycle bus motorcycle pickup_truck train",
    "vehicles 2": "lawn_mower rocket streetcar tank tractor",
}
Seen = Mapping[str, tuple[Sequence[str], LabelledFeatures]]
GROUPS, SMALLEST, LARGEST = 20, 10, 120  # coarse groups of ImageNet's classes, and how many classes each has
SETS, FIRST, FEWEST = 40, 5 * 10**6, 20  # label sets of mixed depth, first seed, and images that a set must have


def groups(nouns: dict[str, Any]) -> tuple[list[str], Tensor]:
    """The largest nodes of WordNet that don't overlap: names, and which classes each covers [G, 1000]."""
    rows = [nouns["rows"][n["rows"][0]] for n in nouns["nodes"] if n["rows"] and SMALLEST <= n["size"] <= LARGEST]
    chosen: list[dict[str, Any]] = []
    taken: set[int] = set()
    for row in sorted(rows, key=lambda row: (-len(row["cover"]), row["text"])):
        classes = {c for c, _ in row["cover"]}
        if len(chosen) < GROUPS and not classes & taken:
            chosen.append(row)
            taken |= classes
    return [row["text"] for row in chosen], narrowest(chosen)


def narrowest(rows: list[dict[str, Any]]) -> Tensor:
    """Which classes belong to each label [n, 1000]: those that it covers and no narrower label does."""
    cover = torch.zeros(len(rows), 1000)
    for r, row in enumerate(rows):
        for c, weight in row["cover"]:
            cover[r, c] = float(weight >= 0.5)
    size = torch.where(cover > 0, cover.sum(1, keepdim=True), torch.inf)
    best = size.argmin(0)
    return cover * (torch.arange(len(rows))[:, None] == best)


class Answers:
    """Zero-shot answers of one model on the plain view of a dataset's images."""

    def __init__(self, encoder: DualEncoder, names: Sequence[str], found: LabelledFeatures) -> None:
        self.encoder, self.names = encoder, list(names)
        self.features, self.labels = found.features, found.labels

    def __call__(self, labels: list[str]) -> Tensor:
        """Probabilities [N, n] with the standard template."""
        classes = tokenise(self.encoder, labels, "a photo of a {}.", repeats=True)
        prompt = init_prompt(self.encoder, classes)
        texts = ClassTexts(self.encoder, classes, prompt).features(prompt)
        return self.encoder.logits(self.features, texts)[:, 0].softmax(-1)

    def coarse(self, labels: list[str], members: Tensor, fine: Tensor | None = None) -> list[tuple[float, ...]]:
        """Accuracy, mean confidence and ECE of the labels and of the sum over fine names; `members` [n, classes]."""
        kept = members.sum(0)[self.labels] > 0
        truth = members[:, self.labels].argmax(0)[kept]
        sums = (self(self.names) if fine is None else fine)[kept] @ members.T
        return [score(p, truth) for p in (self(labels)[kept], sums / sums.sum(-1, keepdim=True))]


def score(probs: Tensor, truth: Tensor) -> tuple[float, ...]:
    """Accuracy, mean confidence and ECE in percent."""
    confidence, guess = (part.numpy() for part in probs.double().max(-1))
    right = guess == truth.numpy()
    return 100 * right.mean(), 100 * confidence.mean(), 100 * ece(confidence, right)


def members_of(groups_: dict[str, str], names: list[str]) -> Tensor:
    return torch.tensor([[float(n.replace(" ", "_") in g.split()) for n in names] for g in groups_.values()])


def seen(encoder: DualEncoder, root: Path, cache: Path | None) -> Seen:
    """Names and image features of the datasets; models that differ in their texts share the features."""
    specs = {
        "imagenet": "imagenet",
        "caltech101": "caltech101",
        "pets": f"folder:{root}/folders/pets",
        "cifar100": f"folder:{root}/folders/cifar100",
    }
    opened = {name: data.open_dataset(spec, root) for name, spec in specs.items()}
    return {
        name: (images.classes, encode(images, encoder, ViewRecipe(1), cache=cache)) for name, images in opened.items()
    }


def measure(encoder: DualEncoder, images: Seen, nouns: dict[str, Any]) -> dict[str, Any]:
    """Scores by table row: the labels' own, and the limit's."""
    opened = {name: Answers(encoder, *found) for name, found in images.items()}
    pets, cifar, imagenet = opened["pets"], opened["cifar100"], opened["imagenet"]
    kinds = members_of({"cat": CATS}, pets.names)
    rows = {row["text"]: row for row in reversed(nouns["rows"])}
    found = {}
    truth = 1 - kinds[0][pets.labels].long()
    sums = pets(imagenet.names) @ narrowest([rows["cat"], rows["dog"]]).T
    found["Pets, cat or dog"] = [score(pets(["cat", "dog"]), truth), score(sums / sums.sum(-1, keepdim=True), truth)]
    found["CIFAR-100, 20 superclasses"] = cifar.coarse(list(SUPERCLASSES), members_of(SUPERCLASSES, cifar.names))
    labels, members = groups(nouns)
    fine = imagenet(imagenet.names)
    found[f"ImageNet, {len(labels)} groups"] = imagenet.coarse(labels, members, fine)
    drawer, sets = Drawer(nouns, [], lambda row: True), []
    for seed in range(FIRST, FIRST + SETS):
        chosen = [nouns["rows"][r] for r in drawer(seed, "cut", distractors=False).rows]
        members = narrowest(chosen)
        if int(members.sum(0)[imagenet.labels].sum()) >= FEWEST:
            sets.append(imagenet.coarse([row["text"] for row in chosen], members, fine))
    found[f"ImageNet, {len(sets)} label sets of mixed depth"] = np.mean(sets, 0).tolist()
    for name, answers in opened.items():
        found[f"{name}, its own names"] = [score(answers(answers.names), answers.labels)]
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=REPOSITORY.parent / "shared" / "data")
    parser.add_argument("--cache", type=Path, default=REPOSITORY / "scratch" / "pocket", help="holds nouns.json.xz")
    parser.add_argument("--features", type=Path, help="folder in which features of images are kept")
    parser.add_argument("--models", nargs="+", default=["pocket"])
    args = parser.parse_args()
    torch.set_grad_enabled(False)
    nouns = json.loads(lzma.decompress((args.cache / "nouns.json.xz").read_bytes()))
    print("| images and labels | model | accuracy | confidence | ECE | limit: accuracy | confidence |")
    print("|---|---|--:|--:|--:|--:|--:|")
    images: Seen | None = None
    for model in args.models:
        encoder = load_model(model, device="cpu", dtype="float32")
        images = images or seen(encoder, args.data, args.features)
        for row, (own, *limit) in measure(encoder, images, nouns).items():
            cells = [f"{value:.1f}" for value in (*own, *(limit[0][:2] if limit else ()))]
            print("| " + " | ".join([row, model, *cells, *[""] * (5 - len(cells))]) + " |", flush=True)


if __name__ == "__main__":
    main()
