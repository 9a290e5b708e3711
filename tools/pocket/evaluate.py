"""Measure pocket under every method: `python tools/pocket/evaluate.py --sets imagenet caltech101 --limit 500`.

Prints one row per data set and method: accuracy, ECE (20 bins), mean confidence, mean entropy change on predictions
that were right and wrong before tuning, and the share of images where the target of the views names another class.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections import defaultdict
from pathlib import Path

import numpy as np

from poise import data, methods
from poise.backbones import load_model
from poise.evaluate.records import entropy
from poise.inference.predictor import Predictor
from poise.metrics import ece
from poise.prompts import tokenise
from poise.results import Failure
from poise.tuning import Tuner
from poise.types import Answer, DualEncoder
from poise.views import ViewRecipe

REPOSITORY = Path(__file__).resolve().parents[2]
Rows = dict[str, dict[str, list[float]]]


def record(rows: dict[str, list[float]], answer: Answer[np.ndarray], label: int) -> None:
    """Append what one image says about one method."""
    probs, start = answer.probs, answer.init_probs
    guess = int(probs.argmax())
    rows["confidence"].append(float(probs.max()))
    rows["right"].append(guess == label)
    rows["right before"].append(int(start.argmax()) == label)
    rows["change"].append(float(entropy(probs) - entropy(start)))
    rows["differs"].append(int(answer.target_probs.argmax()) != guess)


def measure(encoder: DualEncoder, name: str, root: Path, limit: int, views: int, batch: int) -> Rows:
    """Every method on every n-th image of a set, spread over its whole length."""
    images = data.open_dataset(name, root)
    step = max(1, len(images.items) // limit) if limit else 1
    items = images.items[::step]
    tuner = Tuner(encoder, tokenise(encoder, images.classes, repeats=True), [methods.get(m) for m in methods.names()])
    rows: Rows = defaultdict(lambda: defaultdict(list))
    start = time.time()
    predictor = Predictor(encoder, tuner, ViewRecipe(views), batch_size=batch)
    for number, (item, outcome) in enumerate(zip(items, predictor.run(items), strict=True)):
        if isinstance(outcome, Failure):
            sys.exit(f"{outcome.source}: {outcome.message}")
        for method, answer in outcome.items():
            record(rows[method], answer, item.label)
        if number % (10 * batch) == 0:
            print(f"{name} {number + 1}/{len(items)} {time.time() - start:.0f}s", file=sys.stderr, flush=True)
    return rows


def line(name: str, method: str, found: dict[str, list[float]]) -> str:
    """One row of the table, in percent and nats."""
    right, before = np.array(found["right"], bool), np.array(found["right before"], bool)
    change, confidence = np.array(found["change"]), np.array(found["confidence"])
    shares = (right.mean(), ece(confidence, right), confidence.mean())
    cells = [f"{name} ({len(right)})", method, *(f"{100 * share:.2f}" for share in shares)]
    cells += [f"{change[before].mean():+.3f}", f"{change[~before].mean():+.3f}"]
    return "| " + " | ".join([*cells, f"{100 * np.mean(found['differs']):.1f}"]) + " |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sets", nargs="+", default=["imagenet", "caltech101"])
    parser.add_argument("--data", type=Path, default=REPOSITORY.parent / "shared" / "data")
    parser.add_argument("--model", default="pocket")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--limit", type=int, default=0, help="about this many images of each set; 0: all")
    parser.add_argument("--views", type=int, default=64)
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--out", type=Path, help="write the per-image numbers here, as JSON")
    args = parser.parse_args()
    encoder = load_model(args.model, device=args.device, dtype="float32")
    heads = ("set (images)", "method", "top-1", "ECE", "mean conf.", "ΔH right", "ΔH wrong", "discrepancy")
    table = ["| " + " | ".join(heads) + " |", "|---|---" + 6 * "|--:" + "|"]
    everything = {}
    for name in args.sets:
        rows = measure(encoder, name, args.data, args.limit, args.views, args.batch)
        table += [line(name, method, found) for method, found in rows.items()]
        everything[name] = rows
    print("\n".join(table))
    if args.out:
        args.out.write_text(json.dumps(everything))


if __name__ == "__main__":
    main()
