"""End to end: JPEG bytes to probabilities with AugMix, 47 classes, ours against the plain loop."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from bench import Bench, pictures_of, plan_of
from held import Held
from inputs import jpegs, labels
from plain import PlainViews, plain_loader
from torch import Tensor

from poise.data import Item
from poise.images import read_image
from poise.inference.limits import Limits
from poise.inference.predictor import Predictor
from poise.loading.overlap import map_ahead
from poise.loading.prepare import Preparer
from poise.prompts import tokenise
from poise.tuning import Tuner
from poise.types import ClassTokens
from poise.views import ViewRecipe, make_views

CLASSES = 47


def end(bench: Bench) -> None:
    """Both ways in one run; the plain loop's rate is measured once."""
    options = bench.options
    classes = tokenise(bench.encoder, labels(CLASSES))
    files = jpegs(min(options.images, 64))
    if "wanted" not in bench.kept:
        bench.kept["wanted"] = _plain_answers(bench, classes, files[:2])
        plain_files = (files * 9)[: options.workers * (1 + options.plain_images)]
        bench.kept["plain"] = _plain_rate(bench, classes, plain_files)
    wanted, (plain_rate, plain_host) = bench.kept["wanted"], bench.kept["plain"]
    items = [Item(str(number), 0, Held(files[number % len(files)])) for number in range(options.images)]
    tuner = bench.tuner(classes)
    for batch in options.end_batch or [options.batch]:
        ours = _Ours(bench, tuner, batch)
        ours.answers(items[: 6 * batch])  # starts the processes that read
        ours.read(items[: 6 * batch])
        rates = {part: _rate(bench, ours, part, items) for part in ("read", "made", "bare", "answers")}
        gap = (wanted - ours.answers(items[:batch])[: len(wanted)]).abs().mean().item() * CLASSES
        rate, host = rates["answers"]
        memory = bench.peak(lambda ours=ours, batch=batch: ours.answers(items[: 4 * batch]))
        bench.note("end", classes=CLASSES, batch=batch, plain_per_s=plain_rate, ours_per_s=rate,
                   times=rate / plain_rate, read_per_s=rates["read"][0], views_per_s=rates["made"][0],
                   bare_per_s=rates["bare"][0], plain_host_ms=plain_host, host_ms=host, ours_gib=memory,
                   mean_gap=gap, workers=options.workers)  # fmt: skip


class _Ours:
    """The pipeline of poise, up to one of its stages."""

    def __init__(self, bench: Bench, tuner: Tuner, batch: int) -> None:
        limits = Limits(batch_size=batch, workers=bench.options.threads)
        self._recipe = ViewRecipe(bench.options.views, augmix=True)
        self._predictor = Predictor(bench.encoder, tuner, self._recipe, limits=limits)
        self._preparer = Preparer(bench.encoder, workers=limits.workers, processes=bench.device.type == "cuda")
        self._encoder, self._batch = bench.encoder, batch

    def read(self, items: Sequence[Item]) -> None:
        """Reading alone."""
        ready = map_ahead(
            lambda item: self._preparer.prepare(item, self._recipe, 0),
            items,
            threads=self._preparer.workers,
            window=2 * self._batch,
        )
        for _ in ready:
            pass

    def made(self, items: Sequence[Item]) -> None:
        """Reading and views."""
        for _ in self._predictor.views(items):
            pass

    def bare(self, items: Sequence[Item]) -> None:
        """The image tower alone, as often as there are batches."""
        made = torch.stack(list(self._predictor.views(items[: self._batch])))
        with torch.no_grad():
            for _ in range(len(items) // self._batch):
                self._encoder.encode_images(made)

    def answers(self, items: Sequence[Item]) -> Tensor:
        """Everything: probabilities [N, C]."""
        found = [outcome.answers["tpt"].probs for outcome in self._predictor.run(items)]
        return torch.from_numpy(np.stack(found)).float()


def _rate(bench: Bench, ours: _Ours, part: str, items: Sequence[Any]) -> tuple[float, float]:
    """Images per second of one of the stages, and this process's CPU milliseconds per image."""
    bench.sync()
    began, spent = time.perf_counter(), time.process_time()
    getattr(ours, part)(items)
    bench.sync()
    return len(items) / (time.perf_counter() - began), 1000 * (time.process_time() - spent) / len(items)


def _plain_rate(bench: Bench, classes: ClassTokens, files: Sequence[bytes]) -> tuple[float, float]:
    """Images per second of the plain loop, from when every worker has delivered once; CPU milliseconds of all."""
    dataset = PlainViews(files, bench.encoder.image, views=bench.options.views)
    loader = plain_loader(dataset, workers=bench.options.workers, pin=bench.device.type == "cuda")
    loop, first, began, spent = bench.plain_loop(classes), bench.options.workers, 0.0, sum(os.times()[:4])
    for index, views in enumerate(loader):
        loop(views).cpu()
        if index + 1 == first:
            began = time.perf_counter()
    rate = (len(files) - first) / (time.perf_counter() - began)
    del loader  # its workers are counted when they have ended
    return rate, 1000 * (sum(os.times()[:4]) - spent) / len(files)


def _plain_answers(bench: Bench, classes: ClassTokens, files: Sequence[bytes]) -> Tensor:
    """The plain loop's probabilities on the PIL views that our plans describe."""
    loop = bench.plain_loop(classes)
    made = (make_views(picture.image, bench.encoder.image, plan_of(picture, bench.options.views))
            for picture in map(read_image, files))  # fmt: skip
    return torch.stack([loop(pictures_of(views)).cpu() for views in made])
