"""Seconds per image of zero-shot, and of kld+cats with 8 to 64 views, on a CPU, in one run.

OMP_WAIT_POLICY=PASSIVE python benchmarks/view_costs.py PHOTOS [--images 8] [--device openvino]

PHOTOS has one subfolder per label. One image at a time, with the model loaded and the labels encoded; the rows
alternate, so that a busy machine delays all of them. Processor time hardly depends on what else runs if threads do
not spin while they wait, which the variable says (`poise` sets it for its own commands).
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from pathlib import Path

import torch

from poise import Classifier, load_model

VIEWS = (8, 16, 32, 64)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("photos", type=Path)
    parser.add_argument("--images", type=int, default=8)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--device", default="cpu", help="cpu or openvino")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    labels = sorted(path.name for path in options.photos.iterdir() if path.is_dir())
    photos = sorted(options.photos.glob("*/*"))
    photos = photos[:: max(1, len(photos) // options.images)][: options.images]
    model = load_model("pocket", device=options.device)
    rows = {"zero-shot": Classifier(labels, model, "zero-shot")}
    rows |= {f"kld+cats, {views} views": Classifier(labels, model, views=views) for views in VIEWS}
    times: dict[str, list[tuple[float, float]]] = {name: [] for name in rows}
    for classify in rows.values():
        classify(photos[0])
    for photo in photos:
        for name, classify in rows.items():
            wall, used = time.perf_counter(), time.process_time()
            classify(photo)
            times[name].append((time.perf_counter() - wall, time.process_time() - used))
    base = statistics.median(used for _, used in times["zero-shot"])
    print(f"{len(photos)} images, {len(labels)} labels, {options.threads} threads, load {os.getloadavg()[0]:.1f}")
    for name, each in times.items():
        walls, useds = zip(*each, strict=True)
        used = statistics.median(useds)
        print(f"{name:20} wall, minimum {min(walls):.3f} s; processor time, median {used:.3f} s ({used / base:.1f} x)")


if __name__ == "__main__":
    main()
