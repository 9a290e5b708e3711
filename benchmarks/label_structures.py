"""What a tree and independent labels give on real images: ``python benchmarks/label_structures.py --data DATA``.

DATA holds `folders/pets`, Caltech101 and ImageNet in CoOp's layout; WORDNET (``--wordnet``) is a folder with WordNet
3.0's `data.noun`, from which ImageNet's tree is built (without it, ImageNet is left out). Zero-shot probabilities of a
model are computed once and kept in CACHE. A split takes some images at random as calibration images, and the others as
test images: with labels alone (plain abstention) and with the tree, how often a threshold is certified, which share is
answered (0 where nothing is certified), how many answers are labels, and the error among the answers. Then independent
labels on composed images: two photos of Caltech101, of different classes, side by side.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
from pathlib import Path

import numpy as np
from PIL import Image

import poise
from poise.calibration import Tree, certify
from poise.calibration.certify import certify_changing

sys.path.insert(0, str(Path(__file__).parents[1] / "tools" / "pocket"))
from wordnet import read_synsets  # of this repository's tools

CATS = "abyssinian bengal birman bombay british_shorthair egyptian_mau maine_coon persian ragdoll russian_blue"
CATS += " siamese sphynx"
CALTECH = {  # an everyday tree of Caltech101's names, written before anything was measured
    "animal > mammal": "beaver dalmatian dolphin elephant gerenuk hedgehog kangaroo llama okapi panda platypus rhino",
    "animal > mammal > cat": "cougar_body cougar_face leopard wild_cat",
    "animal > bird": "emu flamingo flamingo_head ibis pigeon rooster",
    "animal > reptile": "brontosaurus crocodile crocodile_head hawksbill stegosaurus",
    "animal > sea animal": "bass crab crayfish lobster nautilus octopus sea_horse starfish trilobite",
    "animal > small animal": "ant butterfly dragonfly mayfly scorpion tick",
    "plant": "bonsai joshua_tree lotus strawberry sunflower water_lilly",
    "vehicle": "airplane car_side ferry helicopter inline_skate ketch motorbike schooner wheelchair",
    "musical instrument": "accordion electric_guitar euphonium grand_piano mandolin saxophone metronome gramophone",
    "building": "minaret pagoda pyramid",
    "furniture": "ceiling_fan chair chandelier lamp windsor_chair menorah",
    "device": "binocular camera cellphone headphone laptop revolver cannon stapler scissors wrench watch",
    "figure": "buddha face garfield snoopy brain yin_yang",
    "thing": "anchor barrel cup dollar_bill ewer pizza soccer_ball stop_sign umbrella",
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--wordnet", type=Path)
    parser.add_argument("--cache", type=Path, required=True)
    parser.add_argument("--model", default="pocket")
    parser.add_argument("--images", type=int, default=800)
    parser.add_argument("--calibration", type=int, default=300)
    parser.add_argument("--splits", type=int, default=100)
    options = parser.parse_args()
    options.cache.mkdir(parents=True, exist_ok=True)
    datasets = {"Pets": pets, "Caltech101": caltech} | ({"ImageNet": imagenet} if options.wordnet else {})
    print(
        f"{options.calibration} calibration images, {options.splits} splits\n\n"
        "| dataset | error | answers | certified % | answered % | labels among the answers % | depth | wrong % |\n"
        "|---|--:|---|--:|--:|--:|--:|--:|"
    )
    for name, find in datasets.items():
        paths, truth, labels, parents = find(options)
        probs, truth = answers(options, name, paths, truth, labels)
        tree = Tree(labels, parents)
        for max_error in (0.05, 0.1):
            for kind in ("labels", "tree"):
                rows = [split(probs, truth, tree, kind, max_error, seed, options) for seed in range(options.splits)]
                print(f"| {name} | {100 * max_error:g} % | {kind} | {line(rows)} |")
    composed(options)


def split(probs, truth, tree: Tree, kind: str, max_error: float, seed: int, options) -> dict[str, float]:
    """One split: what is certified on its calibration images, and what that gives on the others."""
    order = np.random.default_rng(seed).permutation(len(truth))
    first, rest = order[: options.calibration], order[options.calibration :]
    path = tree.descend(probs)
    right = (path.nodes >= 0) & tree.members[path.nodes, truth[:, None]]
    if kind == "labels":
        top, correct = probs.max(1), probs.argmax(1) == truth
        threshold = certify(top[first], correct[first], max_error).threshold
        depth = np.array([len(line) for line in tree.lines])[probs.argmax(1)]
        answered = top[rest] >= (np.inf if threshold is None else threshold)
        return numbers(threshold, answered, correct[rest], np.ones(len(rest), bool), depth[rest])
    ends, wrongs = tree.thresholds(probs, truth)
    threshold = certify_changing(ends[first], wrongs[first], max_error).threshold
    depth = path.depth_at(np.inf if threshold is None else threshold)[rest]
    at = np.maximum(depth - 1, 0)
    nodes = path.nodes[rest, at]
    return numbers(threshold, depth > 0, right[rest, at], nodes < len(tree.labels), depth)


def numbers(threshold, answered, correct, is_label, depth) -> dict[str, float]:
    many = max(int(answered.sum()), 1)
    return {
        "certified": threshold is not None,
        "answered": answered.mean(),
        "label": (answered & is_label).sum() / many if answered.any() else np.nan,
        "depth": depth[answered].mean() if answered.any() else np.nan,
        "wrong": (answered & ~correct).sum() / many if answered.any() else np.nan,
    }


def line(rows: list[dict[str, float]]) -> str:
    means = {name: np.nanmean([row[name] for row in rows] or [np.nan]) for name in rows[0]}
    texts = [f"{100 * means[name]:.0f}" for name in ("certified", "answered", "label")]
    return " | ".join([*texts, f"{means['depth']:.1f}", f"{100 * means['wrong']:.1f}"])


def answers(options, name: str, paths: list[Path], truth: list[int], labels: list[str]):
    """Zero-shot probabilities and correct classes, from the cache if they are there."""
    file = options.cache / f"{options.model.replace('/', '_')}_{name}_{options.images}.npz"
    if not file.exists():
        order = list(range(len(paths)))
        random.Random(0).shuffle(order)
        order = order[: options.images]
        probs = poise.Classifier(labels, options.model, "zero-shot").predict_proba([paths[at] for at in order])
        np.savez(file, probs=probs, truth=np.array([truth[at] for at in order]))
    stored = np.load(file)
    return stored["probs"].astype(np.float64), stored["truth"]


def pets(options):
    paths = sorted((options.data / "folders" / "pets").rglob("*.jpg"))
    labels = sorted({path.parent.name for path in paths})
    parents = {label: "cat" if label in CATS.split() else "dog" for label in labels}
    return paths, [labels.index(path.parent.name) for path in paths], labels, parents


def caltech(options):
    split = json.loads((options.data / "caltech-101" / "split_zhou_Caltech101.json").read_text())["test"]
    labels = sorted({row[2] for row in split})
    parents = [f"{above} > {label}" for above, members in CALTECH.items() for label in members.split()]
    paths = [options.data / "caltech-101" / "101_ObjectCategories" / row[0] for row in split]
    return paths, [labels.index(row[2]) for row in split], labels, parents


def imagenet(options):
    """One image per class; WordNet's first hypernyms, without nodes that have a single child."""
    rows = [row.split(" ", 1) for row in (options.data / "imagenet" / "classnames.txt").read_text().splitlines()]
    synsets, labels = read_synsets(options.wordnet), [name.strip() for _, name in rows]
    labels = [
        name if labels.count(name) == 1 else f"{name} ({wnid})" for (wnid, _), name in zip(rows, labels, strict=True)
    ]
    chains = []
    for wnid, _ in rows:
        chain = [wnid]
        while synsets[chain[-1]].parents:
            chain.append(synsets[chain[-1]].parents[0])
        chains.append(chain[:0:-1])  # from the root, without the class itself
    below: dict[str, set[str]] = {}
    for chain, (wnid, _) in zip(chains, rows, strict=True):
        for node, child in zip(chain, [*chain[1:], wnid], strict=True):
            below.setdefault(node, set()).add(child)
    classes = {wnid for wnid, _ in rows}
    parents = []
    for chain, label in zip(chains, labels, strict=True):
        kept = [node for node in chain if len(below[node]) > 1 and node not in classes]
        parents.append(" > ".join([*(f"{synsets[node].words[0]} {node}" for node in kept), label]))
    folder = options.data / "imagenet" / "images" / "val"
    paths = [(path, at) for at, (wnid, _) in enumerate(rows) for path in sorted((folder / wnid).iterdir())]
    return [path for path, _ in paths], [at for _, at in paths], labels, parents


