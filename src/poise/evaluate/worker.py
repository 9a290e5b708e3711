"""The one who computes: a model loaded once, and units of work turned into records."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from torch import Tensor

from poise import backbones, prompts
from poise.data import ImageSet
from poise.evaluate import records
from poise.evaluate.config import RunConfig
from poise.evaluate.resolve import check_init, is_ordered, make_methods, open_set
from poise.evaluate.units import Unit
from poise.inference.answers import Prediction
from poise.inference.limits import Limits
from poise.inference.predictor import Predictor, SourceGroup, Watch
from poise.tuning import AnyTuner, make_tuner
from poise.types import ClassTokens
from poise.views import ViewRecipe


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


class Worker:
    """Units in, records out. Views are encoded once per image and seed and serve all methods."""

    def __init__(self, job: Job, sets: Mapping[str, ImageSet] | None = None) -> None:
        check_init(job.config)
        self.job = job
        self.config = job.config
        self.encoder = backbones.load_model(self.config.model, device=self.config.device, dtype=self.config.dtype)
        self._sets = dict(sets or {})
        self._classes = {name: self._tokenise(images) for name, images in self._sets.items()}  # fails before the work
        self._tuner: tuple[tuple[str, int | None], AnyTuner] | None = None
        limits = Limits(batch_size=self.config.batch_size, workers=job.workers)
        self._predictor = Predictor(self.encoder, limits=limits)

    def work(self, units: Sequence[Unit], watch: Watch | None = None) -> Iterator[Finished]:
        """Each unit's records, in order."""
        groups = (self._group(unit.dataset, unit.items, unit.seed, stream=unit.seed) for unit in units)
        outcomes = self._predictor.run_groups(groups, watch=watch)
        for unit in units:
            began = time.perf_counter()
            images = self._images(unit.dataset)
            stamp = records.Stamp(self.config.run_id, self.config.model, images.name, unit.seed)
            rows: list[dict[str, Any]] = []
            for position, outcome in zip(unit.items, outcomes, strict=False):
                item = images.items[position]
                rows += records.rows(stamp, records.ImageRef(item.id, item.label), self.config.methods, outcome)
            yield _finish(unit, rows, time.perf_counter() - began)

    def text_features(self, dataset: str, positions: Sequence[int], seed: int) -> dict[str, np.ndarray]:
        """Class text features before tuning, and after it for a few sample images: what t-SNE figures are made of."""
        outcomes = list(self._predictor.run_groups([self._group(dataset, positions, seed, stream=None)], texts=True))
        samples = [each for each in outcomes if isinstance(each, Prediction)]
        found = {
            "labels": np.array(self._images(dataset).classes),
            "start": _numpy(self._tuner_for(dataset, None).texts.init_features()[0]),
            "sample_ids": np.array([each.source for each in samples], dtype=np.str_),
        }
        for method in self.config.methods if samples else ():
            tuned = [each.answers[method].text_features for each in samples]
            found[f"tuned/{method}"] = np.stack([features for features in tuned if features is not None])  # [N, C, D]
        return found

    def _group(self, dataset: str, positions: Sequence[int], seed: int, stream: int | None) -> SourceGroup:
        images, config = self._images(dataset), self.config
        # AugMix, unless switched on or off, as the dataset was opened.
        augmix = config.augmix == "on" if config.augmix in ("on", "off") else images.augmix
        recipe = ViewRecipe(config.views, seed, augmix, engine=config.view_engine)
        items = [images.items[position] for position in positions]
        return SourceGroup(items, recipe, lambda: self._tuner_for(dataset, stream))

    def _images(self, dataset: str) -> ImageSet:
        if dataset not in self._sets:
            self._sets[dataset] = open_set(dataset, self.job.data, self.config)
            self._classes[dataset] = self._tokenise(self._sets[dataset])
        return self._sets[dataset]

    def _tokenise(self, images: ImageSet) -> ClassTokens:
        # Classes may share a name: ImageNet's published list has 998 for 1000. They share its probability.
        return prompts.tokenise(self.encoder, images.classes, self.config.template or images.template, repeats=True)

    def _tuner_for(self, dataset: str, stream: int | None) -> AnyTuner:
        """The tuner over a dataset's labels; only the last one is kept, as units come dataset by dataset.

        Where the order of images matters, each seed's ``stream`` begins anew; None is a stream of its own.
        """
        key = (dataset, stream if is_ordered(self.config) else None)
        if self._tuner is None or self._tuner[0] != key:
            tuner = make_tuner(
                self.encoder,
                self._classes[dataset],
                make_methods(self.config, shift=self._images(dataset).shift),
                framework=self.config.framework,
                init=self.config.init,
                options=self.config.framework_options,
            )
            self._tuner = key, tuner
        return self._tuner[1]


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
