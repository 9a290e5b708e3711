"""End to end: from JPEG bytes to probabilities with AugMix and 47 classes, poise against the plain loop."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence

import numpy as np
import torch
from bench import Bench, plan_of, split_views
from inputs import jpegs, labels
from plain import PlainViews, plain_loader
from torch import Tensor

from poise.data.items import Held, Item
from poise.images import read_image
from poise.inference.predictor import Predictor
from poise.loading.overlap import map_ahead
from poise.loading.prepare import Preparer
from poise.prompts import tokenise
from poise.tuning import Tuner
from poise.types import ClassTokens
from poise.views import ViewRecipe
from poise.views.pil.crops import make_views

CLASSES = 47


def end(bench: Bench) -> None:
    """Measure both in one run; the rate of the plain loop is measured once."""
    options = bench.options
    classes = tokenise(bench.encoder, labels(CLASSES))
    files = jpegs(min(options.images, 64))
    if "plain" not in bench.cache:
        plain_files = (files * 9)[: options.workers * (1 + options.plain_images)]
        bench.cache["plain"] = _plain_answers(bench, classes, files[:2]), *_plain_rate(bench, classes, plain_files)
    expected, plain_rate, plain_host = bench.cache["plain"]
    items = [Item(str(number), -1, Held(files[number % len(files)])) for number in range(options.images)]
    tuner = bench.tuner(classes)
    for batch in options.end_batch or [options.batch]:
        ours = _Ours(bench, tuner, batch)
        ours.answers(items[: 6 * batch])  # starts the reader processes
        ours.read(items[: 6 * batch])
        rates = {part: _rate(bench, ours, part, items) for part in ("read", "views", "encode", "answers")}
        gap = (expected - ours.answers(items[:batch])[: len(expected)]).abs().mean().item() * CLASSES
        rate, host = rates["answers"]
        memory = bench.peak(lambda ours=ours, batch=batch: ours.answers(items[: 4 * batch]))
        bench.note(
            "end",
            classes=CLASSES,
            batch=batch,
            plain_per_s=plain_rate,
            ours_per_s=rate,
            times=rate / plain_rate,
            read_per_s=rates["read"][0],
            views_per_s=rates["views"][0],
            bare_per_s=rates["encode"][0],
            plain_host_ms=plain_host,
            host_ms=host,
            ours_gib=memory,
            mean_gap=gap,
            workers=options.workers,
        )


class _Ours:
    """The stages of poise's pipeline."""

    def __init__(self, bench: Bench, tuner: Tuner, batch: int) -> None:
        workers = bench.options.threads
        self._recipe = ViewRecipe(bench.options.views, augmix=True)
        self._predictor = Predictor(bench.encoder, tuner, self._recipe, batch_size=batch, workers=workers)
        self._preparer = Preparer(bench.encoder, workers=workers, processes=bench.device.type == "cuda")
        self._encoder, self._batch = bench.encoder, batch

    def read(self, items: Sequence[Item]) -> None:
        """Read the images."""
        ready = map_ahead(
            lambda item: self._preparer.prepare(item, self._recipe, 0),
            items,
            threads=self._preparer.workers,
            window=2 * self._batch,
        )
        for _ in ready:
            pass

    def views(self, items: Sequence[Item]) -> None:
        """Read the images and cut their views."""
        for _ in self._predictor.views(items):
            pass

    def encode(self, items: Sequence[Item]) -> None:
        """Run only the image tower, once per batch."""
        views = torch.stack(list(self._predictor.views(items[: self._batch])))
        with torch.no_grad():
            for _ in range(len(items) // self._batch):
                self._encoder.encode_images(views)

    def answers(self, items: Sequence[Item]) -> Tensor:
        """Run all stages and return the probabilities [N, C]."""
        probs = [outcome["tpt"].probs for outcome in self._predictor.run(items)]
        return torch.from_numpy(np.stack(probs)).float()


def _rate(bench: Bench, ours: _Ours, part: str, items: Sequence[Item]) -> tuple[float, float]:
    """Return the images per second of a stage, and this process's CPU milliseconds per image."""
    bench.sync()
    began, spent = time.perf_counter(), time.process_time()
    getattr(ours, part)(items)
    bench.sync()
    return len(items) / (time.perf_counter() - began), 1000 * (time.process_time() - spent) / len(items)


def _plain_rate(bench: Bench, classes: ClassTokens, files: Sequence[bytes]) -> tuple[float, float]:
    """Return the plain loop's images per second after a warm-up, and the CPU milliseconds of all its processes."""
    dataset = PlainViews(files, bench.encoder.image, views=bench.options.views)
    loader = plain_loader(dataset, workers=bench.options.workers, pin=bench.device.type == "cuda")
    loop, first, began, spent = bench.plain_loop(classes), bench.options.workers, 0.0, sum(os.times()[:4])
    for index, views in enumerate(loader):
        loop(views).cpu()
        if index + 1 == first:
            began = time.perf_counter()
    rate = (len(files) - first) / (time.perf_counter() - began)
    del loader  # the time of its workers is counted when they have ended
    return rate, 1000 * (sum(os.times()[:4]) - spent) / len(files)


def _plain_answers(bench: Bench, classes: ClassTokens, files: Sequence[bytes]) -> Tensor:
    """Return the plain loop's probabilities for the PIL views of poise's plans."""
    loop = bench.plain_loop(classes)
    views = (
        make_views(loaded.image, bench.encoder.image, plan_of(loaded, bench.options.views))
        for loaded in map(read_image, files)
    )
    return torch.stack([loop(split_views(image_views)).cpu() for image_views in views])
