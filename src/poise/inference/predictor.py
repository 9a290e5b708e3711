"""The pipeline from image sources to answers, features or views; every command uses it.

Threads (on CUDA: processes) read and plan images ahead. Views are cut, encoded and tuned batch by batch, on CUDA in
overlapping stages.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import groupby, islice
from typing import TypeVar

import torch
from torch import Tensor

from poise.errors import OUT_OF_MEMORY, PoiseError, is_out_of_memory
from poise.inference.answers import Prediction, answer_rows
from poise.inference.batch_sizes import default_batch_size, in_halves
from poise.inference.stage_times import StageTimes
from poise.loading.overlap import map_ahead, run_stages
from poise.loading.prepare import Preparer
from poise.loading.sources import PlannedImage, Source, too_large
from poise.results import Failure
from poise.tuning import AnyTuner
from poise.tuning.answer import stacked
from poise.types import Adapted, DualEncoder
from poise.views.recipe import ViewRecipe

Z = TypeVar("Z")

log = logging.getLogger(__name__)

_NOT_FINITE = (
    "The model's output for this image is not finite, even without tuning. Use dtype float32, or check the weights."
)


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


@dataclass
class _Batch:
    """Images of one group, and the views [B, V, 3, S, S] of the readable ones, unless they did not fit into memory."""

    group: SourceGroup
    sources: list[Source]
    images: list[PlannedImage | Failure]
    views: Tensor | None = None

    @property
    def readable(self) -> list[PlannedImage]:
        return [image for image in self.images if isinstance(image, PlannedImage)]


class Predictor:
    """Computes the predictions for images. An image without one gives a `Failure`, which contains the reason.

    A source is a path, encoded bytes, a PIL image, a NumPy array, a uint8 tensor [3, H, W], a dataset's `Item`, an
    image loaded by `poise.images.read_image`, or a `Failure`, which is passed on unchanged.

    Args:
        encoder: the model.
        tuner: computes the answers; `features` and `views` do not need it.
        views: how images are cut into views.
        batch_size: images encoded and tuned together; 0 = by device and number of views.
        workers: threads (on CUDA: processes) that read images; 0 = by the number of cores, at most 8.
        processes: whether processes read the files; None = if the model is on CUDA.

    Example:
        >>> import numpy as np
        >>> from poise import methods
        >>> from poise.backbones import load_model
        >>> from poise.prompts import tokenise
        >>> from poise.tuning import make_tuner
        >>> encoder = load_model("tiny", device="cpu")
        >>> tuner = make_tuner(encoder, tokenise(encoder, ["cat", "dog"]), [methods.get("tpt")])
        >>> predictor = Predictor(encoder, tuner, ViewRecipe(views=4))
        >>> prediction, failure = predictor.run([np.zeros((8, 8, 3), np.uint8), "missing.png"])
        >>> prediction.answers["tpt"].probs.shape, failure.code
        ((2,), 'unreadable_image')
    """

    def __init__(
        self,
        encoder: DualEncoder,
        tuner: AnyTuner | None = None,
        views: ViewRecipe | None = None,
        *,
        batch_size: int = 0,
        workers: int = 0,
        processes: bool | None = None,
    ) -> None:
        self.encoder, self.tuner, self.batch_size = encoder, tuner, batch_size
        self.recipe = views or ViewRecipe()
        self._preparer = Preparer(encoder, workers=workers, processes=processes)
        self._times = StageTimes(encoder.device)

    def run(self, sources: Iterable[Source], *, views: ViewRecipe | None = None) -> Iterator[Prediction | Failure]:
        """Yield one outcome per source, in order; ``views`` replaces the recipe."""
        return self.run_groups([self._group(sources, views)])

    def run_groups(
        self, groups: Iterable[SourceGroup], *, texts: bool = False, watch: Watch | None = None
    ) -> Iterator[Prediction | Failure]:
        """Yield the outcomes of several groups, in order and without a pause between groups.

        Args:
            groups: the groups; each is requested when its first image is to be read.
            texts: whether to return each image's tuned text features.
            watch: callbacks.
        """
        for batch, answers in self._batches(groups, self._answer, watch or Watch()):
            rows = iter(answer_rows(*answers, texts=texts) if answers else ())
            for image in batch.images:
                if isinstance(image, Failure):
                    yield image
                elif (row := next(rows)) is None:
                    yield Failure(image.source, "non_finite", _NOT_FINITE)
                else:
                    yield Prediction(image.source, image.notes, row, image.key)

    def features(self, sources: Iterable[Source]) -> Iterator[Tensor | Failure]:
        """Yield each image's unit features [V, D], on the CPU."""
        return self._tensors(sources, None, lambda batch: self._encode(batch).cpu())

    def views(self, sources: Iterable[Source], *, views: ViewRecipe | None = None) -> Iterator[Tensor | Failure]:
        """Yield each image's normalised views [V, 3, S, S], on the encoder's device."""
        return self._tensors(sources, views, self._views)

    def _group(self, sources: Iterable[Source], views: ViewRecipe | None) -> SourceGroup:
        return SourceGroup(sources, views or self.recipe, lambda: self.tuner)

    def _tensors(
        self, sources: Iterable[Source], views: ViewRecipe | None, compute: Callable[[_Batch], Tensor]
    ) -> Iterator[Tensor | Failure]:
        for batch, tensors in self._batches([self._group(sources, views)], compute, Watch()):
            if tensors is not None and tensors.is_cuda:
                tensors.record_stream(torch.cuda.current_stream(tensors.device))
            rows: Iterator[Tensor] = iter(() if tensors is None else tensors)
            for image in batch.images:
                yield image if isinstance(image, Failure) else next(rows)

    def _batches(
        self, groups: Iterable[SourceGroup], compute: Callable[[_Batch], Z], watch: Watch
    ) -> Iterator[tuple[_Batch, Z | None]]:
        """Yield each batch with the result of ``compute``, or with None if none of its images is readable."""

        def cut(batch: _Batch) -> _Batch:
            if batch.readable:
                try:
                    with times.stage("views"):
                        batch.views = self._preparer.views(batch.readable, batch.group.recipe)
                    batch.images = [
                        image if isinstance(image, Failure) else image.without_pixels() for image in batch.images
                    ]
                except (MemoryError, RuntimeError) as error:
                    if not is_out_of_memory(error):
                        raise
                    if torch.cuda.is_initialized():  # the other stage uses memory too; `finish` cuts in halves
                        torch.cuda.empty_cache()
            return batch

        def finish(batch: _Batch) -> list[tuple[_Batch, Z | None]]:
            try:
                return [computed(batch)]
            except PoiseError as error:
                if error.code != OUT_OF_MEMORY:
                    raise
                if len(batch.sources) == 1:
                    return [(replace(batch, images=[too_large(batch.sources[0])], views=None), None)]
            return [pair for source in batch.sources for pair in finish(cut(self._alone(batch.group, source)))]

        def computed(batch: _Batch) -> tuple[_Batch, Z | None]:
            if batch.views is not None and batch.views.is_cuda:
                batch.views.record_stream(torch.cuda.current_stream(batch.views.device))
            result = compute(batch) if batch.readable else None
            batch.views = None
            return batch, result

        self._times = times = StageTimes(self.encoder.device)
        images = 0
        watch.check()
        for parts in run_stages(self._read(groups), self.encoder.device, cut, finish):
            images += (done := sum(len(batch.images) for batch, _ in parts))
            watch.progress(done)
            yield from parts
            watch.check()
        times.report(images)

    def _read(self, groups: Iterable[SourceGroup]) -> Iterator[_Batch]:
        """Yield batches of images, which are read ahead."""

        def prepare(job: tuple[int, tuple[SourceGroup, Source]]) -> tuple[SourceGroup, Source, PlannedImage | Failure]:
            number, (group, source) = job
            return group, source, self._preparer.prepare(source, group.recipe, number)

        workers, size = self._preparer.workers, self._batch_size(self.recipe)
        window = size + workers  # small, because views that are cut ahead need much memory; on CUDA, only pixels are
        if self.encoder.device.type == "cuda":
            window = 2 * max(min(size, 32), workers)
        jobs = enumerate((group, source) for group in groups for source in group.sources)
        images = map_ahead(prepare, jobs, threads=workers, window=window)
        for group, parts in groupby(images, key=lambda part: part[0]):
            log.info("images: %s", self._preparer.describe(group.recipe, self._batch_size(group.recipe)))
            while True:
                with self._times.stage("waiting for images"):
                    batch = [part for part in islice(parts, self._batch_size(group.recipe))]
                if not batch:
                    break
                yield _Batch(group, [source for _, source, _ in batch], [image for *_, image in batch])

    def _alone(self, group: SourceGroup, source: Source) -> _Batch:
        """Return a batch of one image, read again."""
        return _Batch(group, [source], [self._preparer.prepare(source, group.recipe, 0)])

    def _batch_size(self, recipe: ViewRecipe) -> int:
        return self.batch_size or default_batch_size(self.encoder.device, recipe.views)

    # Functions of a batch. A batch that does not fit into the device's memory is halved until it does.

    def _answer(self, batch: _Batch) -> tuple[dict[str, Adapted], Tensor]:
        """Return the answers by method, and the class text features [1, C, D] under the initial prompt."""
        tuner = batch.group.tuner()
        assert tuner is not None, "this predictor was made without a tuner"
        inputs = self._views(batch) if tuner.reads == "views" else self._encode(batch)
        batch.views = None
        # A batch of an ordered stream is not halved: the tuner would learn from the first half twice.
        with self._times.stage("answers"):
            answers = tuner.predict(inputs) if tuner.ordered else in_halves(tuner.predict, inputs, _stacked)
        return answers, tuner.texts.init_features()

    @torch.no_grad()
    def _encode(self, batch: _Batch) -> Tensor:
        def encode(images: list[PlannedImage]) -> Tensor:
            return self.encoder.encode_images(self._preparer.views(images, batch.group.recipe))

        with self._times.stage("encoding"):
            if batch.views is not None:
                return in_halves(self.encoder.encode_images, batch.views, torch.cat)
            return in_halves(encode, batch.readable, torch.cat)

    def _views(self, batch: _Batch) -> Tensor:
        if batch.views is not None:
            return batch.views
        return in_halves(lambda images: self._preparer.views(images, batch.group.recipe), batch.readable, torch.cat)


def _stacked(parts: list[dict[str, Adapted]]) -> dict[str, Adapted]:
    return {name: stacked([part[name] for part in parts]) for name in parts[0]}
