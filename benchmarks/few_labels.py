"""What a few labelled images give: ``python benchmarks/few_labels.py --data DATA --cache FOLDER --clip FILE``.

DATA holds Caltech101, EuroSAT and ImageNet in CoOp's layout, and `folders/pets` and `folders/cifar100`. Features are
computed once and kept in FOLDER, by the hash of the model's weights. FILE holds stored CLIP features (safetensors:
`image` [N, D], `text` [C, D], `label` [N]); those of docs/results.md are of ImageNet training images, one per class,
and means over augmentations. In the rows "CLIP C", each image has its label and C - 1 others, drawn at random, to be
told apart.

For each population and 10 to 200 labelled images, the images are split at random many times. On the labelled ones a
calibrator is fitted, the quantile of 90 % prediction sets (LAC) is computed and thresholds are certified; everything is
measured on the others. Numbers are means over the splits. ECE and its floor are in percent, and log-loss is that of the
top label, in nats; "failed" is the share of splits whose certified error is exceeded on the other images, which 5 % of
the splits may do (more where few images are answered: their error is itself noisy).
"""

from __future__ import annotations

import argparse
from collections import defaultdict
from pathlib import Path

import numpy as np
from safetensors.numpy import load_file
from scipy import special
from unknown_scores import text_features

from poise.calibration import certify, fit_calibrator, quantile, scores
from poise.metrics import Sample, ece
from poise.metrics.floor import ece_floor

NUMBERS = (10, 25, 50, 100, 200)
COVERAGE = 0.9
ERRORS = (0.05, 0.1, 0.2)
CERTIFIED = [f"{name} {100 * error:g} %" for error in ERRORS for name in ("certified", "answered", "failed")]
PAIRS = ("ECE", "floor", "above floor", "log-loss", "NLL")  # each before and after calibration
COLUMNS = (*(f"{name} {when}" for name in PAIRS for when in ("before", "after")), "as it is", "coverage", "size")
CLIP_LABELS = (10, 30, 100, 300, 1000)
Population = tuple[np.ndarray, np.ndarray]  # probabilities [N, C] and labels [N]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path)
    parser.add_argument("--cache", type=Path, help="folder for features and probabilities")
    parser.add_argument("--clip", type=Path)
    parser.add_argument("--model", default="pocket")
    parser.add_argument("--sets", nargs="+", default=["caltech101", "eurosat", "imagenet", "pets", "cifar100"])
    parser.add_argument("--splits", type=int, default=100)
    parser.add_argument("--numbers", type=int, nargs="+", default=NUMBERS)
    options = parser.parse_args()
    populations = {}
    if options.data is not None:
        populations |= zero_shot(options.model, options.sets, options.data, options.cache)
    if options.clip is not None:
        populations |= stored_features(options.clip)
    columns = (*COLUMNS, *CERTIFIED)
    print(f"| population | labelled | {' | '.join(columns)} |\n|---|--:|{'--:|' * len(columns)}")
    found: dict[tuple[str, int], list[np.ndarray]] = defaultdict(list)
    for name, (probs, labels) in populations.items():
        for number in (number for number in options.numbers if number < len(labels) / 2):
            mean = np.mean([one_split(probs, labels, number, [0, draw]) for draw in range(options.splits)], axis=0)
            found[name.partition(" ")[0] if name.startswith("CLIP") else "mean", number].append(mean)
            print(f"| {name} | {number} | {shown(mean)} |", flush=True)
    for (name, number), rows in found.items():
        print(f"| **{name}** | {number} | {shown(np.mean(rows, axis=0))} |")


def zero_shot(model: str, names: list[str], data: Path, cache: Path | None) -> dict[str, Population]:
    """Return the zero-shot probabilities of datasets under a model."""
    import torch

    from poise.backbones import load_model
    from poise.data import open_dataset
    from poise.inference.features import encode
    from poise.views import ViewRecipe

    torch.set_grad_enabled(False)
    encoder = load_model(model, device="cpu")
    found = {}
    for name in names:
        path = data / "folders" / name
        images = open_dataset(f"folder:{path}" if path.is_dir() else name, data)
        kept = None if cache is None else cache / encoder.fingerprint()
        stored = encode(images, encoder, ViewRecipe(1), cache=kept)
        cosines = stored.features[:, 0].double().numpy() @ text_features(encoder, images.classes).T
        found[name] = special.softmax(encoder.scale * cosines, axis=1), stored.labels.numpy()
    return found


def stored_features(path: Path) -> dict[str, Population]:
    """Return the zero-shot probabilities of stored features among some of their labels, at a logit scale of 100."""
    stored = load_file(path)
    image, text = (stored[name].astype(np.float64) for name in ("image", "text"))
    generator, found = np.random.default_rng(0), {}
    cosines, truth = image @ text.T, stored["label"]
    for number in CLIP_LABELS:
        order = np.argsort(generator.random(cosines.shape), axis=1)
        others = np.array([row[row != label][: number - 1] for row, label in zip(order, truth, strict=True)])
        kept = np.hstack([truth[:, None], others])  # the correct label is the first, and ties do not happen
        found[f"CLIP {number}"] = special.softmax(100 * np.take_along_axis(cosines, kept, 1), 1), np.zeros_like(truth)
    return found


def one_split(probs: np.ndarray, labels: np.ndarray, number: int, seed: list[int]) -> list[float]:
    """Return one value per column."""
    order = np.random.default_rng(seed).permutation(len(labels))
    given, others = order[:number], order[number:]
    fit = fit_calibrator(probs[given], labels[given])
    before = Sample.of(probs[others], labels[others])
    after = Sample.of(fit.calibrator.apply(probs[others]), labels[others])
    lac = scores.get("lac")
    members = lac.sets(probs[others], quantile(lac.of_labels(probs[given], labels[given]), COVERAGE)).members
    row = [value for metric in (error, floor, above_floor, log_loss, nll) for value in each(metric, before, after)]
    row.append(fit.unchanged)
    row += [100 * members[np.arange(len(others)), labels[others]].mean(), members.sum(1).mean()]
    known = Sample.of(probs[given], labels[given])
    for share in ERRORS:
        threshold = certify(known.confidence, known.correct, share).threshold
        answered = np.zeros(len(others), bool) if threshold is None else before.confidence >= threshold
        failed = answered.any() and (~before.correct[answered]).mean() > share
        row += [100.0 * (threshold is not None), 100 * answered.mean(), 100.0 * failed]
    return row


def each(metric, *samples: Sample) -> list[float]:  # type: ignore[no-untyped-def]
    return [metric(sample) for sample in samples]


def error(sample: Sample) -> float:
    return 100 * ece(sample.confidence, sample.correct)


def floor(sample: Sample) -> float:
    return 100 * ece_floor(sample.confidence)


def above_floor(sample: Sample) -> float:
    return error(sample) - floor(sample)


def log_loss(sample: Sample) -> float:
    confidence = np.clip(sample.confidence, 1e-6, 1 - 1e-6)
    return float(-np.log(np.where(sample.correct, confidence, 1 - confidence)).mean())


def nll(sample: Sample) -> float:
    assert sample.probs is not None
    return float(-np.log(np.maximum(sample.probs[np.arange(len(sample)), sample.labels], 1e-12)).mean())


def shown(values: np.ndarray) -> str:
    digits = [*[2] * 6, *[4] * 4, 2, 1, 1, *[1] * len(CERTIFIED)]
    return " | ".join(f"{value:.{places}f}" for value, places in zip(values, digits, strict=True))


if __name__ == "__main__":
    main()
