"""What a tree gives on real images: ``python benchmarks/label_trees.py --data DATA``.

DATA holds `folders/pets`, Caltech101 and ImageNet in CoOp's layout; WORDNET (``--wordnet``) is a folder with WordNet
3.0's `data.noun`, from which ImageNet's tree is built (without it, ImageNet is left out). Zero-shot probabilities of a
model are computed once and kept in CACHE. A split takes some images at random as calibration images, and the others as
test images: with labels alone (plain abstention) and with the tree, how often a threshold is certified, which share is
answered (0 where nothing is certified), how many answers are labels, and the error among the answers.

``--write DATA/imagenet/tree.csv --wordnet WORDNET`` writes ImageNet's tree for `poise bench run` instead.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np

import poise
from poise.calibration import Tree, certify
from poise.calibration.certify import certify_changing
from poise.data.class_trees import CALTECH101, PETS, class_paths
from poise.data.wnids import imagenet_names, wordnet_ids

sys.path.insert(0, str(Path(__file__).parents[1] / "tools" / "pocket"))
from wordnet import read_synsets  # of this repository's tools


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=Path("data"))
    parser.add_argument("--wordnet", type=Path)
    parser.add_argument("--cache", type=Path, default=Path("cache"))
    parser.add_argument("--write", type=Path)
    parser.add_argument("--model", default="pocket")
    parser.add_argument("--images", type=int, default=800)
    parser.add_argument("--calibration", type=int, default=300)
    parser.add_argument("--splits", type=int, default=100)
    options = parser.parse_args()
    if options.write:
        lines = imagenet_paths(options.wordnet, wordnet_ids(), imagenet_names())
        options.write.write_text("\n".join(["path", *(f'"{line}"' for line in lines)]) + "\n", encoding="utf-8")
        return
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
    known = {name: [row[name] for row in rows if not np.isnan(row[name])] for name in rows[0]}
    means = {name: np.mean(values) if values else None for name, values in known.items()}
    forms = {"certified": (100, 0), "answered": (100, 0), "label": (100, 0), "depth": (1, 1), "wrong": (100, 1)}
    return " | ".join("" if means[name] is None else f"{by * means[name]:.{n}f}" for name, (by, n) in forms.items())


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
    return paths, [labels.index(path.parent.name) for path in paths], labels, class_paths(PETS, labels)


def caltech(options):
    split = json.loads((options.data / "caltech-101" / "split_zhou_Caltech101.json").read_text())["test"]
    labels = sorted({row[2] for row in split})
    paths = [options.data / "caltech-101" / "101_ObjectCategories" / row[0] for row in split]
    return paths, [labels.index(row[2]) for row in split], labels, class_paths(CALTECH101, labels)


def imagenet(options):
    """One image per class; names that two classes share get their WordNet ids."""
    rows = [row.split(" ", 1) for row in (options.data / "imagenet" / "classnames.txt").read_text().splitlines()]
    ids, names = [wnid for wnid, _ in rows], [name.strip() for _, name in rows]
    labels = [name if names.count(name) == 1 else f"{name} ({wnid})" for wnid, name in zip(ids, names, strict=True)]
    folder = options.data / "imagenet" / "images" / "val"
    paths = [(path, at) for at, wnid in enumerate(ids) for path in sorted((folder / wnid).iterdir())]
    tree = imagenet_paths(options.wordnet, ids, labels)
    return [path for path, _ in paths], [at for _, at in paths], labels, tree


def imagenet_paths(wordnet: Path, ids: Sequence[str], labels: Sequence[str]) -> list[str]:
    """Paths along WordNet's first hypernyms, without nodes that have a single child."""
    synsets, chains = read_synsets(wordnet), []
    for wnid in ids:
        chain = [wnid]
        while synsets[chain[-1]].parents:
            chain.append(synsets[chain[-1]].parents[0])
        chains.append(chain[:0:-1])  # from the root, without the class itself
    below: dict[str, set[str]] = {}
    for chain, wnid in zip(chains, ids, strict=True):
        for node, child in zip(chain, [*chain[1:], wnid], strict=True):
            below.setdefault(node, set()).add(child)
    paths = []
    for chain, label in zip(chains, labels, strict=True):
        kept = [node for node in chain if len(below[node]) > 1 and node not in ids]
        paths.append(" > ".join([*(f"{synsets[node].words[0]} {node}" for node in kept), label]))
    return paths


if __name__ == "__main__":
    main()
