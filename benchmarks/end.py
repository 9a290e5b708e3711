"""End to end: JPEG bytes to probabilities with AugMix, 47 classes, ours against the plain loop."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from itertools import islice
from typing import Any

import torch
from bench import Bench, pictures_of, plan_of
from fixtures import jpegs, labels
from held import Held
from plain import PlainViews, plain_loader
from torch import Tensor

from poise.data import Item
from poise.images import read_image
from poise.loading.overlap import flow
from poise.loading.prepare import Preparation, ahead, batch_views
from poise.loading.processes import Readers
from poise.loading.reading import Prepared, Reading
from poise.prompts import tokenise
from poise.tuning import Tuner
from poise.types import ClassTokens
from poise.views import make_views

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
    with Readers(options.threads) if bench.device.type == "cuda" else nullcontext() as readers:
        for batch in options.end_batch or [options.batch]:
            ours = _Ours(bench, tuner, readers, batch)
            ours.answers(items[: 6 * batch])
            rates = {part: _rate(bench, ours, part, items) for part in ("read", "made", "bare", "answers")}
            gap = (wanted - ours.answers(items[:batch])[: len(wanted)]).abs().mean().item() * CLASSES
            rate, host = rates["answers"]
            memory = bench.peak(lambda ours=ours, batch=batch: ours.answers(items[: 4 * batch]))
            bench.note("end", classes=CLASSES, batch=batch, plain_per_s=plain_rate, ours_per_s=rate,
                       times=rate / plain_rate, read_per_s=rates["read"][0], views_per_s=rates["made"][0],
                       bare_per_s=rates["bare"][0], plain_host_ms=plain_host, host_ms=host, ours_gib=memory,
                       mean_gap=gap, workers=options.workers)  # fmt: skip


class _Ours:
    """The stages of a run, as `poise bench run` has them."""

    def __init__(self, bench: Bench, tuner: Tuner, readers: Readers | None, batch: int) -> None:
        self._bench, self._tuner, self._readers, self._batch = bench, tuner, readers, batch
        self._prepare = Preparation(bench.encoder.image, Reading(bench.options.views, augmix=True), cut=False)

    def read(self, items: Sequence[Item]) -> None:
        """Reading alone."""
        for _ in self._batches(items):
            pass

    def made(self, items: Sequence[Item]) -> None:
        """Reading and views."""
        for _ in flow(self._batches(items), self._bench.device, self._views, lambda batch, made: None):
            pass

    def bare(self, items: Sequence[Item]) -> None:
        """The image tower alone, as often as there are batches."""
        made = self._views(next(self._batches(items[: self._batch])))
        for _ in range(len(items) // self._batch):
            self._bench.encoder.encode_images(made)

    def answers(self, items: Sequence[Item]) -> Tensor:
        """Everything: probabilities [N, C]."""
        batches = self._batches(items)
        if self._bench.device.type != "cuda":  # nothing to overlap on the same cores
            return torch.cat([self._answer(batch, self._views(batch)).cpu() for batch in batches])
        stream = flow(batches, self._bench.device, self._views, self._answer)
        return torch.cat([found.cpu() for _, found in stream if found is not None])

    def _batches(self, items: Sequence[Item]) -> Iterator[list[Prepared]]:
        threads = self._bench.options.threads
        window = max(2 * self._batch, 2 * threads)
        stream = ahead(lambda item: self._prepare(item, 0, self._readers), items, threads=threads, window=window)
        while batch := list(islice(stream, self._batch)):
            yield batch

    def _views(self, batch: Sequence[Prepared]) -> Tensor:
        encoder = self._bench.encoder
        return batch_views(batch, encoder.image, self._bench.device, encoder.dtype)

    def _answer(self, batch: Sequence[Prepared], made: Tensor) -> Tensor:
        return self._tuner.predict(self._bench.encoder.encode_images(made))["tpt"].probs


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
