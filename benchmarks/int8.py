"""What int8 costs: accuracy and ECE of an exported int8 file against full precision, paired by image, zero-shot.

python benchmarks/int8.py FOLDER [--images 600] [--ranges 100] [--model pocket]

FOLDER has one subfolder per label. Images that set the ranges of the activations are not evaluated.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path

import numpy as np

from poise import Classifier
from poise.data import open_dataset
from poise.export import export_onnx, open_onnx
from poise.metrics.bootstrap import estimate
from poise.metrics.sample import Sample


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--images", type=int, default=600)
    parser.add_argument("--ranges", type=int, default=100)
    parser.add_argument("--model", default="pocket")
    options = parser.parse_args()
    data = open_dataset(f"folder:{options.folder}")
    order = np.random.default_rng(0).permutation(len(data.items))
    items = [data.items[at] for at in order[: options.ranges + options.images]]
    ranges, tested = items[: options.ranges], items[options.ranges :]
    classifier = Classifier(data.classes, options.model, "zero-shot", device="cpu")
    file = Path(tempfile.mkdtemp()) / "int8.onnx"
    export_onnx(classifier, file, int8=[str(item.source()) for item in ranges])
    truth, found = [item.label for item in tested], {}
    for name, classify in (("float32", classifier), ("int8", open_onnx(file))):
        began = time.process_time()
        probs = classify.predict_proba([str(item.source()) for item in tested])
        used = (time.process_time() - began) / len(tested)
        found[name] = probs, estimate([Sample.of(probs, truth)], names=("accuracy", "ece"))
        print(name, f"processor time per image {1000 * used:.1f} ms", flush=True)
    (plain, first), (small, second) = found.values()
    agree = (plain.argmax(1) == small.argmax(1)).mean()
    print(
        f"{len(tested)} images; labels agree on {100 * agree:.1f} %, mean change of the confidence "
        f"{np.abs(plain.max(1) - small.max(1)).mean():.4f}"
    )
    for name in ("accuracy", "ece"):
        change = second[name] - first[name]
        low, high = change.bounds
        print(
            f"{name}: {100 * first[name].value:.2f} and {100 * second[name].value:.2f} %, difference "
            f"{100 * change.value:+.2f} [{100 * low:+.2f}, {100 * high:+.2f}]"
        )


if __name__ == "__main__":
    main()