def composed(options, classes: int = 8, count: int = 400) -> None:
    """Independent labels on composed images; the labels are Caltech101's largest classes."""
    paths, truth, labels, _ = caltech(options)
    largest = np.argsort(-np.bincount(truth))[:classes]
    names = [labels[at] for at in largest]
    by_class = [[path for path, at in zip(paths, truth, strict=True) if at == chosen] for chosen in largest]
    generator = random.Random(0)
    images, has = [], []
    for _ in range(count):
        pair = generator.sample(range(classes), 2)
        halves = [Image.open(generator.choice(by_class[at])).convert("RGB").resize((128, 256)) for at in pair]
        whole = Image.new("RGB", (256, 256))
        for at, half in enumerate(halves):
            whole.paste(half, (128 * at, 0))
        images.append(whole)
        has.append([names[at] for at in pair])
    classify = poise.Classifier(names, options.model, independent=True)
    calibration = classify.calibrate(images[: count // 2], has[: count // 2])
    checked = poise.Classifier(
        names, classify.encoder, independent=True, calibration=calibration, precision=0.8, recall=0.8
    )
    print(f"\nIndependent labels, {count // 2} composed images to calibrate on and as many to test:\n")
    print(checked.evaluate(images[count // 2 :], has[count // 2 :]).summary())


if __name__ == "__main__":
    main()
