"""Batches of images on their way through a run: read ahead, cut into views, computed.

Threads (on CUDA: processes) read and plan images ahead. On CUDA, the views of one batch are cut while another one is
computed.
"""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import groupby, islice
from typing import Generic, TypeVar

import torch
from torch import Tensor

from poise.errors import OUT_OF_MEMORY, InvalidOptionError, PoiseError, is_out_of_memory
from poise.inference.batch_sizes import default_batch_size, in_halves
from poise.inference.stage_times import StageTimes
from poise.loading.overlap import map_ahead, run_stages
from poise.loading.prepare import Preparer
from poise.loading.sources import PlannedImage, Source, too_large
from poise.loading.stored import stacked_features
from poise.results import Failure
from poise.threads import check_process
from poise.tuning import AnyTuner
from poise.views.recipe import ViewRecipe

Z = TypeVar("Z")
Outcomes = list[PlannedImage | Failure]

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Watch:
    """Callbacks of a run.

    Args:
        check: called before each batch; raises an exception to stop the run.
        progress: called after each batch with its number of images.
    """

    check: Callable[[], None] = lambda: None
    progress: Callable[[int], None] = lambda images: None


@dataclass(frozen=True, eq=False)
class SourceGroup:
    """Images with the same recipe and tuner. A batch contains images of one group only."""

    sources: Iterable[Source]
    recipe: ViewRecipe
    tuner: Callable[[], AnyTuner | None]  # called before each batch, in the thread that tunes


_Read = tuple[SourceGroup, Source, PlannedImage | Failure]


class Batch:
    """Images of one group, in the order of their sources, and the views of the readable ones once they are cut."""

    def __init__(
        self, group: SourceGroup, sources: list[Source], images: Outcomes, views: Tensor | None = None
    ) -> None:
        self.group, self.sources, self.images = group, sources, images
        self._views = views

    @property
    def readable(self) -> list[PlannedImage]:
        """The images that could be read."""
        return [image for image in self.images if isinstance(image, PlannedImage)]

    def with_views(self, views: Tensor) -> Batch:
        """Return the batch with its views [B, V, 3, S, S] instead of its pixels."""
        images = [image if isinstance(image, Failure) else image.without_pixels() for image in self.images]
        return Batch(self.group, self.sources, images, views)

    def take_views(self) -> Tensor | None:
        """Return the views, None if they did not fit into memory, and give them up: tuning needs their memory."""
        views, self._views = self._views, None
        if views is not None and views.is_cuda:
            views.record_stream(torch.cuda.current_stream(views.device))  # another stream made them
        return views


@dataclass(frozen=True, eq=False)
class Computed(Generic[Z]):
    """The images of a batch, in order, and the result for the readable ones; None if there are none."""

    group: SourceGroup
    images: Outcomes
    result: Z | None


