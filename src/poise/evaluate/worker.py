"""The one who computes: a model loaded once, and units of work turned into records."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

import numpy as np
import torch
from torch import Tensor

from poise import backbones, prompts
from poise.data import ImageSet
from poise.evaluate import records
from poise.evaluate.config import RunConfig
from poise.evaluate.resolve import check_init, is_ordered, make_methods, open_set, reads_apart
from poise.evaluate.units import Unit
from poise.loading.overlap import flow
from poise.loading.prepare import Preparation, ahead, batch_views
from poise.loading.processes import Readers
from poise.loading.reading import Prepared, Reading
from poise.tuning import AnyTuner, make_tuner
from poise.types import Adapted, ClassTokens


@dataclass(frozen=True)
class Job:
    """All that a worker has to know; plain data, so that it can travel to another machine."""

    config: RunConfig  # resolved
    data: str
    workers: int = 0
    actors: int = 0


@dataclass(frozen=True)
class Finished:
    """A unit's file, and what the run keeps count of."""

    unit: Unit
    content: bytes
    images: int
    errors: int  # images
    fallbacks: int  # rows
    init_hits: int  # images whose un-tuned prediction is right
    seconds: float


@dataclass(frozen=True)
class Answers:
    """A batch's answers, and the text features' dispersion that all of them start from."""

    by_method: Mapping[str, Adapted]
    init_atfd: float


@dataclass(frozen=True)
class _PreparedTuner:
    stream: tuple[str, int | None]  # the dataset, and the seed where the order of images matters
    tuner: AnyTuner
    init_atfd: float


Batch = tuple[Unit, list[Prepared]]


