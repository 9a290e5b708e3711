"""Computes the records of units of work with one loaded model."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from poise import backbones, prompts
from poise.backbones.fingerprint import fingerprint
from poise.data import ImageSet
from poise.errors import InvalidOptionError
from poise.evaluate import records
from poise.evaluate.config import RunConfig
from poise.evaluate.resolve import is_ordered, make_methods, open_set, uses_augmix
from poise.evaluate.storage.header import check_fingerprint
from poise.evaluate.units import Unit
from poise.inference.answers import of_image
from poise.inference.batches import SourceGroup, Watch
from poise.inference.independent import own_start
from poise.inference.predictor import Predictor
from poise.results import Failure
from poise.tuning import AnyTuner, make_tuner
from poise.types import ClassTokens, Fingerprinted
from poise.views import ViewRecipe


@dataclass(frozen=True)
class WorkerSettings:
    """The settings of a worker; picklable, so that it can be sent to another machine."""

    config: RunConfig  # resolved, and checked by `check_init`
    data: str
    workers: int = 0
    actors: int = 0
    model_fingerprint: str | None = None  # of a run that is resumed; another model is refused


@dataclass(frozen=True)
class Finished:
    """The file of a unit, and its counts."""

    unit: Unit
    content: bytes
    images: int
    errors: int  # images
    fallbacks: int  # rows
    init_hits: int  # images whose prediction under the initial prompt is correct
    seconds: float
    model_fingerprint: str | None = None


class Worker:
    """Computes the records of units. Views are encoded once per image and seed for all methods."""

    def __init__(self, job: WorkerSettings, sets: Mapping[str, ImageSet] | None = None) -> None:
        self.job = job
        self.config = job.config
        self._ordered = is_ordered(self.config, make_methods(self.config))
        self.encoder = backbones.load_model(
            self.config.model,
            device=self.config.device,
            dtype=self.config.dtype,
            logit_scale=self.config.logit_scale,
        )
        self.fingerprint = self._identify()
        self._sets = dict(sets or {})
        self._classes = {name: self._tokenise(images) for name, images in self._sets.items()}  # fails before the work
        self._tuner: tuple[tuple[str, int | None], AnyTuner] | None = None
        self._predictor = Predictor(self.encoder, batch_size=self.config.batch_size, workers=job.workers)

    def _identify(self) -> str | None:
        """Return the model's fingerprint, None if it has none; refuse another than the job's."""
        stored = self.job.model_fingerprint
        if stored is None and not isinstance(self.encoder, Fingerprinted):
            return None
        found = fingerprint(self.encoder, like=stored or "")
        check_fingerprint(self.config.run_id, stored, found)
        return found

    def run(self, units: Sequence[Unit], watch: Watch | None = None) -> Iterator[Finished]:
        """Yield the file of each unit, in order."""
        groups = (self._group(unit.dataset, unit.items, unit.seed, stream=unit.seed) for unit in units)
        outcomes = self._predictor.run_groups(groups, watch=watch)
        for unit in units:
            began = time.perf_counter()
            images = self._images(unit.dataset)
            columns = {"run": self.config.run_id, "model": self.config.model, "dataset": images.name, "seed": unit.seed}
            rows: list[dict[str, Any]] = []
            for position, outcome in zip(unit.items, outcomes, strict=False):
                rows += records.rows(
                    columns,
                    images.items[position],
                    self.config.methods,
                    outcome,
                    full=self.config.calibrate > 0 or self.config.unknown > 0,
                    independent=own_start(self.encoder) is not None if images.independent else None,
                )
            yield replace(_finish(unit, rows, time.perf_counter() - began), model_fingerprint=self.fingerprint)
        next(outcomes, None)  # ends the run, which then logs how long its stages took

    def text_features(self, dataset: str, positions: Sequence[int], seed: int) -> dict[str, np.ndarray]:
        """Return the class text features under the initial prompt and after tuning on a few images, for t-SNE."""
        outcomes = list(self._predictor.run_groups([self._group(dataset, positions, seed, stream=None)], texts=True))
        samples = [outcome for outcome in outcomes if not isinstance(outcome, Failure)]
        init_features = self._tuner_for(dataset, None).texts.init_features()[0]
        arrays = {
            "labels": np.array(self._images(dataset).classes),
            "start": np.asarray(init_features.detach().float().cpu().numpy()),
            "sample_ids": np.array([of_image(sample).source for sample in samples], dtype=np.str_),
        }
        for method in self.config.methods if samples else ():
            tuned = [sample[method].text_features for sample in samples]
            arrays[f"tuned/{method}"] = np.stack([features for features in tuned if features is not None])  # [N, C, D]
        return arrays

    def _group(self, dataset: str, positions: Sequence[int], seed: int, stream: int | None) -> SourceGroup:
        images, config = self._images(dataset), self.config
        recipe = ViewRecipe(config.views, seed, uses_augmix(config, images), engine=config.view_engine)
        items = [images.items[position] for position in positions]
        return SourceGroup(items, recipe, lambda: self._tuner_for(dataset, stream))

    def _images(self, dataset: str) -> ImageSet:
        if dataset not in self._sets:
            self._sets[dataset] = open_set(dataset, self.job.data, self.config)
            self._classes[dataset] = self._tokenise(self._sets[dataset])
        return self._sets[dataset]

    def _tokenise(self, images: ImageSet) -> ClassTokens:
        if images.independent and not self.config.calibrate and own_start(self.encoder) is None:
            raise InvalidOptionError(
                f"'{images.name}' has independent labels, and {self.encoder.name} no probabilities of single labels.",
                hint="Give calibration images (--calibrate), or a model with a sigmoid (SigLIP).",
            )
        # Classes may share a name and then share its probability: ImageNet's published list has 998 names for 1000.
        template, on_long_label = self.config.template or images.template, self.config.on_long_label
        return prompts.tokenise(self.encoder, images.classes, template, on_long_label=on_long_label, repeats=True)

    def _tuner_for(self, dataset: str, stream: int | None) -> AnyTuner:
        """Return the tuner for a dataset's labels. Only the last one is cached, because units are sorted by dataset.

        If the order of images matters, each ``stream`` (a seed, or None for text features) has its own tuner.
        """
        key = (dataset, stream if self._ordered else None)
        if self._tuner is None or self._tuner[0] != key:
            tuner = make_tuner(
                self.encoder,
                self._classes[dataset],
                make_methods(self.config, dataset=dataset, shift=self._images(dataset).shift),
                framework=self.config.framework,
                init=self.config.init,
                on_long_label=self.config.on_long_label,
                options=self.config.framework_options,
            )
            self._tuner = key, tuner
        return self._tuner[1]


def _finish(unit: Unit, rows: Sequence[Mapping[str, Any]], seconds: float) -> Finished:
    per_image = rows[:: len(rows) // len(unit.items)]  # the first method's row of each image
    return Finished(
        unit=unit,
        content=records.encode(rows),
        images=len(unit.items),
        errors=sum(row["error"] is not None for row in per_image),
        fallbacks=sum(bool(row["fallback"]) for row in rows),
        init_hits=sum(row["init_prediction"] == row["label"] for row in per_image),
        seconds=seconds,
    )