class Stages(ABC, Generic[Z]):
    """The stages of one run: `read`, `cut` and `finish`, which calls `compute`.

    A batch that does not fit into the device's memory is halved until it does. An image that does not fit by itself
    becomes a failure.

    Args:
        preparer: reads images and cuts views, for one encoder.
        recipe: the usual one, by which images are read ahead.
        batch_size: images computed together; 0 = by device and number of views.
    """

    def __init__(self, preparer: Preparer, recipe: ViewRecipe, batch_size: int = 0) -> None:
        self.encoder, self.times = preparer.encoder, StageTimes(preparer.encoder.device)
        self._preparer, self._recipe, self._batch_size = preparer, recipe, batch_size

    @abstractmethod
    def compute(self, batch: Batch) -> Z:
        """Return the result for the readable images of a batch, of which there is at least one."""

    def run(self, groups: Iterable[SourceGroup], watch: Watch) -> Iterator[Computed[Z]]:
        """Yield the images of each batch with their result, or with None if none of them is readable."""
        check_process()
        images = 0
        watch.check()
        for parts in run_stages(self.read(groups), self.encoder.device, self.cut, self.finish):
            images += (done := sum(len(part.images) for part in parts))
            watch.progress(done)
            yield from parts
            watch.check()
        self.times.report(images)

    def read(self, groups: Iterable[SourceGroup]) -> Iterator[Batch]:
        """Yield batches of images, which are read ahead."""
        jobs = enumerate((group, source) for group in groups for source in group.sources)
        workers = self._preparer.workers
        images = map_ahead(self._read_one, jobs, threads=workers, window=self._window(workers))
        for group, parts in groupby(images, key=lambda part: part[0]):
            size = self.batch_size(group.recipe)
            log.info("images: %s", self._preparer.describe(group.recipe, size))
            for batch in self._in_batches(parts, size):
                yield Batch(group, [source for _, source, _ in batch], [image for *_, image in batch])

    def cut(self, batch: Batch) -> Batch:
        """Return the batch with its views, or without them if they do not fit beside those that are computed."""
        if not (images := batch.readable) or images[0].features is not None:
            return batch
        try:
            with self.times.stage("views"):
                return batch.with_views(self._preparer.views(images, batch.group.recipe))
        except (MemoryError, RuntimeError) as error:
            if not is_out_of_memory(error):
                raise
            if torch.cuda.is_initialized():
                torch.cuda.empty_cache()
        return batch

    def finish(self, batch: Batch) -> list[Computed[Z]]:
        """Compute a batch, or each of its images by itself, read again, if one of them does not fit into memory."""
        try:
            return [Computed(batch.group, batch.images, self.compute(batch) if batch.readable else None)]
        except PoiseError as error:
            if error.code != OUT_OF_MEMORY:
                raise
            if len(batch.sources) == 1:
                return [Computed(batch.group, [too_large(batch.sources[0])], None)]
        alone = (self._read_again(batch.group, source) for source in batch.sources)
        return [part for single in alone for part in self.finish(self.cut(single))]

    def batch_size(self, recipe: ViewRecipe) -> int:
        """Return the number of images that are computed together."""
        return self._batch_size or default_batch_size(self.encoder.device, recipe.views)

    # What `compute` may ask for.

    def views(self, batch: Batch) -> Tensor:
        """Return the views [B, V, 3, S, S] of a batch, which gives them up."""
        if batch.readable[0].features is not None:
            raise InvalidOptionError(
                "Stored features can't be answered with prompts in the image tower.", hint="Give the images themselves."
            )
        if (views := batch.take_views()) is not None:
            return views
        return in_halves(lambda images: self._preparer.views(images, batch.group.recipe), batch.readable, torch.cat)

    @torch.no_grad()
    def features(self, batch: Batch) -> Tensor:
        """Return the unit features [B, V, D] of a batch, which gives up its views."""

        def encode(images: list[PlannedImage]) -> Tensor:
            return self.encoder.encode_images(self._preparer.views(images, batch.group.recipe))

        if (stored := stacked_features(batch.readable, self.encoder)) is not None:
            return stored
        with self.times.stage("encoding"):
            if (views := batch.take_views()) is not None:
                return in_halves(self.encoder.encode_images, views, torch.cat)
            return in_halves(encode, batch.readable, torch.cat)

    def _in_batches(self, parts: Iterator[_Read], size: int) -> Iterator[list[_Read]]:
        while True:
            with self.times.stage("waiting for images"):
                batch = list(islice(parts, size))
            if not batch:
                return
            yield batch

    def _read_one(self, job: tuple[int, tuple[SourceGroup, Source]]) -> _Read:
        number, (group, source) = job
        return group, source, self._preparer.prepare(source, group.recipe, number)

    def _read_again(self, group: SourceGroup, source: Source) -> Batch:
        return Batch(group, [source], [self._preparer.prepare(source, group.recipe, 0)])

    def _window(self, workers: int) -> int:
        """Return how many images are read ahead: few where their views are cut at once, which take much memory."""
        size = self.batch_size(self._recipe)
        return 2 * max(min(size, 32), workers) if self.encoder.device.type == "cuda" else size + workers