class Worker:
    """Units in, records out. Views are encoded once per image and seed and serve all methods."""

    def __init__(self, job: Job, sets: Mapping[str, ImageSet] | None = None) -> None:
        check_init(job.config)
        self.job = job
        self.config = job.config
        self.encoder = backbones.load_model(self.config.model, device=self.config.device, dtype=self.config.dtype)
        self._sets = dict(sets or {})
        self._classes = {name: self._tokenise(images) for name, images in self._sets.items()}  # fails before the work
        self._tuner: _PreparedTuner | None = None
        self._threads = job.workers or max(1, min(8, (os.cpu_count() or 2)))
        self._readers = Readers(self._threads) if reads_apart(self.config) else None

    def work(
        self,
        units: Sequence[Unit],
        *,
        progress: Callable[[int], None] = lambda images: None,
        check: Callable[[], None] = lambda: None,
    ) -> Iterator[Finished]:
        """Each unit's records. ``check`` may raise between two batches; ``progress`` hears of each batch."""
        jobs = ((unit, position) for unit in units for position in unit.items)
        window = max(2 * self.config.batch_size, 2 * self._threads)
        stream = ahead(lambda job: self._prepare(*job), jobs, threads=self._threads, window=window)
        answered = flow(self._batches(units, stream), self.encoder.device, self._batch_views, self._batch_answers)
        for unit in units:
            began = time.perf_counter()
            rows: list[dict[str, Any]] = []
            left = len(unit.items)
            while left:
                check()
                (_, batch), answers = next(answered)
                rows += self._rows(unit, batch, answers)
                left -= len(batch)
                progress(len(batch))
            yield _finish(unit, rows, time.perf_counter() - began)

    def _batches(self, units: Sequence[Unit], stream: Iterator[Prepared]) -> Iterator[Batch]:
        """The images of each unit in turn; no batch holds images of two units."""
        for unit in units:
            for first in range(0, len(unit.items), self.config.batch_size):
                yield unit, list(islice(stream, min(self.config.batch_size, len(unit.items) - first)))

    def _batch_views(self, batch: Batch) -> Tensor | None:
        good = _readable(batch[1])
        return self._views(good) if good else None

    def _batch_answers(self, batch: Batch, views: Tensor) -> Answers:
        unit = batch[0]
        prepared = self._prepared_tuner(unit.dataset, unit.seed)
        return Answers(self._answers(prepared.tuner, views), prepared.init_atfd)

    def text_features(self, dataset: str, positions: Sequence[int], seed: int) -> dict[str, np.ndarray]:
        """Class text features before tuning, and after it for a few sample images: what t-SNE pictures are made of."""
        images = self._images(dataset)
        prepared = [self._prepare_item(dataset, position, seed) for position in positions]
        good = _readable(prepared)
        tuner = self._prepared_tuner(dataset, None).tuner
        found = {
            "labels": np.array(images.classes),
            "start": _numpy(tuner.texts.init_features()[0]),
            "sample_ids": np.array([each.item.id for each in good], dtype=np.str_),
        }
        for name, answer in (self._answers(tuner, self._views(good)) if good else {}).items():
            found[f"tuned/{name}"] = _numpy(answer.text_features)  # [samples, C, D]
        return found

    def _rows(self, unit: Unit, batch: Sequence[Prepared], answers: Answers | None) -> list[dict[str, Any]]:
        """The rows of a batch, in the order of its images."""
        name = self._images(unit.dataset).name
        stamp = records.Stamp(self.config.run_id, self.config.model, name, unit.seed)
        answered: Iterator[list[dict[str, Any]]] = iter(())
        if answers is not None:
            samples = [records.ImageRef(each.item.id, each.item.label) for each in _readable(batch)]
            answered = iter(records.answer_rows(stamp, samples, answers.by_method, answers.init_atfd))
        rows: list[dict[str, Any]] = []
        for each in batch:
            sample = records.ImageRef(each.item.id, each.item.label)
            if each.error is None:
                rows += next(answered)
            else:
                rows += records.error_rows(stamp, sample, self.config.methods, each.error)
        return rows

    def _answers(self, tuner: AnyTuner, views: Tensor) -> dict[str, Adapted]:
        if tuner.reads == "views":  # prompts in the image tower: nothing to encode beforehand
            return tuner.predict(views.to(self.encoder.device))
        with torch.no_grad():
            return tuner.predict(self._encode(views))

    def _views(self, good: Sequence[Prepared]) -> Tensor:
        """[B, V, 3, S, S]: stacked where the threads made them, else made here in one go."""
        if self.config.view_engine == "pil":
            return torch.stack([each.views for each in good if each.views is not None])
        return batch_views(good, self.encoder.image, self.encoder.device, self.encoder.dtype)

    def _encode(self, views: Tensor) -> Tensor:
        """Features [B, V, D]; a batch that doesn't fit the device's memory is halved until it does."""
        try:
            return self.encoder.encode_images(views.to(self.encoder.device))
        except torch.OutOfMemoryError:
            if len(views) == 1:
                raise
            torch.cuda.empty_cache()
        middle = len(views) // 2
        return torch.cat([self._encode(views[:middle]), self._encode(views[middle:])])

    def _prepare(self, unit: Unit, position: int) -> Prepared:
        return self._prepare_item(unit.dataset, position, unit.seed)

    def _prepare_item(self, dataset: str, position: int, seed: int) -> Prepared:
        images = self._images(dataset)
        # AugMix, unless switched on or off, as the dataset was opened.
        augmix = self.config.augmix == "on" if self.config.augmix in ("on", "off") else images.augmix
        reading = Reading(self.config.views, augmix)
        preparation = Preparation(self.encoder.image, reading, cut=self.config.view_engine == "pil")
        return preparation(images.items[position], seed, self._readers)

    def _images(self, dataset: str) -> ImageSet:
        if dataset not in self._sets:
            self._sets[dataset] = open_set(dataset, self.job.data, self.config)
            self._classes[dataset] = self._tokenise(self._sets[dataset])
        return self._sets[dataset]

    def _tokenise(self, images: ImageSet) -> ClassTokens:
        # Classes may share a name: ImageNet's published list has 998 for 1000. They share its probability.
        return prompts.tokenise(self.encoder, images.classes, self.config.template or images.template, repeats=True)

    def _prepared_tuner(self, dataset: str, seed: int | None) -> _PreparedTuner:
        """The tuner over a dataset's labels; only the last one is kept, as units come dataset by dataset.

        Where the order of images matters, each seed's stream begins anew.
        """
        stream = (dataset, seed if is_ordered(self.config) else None)
        if self._tuner is None or self._tuner.stream != stream:
            images = self._images(dataset)
            recipes = make_methods(self.config, shift=images.shift)
            tuner = make_tuner(
                self.encoder,
                self._classes[dataset],
                recipes,
                framework=self.config.framework,
                init=self.config.init,
                options=self.config.framework_options,
            )
            init_atfd = float(records.dispersion(tuner.texts.init_features())[0])
            self._tuner = _PreparedTuner(stream, tuner, init_atfd)
        return self._tuner


def _readable(batch: Sequence[Prepared]) -> list[Prepared]:
    return [each for each in batch if each.error is None]


def _finish(unit: Unit, rows: Sequence[Mapping[str, Any]], seconds: float) -> Finished:
    one_each = rows[:: len(rows) // len(unit.items)]  # rows come image by image; the first method stands for the image
    return Finished(
        unit=unit,
        content=records.encode(rows),
        images=len(unit.items),
        errors=sum(row["error"] is not None for row in one_each),
        fallbacks=sum(bool(row["fallback"]) for row in rows),
        init_hits=sum(row["init_prediction"] == row["label"] for row in one_each),
        seconds=seconds,
    )


def _numpy(tensor: Tensor) -> np.ndarray:
    return np.asarray(tensor.detach().float().cpu().numpy())
