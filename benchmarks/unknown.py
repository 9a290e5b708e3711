"""How well signals without labelled images find wrong answers and out-of-distribution images: docs/unknown.md.

python benchmarks/unknown.py --data FOLDER --cache FOLDER

FOLDER contains Caltech101, EuroSAT and ImageNet in CoOp's layout, and `folders/pets` and `folders/cifar100` with one
folder per class. Labels of images are used to measure, never to choose a number. Out-of-distribution (OOD): half of
the classes, drawn at random, are left out of the labels, and images of these classes count as unknown (mean over
several draws).
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from scipy.stats import rankdata, spearmanr
from unknown_scores import BROAD, NEUTRAL, auroc, blank_features, familiarity, matches, scores, text_features

from poise import data, methods
from poise.backbones import load_model
from poise.inference.features import LabelledFeatures, encode
from poise.metrics.bootstrap import interval, resampled_counts
from poise.metrics.sample import Bools, Floats, Ints
from poise.prompts import tokenise
from poise.tuning import Tuner
from poise.types import Answer, DualEncoder
from poise.views import ViewRecipe

METHOD = "kld+cats"
Case = tuple[Floats, Bools]  # a score [N], and which images [N] should have a high one
Cells = dict[str, dict[str, str]]  # by row and column


def main() -> None:
    options = _options()
    torch.set_grad_enabled(False)
    encoder = load_model(options.model, device=options.device)
    sets = [*options.sets, *(f"folder:{options.data}/folders/{name}" for name in options.folders)]
    plain: dict[str, tuple[LabelledFeatures, tuple[str, ...]]] = {}
    for name in sets:
        images = data.open_dataset(name, options.data).subset(options.images)
        plain[Path(name).name] = encode(images, encoder, ViewRecipe(1), cache=options.cache), images.classes
    print(f"{options.model}, at most {options.images} images per set, {options.splits} draws of known classes\n")
    _show_scores(encoder, plain, options)
    _show_rules(encoder, plain, options.splits)
    _show_familiarity(encoder, plain, options)
    if options.view_images:
        _show_views(encoder, sets, options)


def known_classes(classes: int, draw: int) -> Ints:
    """Return the classes that stay in the list of labels."""
    return np.random.default_rng(draw).permutation(classes)[: classes // 2]


def _show_scores(encoder: DualEncoder, plain: dict, options: argparse.Namespace) -> None:
    """AUROC of every candidate on the plain view, without tuning."""
    words = [text_features(encoder, names) for names in (NEUTRAL, BROAD)]
    wrong, unknown = {}, {}
    for name, (stored, classes) in plain.items():
        images, labels = stored.features[:, 0].double().numpy(), stored.labels.numpy()
        texts, others = text_features(encoder, classes), [images @ word.T for word in words]
        right = (images @ texts.T).argmax(1) == labels
        found = scores(images @ texts.T, encoder.scale, *others)
        wrong[f"{name}, {right.mean():.0%} right"] = {key: [(score, right)] for key, score in found.items()}
        draws = [known_classes(len(classes), draw) for draw in range(options.splits)]
        cases = [(scores(images @ texts[kept].T, encoder.scale, *others), np.isin(labels, kept)) for kept in draws]
        unknown[name] = {key: [(found[key], known) for found, known in cases] for key in cases[0][0]}
    _print_table("AUROC in %, wrong answers", *_areas(wrong, options.resamples))
    _print_table("AUROC in %, out-of-distribution images", *_areas(unknown, options.resamples))


def _areas(columns: dict[str, dict[str, list[Case]]], resamples: int) -> tuple[Cells, dict[str, float]]:
    """Mean AUROC over the cases of each cell with its 95 % interval over images, and the mean rank of each row."""
    values: dict[str, list[float]] = {}
    cells: Cells = {}
    for column, rows in columns.items():
        for row, cases in rows.items():
            functions = [auroc(score, good) for score, good in cases]
            size = len(cases[0][0])
            value = float(np.mean([function(np.ones((1, size))) for function in functions]))
            draws = np.concatenate(
                [
                    np.mean([function(counts) for function in functions], axis=0)
                    for counts in resampled_counts(size, resamples)
                ]
            )
            _, low, high = interval(value, draws[np.isfinite(draws)])
            values.setdefault(row, []).append(value)
            cells.setdefault(row, {})[column] = f"{100 * value:.1f} ({100 * low:.1f} to {100 * high:.1f})"
    ranks = np.mean([rankdata(-np.array(column)) for column in zip(*values.values(), strict=True)], axis=0)
    for row, numbers in values.items():
        cells[row]["mean"] = f"{100 * np.mean(numbers):.1f}"
    return cells, dict(zip(values, ranks.tolist(), strict=True))


def _show_rules(encoder: DualEncoder, plain: dict, splits: int) -> None:
    """Which images are rejected by rules without images, and by one that needs images of the known classes."""
    neutral, broad, blank = (text_features(encoder, NEUTRAL), text_features(encoder, BROAD), blank_features(encoder))
    cells: Cells = {}
    for name, (stored, classes) in plain.items():
        images, labels = stored.features[:, 0].double().numpy(), stored.labels.numpy()
        texts = text_features(encoder, classes)
        rates: dict[str, list[tuple[float, float, float]]] = {}
        for draw in range(splits):
            kept = known_classes(len(classes), draw)
            cosines, known = images @ texts[kept].T, np.isin(labels, kept)
            right = kept[cosines.argmax(1)] == labels
            best, matched = cosines.max(1), matches(cosines)
            level, low = np.median(matches(blank @ texts[kept].T)), np.quantile(matched[known], 0.05)
            for rule, rejected in (
                ("a neutral word matches better than every label", best < (images @ neutral.T).max(1)),
                ("a broad word matches better than every label", best < (images @ broad.T).max(1)),
                ("match below the median of images without content", matched < level),
                ("for comparison: match below the 5 % quantile of known classes", matched < low),
            ):
                groups = (known & right, known, ~known)
                rates.setdefault(rule, []).append(tuple(float(rejected[group].mean()) for group in groups))
        for rule, rows in rates.items():
            cells.setdefault(rule, {})[name] = " / ".join(f"{100 * rate:.0f}" for rate in np.mean(rows, axis=0))
    _print_table("Rejected in %: right answers / known classes / OOD", cells)


def _show_familiarity(encoder: DualEncoder, plain: dict, options: argparse.Namespace) -> None:
    """Spearman correlation of candidates with the accuracy per class, with intervals over classes."""
    cells: Cells = {}
    generator = np.random.default_rng(0)
    for name, (stored, classes) in plain.items():
        images, labels = stored.features[:, 0].double().numpy(), stored.labels.numpy()
        right = (images @ text_features(encoder, classes).T).argmax(1) == labels
        present = np.unique(labels)
        accuracy = np.array([right[labels == label].mean() for label in present])
        draws = [generator.integers(0, len(present), len(present)) for _ in range(options.resamples)]
        for candidate, values in familiarity(encoder, classes).items():
            chosen = values[present]
            varied = [rows for rows in draws if np.ptp(chosen[rows]) and np.ptp(accuracy[rows])]  # others have none
            replicates = [spearmanr(chosen[rows], accuracy[rows]).statistic for rows in varied]
            low, high = np.quantile(replicates, [0.025, 0.975])
            value = spearmanr(chosen, accuracy).statistic
            cells.setdefault(candidate, {})[name] = f"{value:+.2f} ({low:+.2f} to {high:+.2f})"
    _print_table("Spearman correlation with the accuracy per class", cells)


def _show_views(encoder: DualEncoder, sets: Sequence[str], options: argparse.Namespace) -> None:
    """AUROC of the signals of tuned answers, with the agreement under the initial and under the tuned prompt."""
    columns: dict[str, dict[str, list[Case]]] = {}
    for name in sets:
        images = data.open_dataset(name, options.data).subset(options.view_images)
        stored = encode(images, encoder, ViewRecipe(options.views), cache=options.cache)
        kept = np.sort(known_classes(len(images.classes), 0))
        labels = stored.labels.numpy()
        everything = np.arange(len(images.classes))
        for heading, chosen in (("wrong", everything), ("OOD", kept)):
            answers = _answers(encoder, [images.classes[label] for label in chosen], stored.features)
            tuned = chosen[answers[METHOD].probs.argmax(-1).numpy()]
            good = tuned == labels if heading == "wrong" else np.isin(labels, kept)
            columns[f"{Path(name).name}: {heading}"] = {
                key: [(score, good)] for key, score in _view_scores(encoder, answers).items()
            }
    _print_table(
        f"AUROC in %, {METHOD}, {options.view_images} images of {options.views} views, one draw of known classes",
        *_areas(columns, options.resamples),
    )


def _view_scores(encoder: DualEncoder, answers: dict[str, Answer[torch.Tensor]]) -> dict[str, Floats]:
    init, tuned = answers["zero-shot"], answers[METHOD]
    label = tuned.probs.argmax(-1, keepdim=True)

    def agree(answer: Answer[torch.Tensor]) -> Floats:
        return (answer.view_labels[:, 1:] == label).double().mean(1).numpy()

    def match(answer: Answer[torch.Tensor]) -> Floats:
        return matches((answer.logits.double().numpy() - encoder.bias) / encoder.scale)

    return {
        "confidence (init)": init.probs.amax(-1).double().numpy(),
        "confidence": tuned.probs.amax(-1).double().numpy(),
        "match (init)": match(init),
        "match": match(tuned),
        "agreement (init)": agree(init),
        "agreement": agree(tuned),
        "confidence x agreement": tuned.probs.amax(-1).double().numpy() * agree(tuned),
    }


def _answers(encoder: DualEncoder, classes: Sequence[str], features: torch.Tensor) -> dict[str, Answer[torch.Tensor]]:
    """Answers by method, without the text features, which take much memory."""
    tuner = Tuner(encoder, tokenise(encoder, classes, repeats=True), [methods.get("zero-shot"), methods.get(METHOD)])
    parts = [tuner.predict(part) for part in features.split(16)]
    joined = {}
    for name in parts[0]:
        tensors = {
            key: torch.cat([getattr(part[name], key) for part in parts]) for key in ("probs", "logits", "view_labels")
        }
        joined[name] = replace(parts[0][name], **tensors)
    return joined


def _print_table(title: str, cells: Cells, ranks: dict[str, float] | None = None) -> None:
    """Print a Markdown table, rows by their mean rank."""
    order: Iterable[str] = sorted(cells, key=ranks.__getitem__) if ranks else cells
    columns = list(next(iter(cells.values())))
    head = ["", *columns, *(["mean rank"] if ranks else [])]
    print(f"**{title}**\n\n| {' | '.join(head)} |\n|{'---|' * len(head)}")
    for row in order:
        rank = [f"{ranks[row]:.1f}"] if ranks else []
        print(f"| {' | '.join([row, *(cells[row][column] for column in columns), *rank])} |")
    print(flush=True)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", required=True, help="folder of the data sets")
    parser.add_argument("--cache", help="folder for the features of images, which take most of the time")
    parser.add_argument("--sets", nargs="*", default=["caltech101", "eurosat", "imagenet"])
    parser.add_argument("--folders", nargs="*", default=["pets", "cifar100"], help="below DATA/folders")
    parser.add_argument("--model", default="pocket")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--images", type=int, default=1000, help="images per set")
    parser.add_argument("--splits", type=int, default=10, help="draws of known classes")
    parser.add_argument("--resamples", type=int, default=500)
    parser.add_argument("--view-images", type=int, default=0, help="images to tune; 0: none")
    parser.add_argument("--views", type=int, default=9, help="views of these images")
    return parser.parse_args()


if __name__ == "__main__":
    main()
