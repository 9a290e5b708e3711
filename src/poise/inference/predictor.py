"""The one pipeline: sources of images in, answers out, in order.

Threads (on CUDA: processes) read and plan images ahead; views are cut, encoded and tuned batch by batch, on CUDA in
stages that overlap. Everybody who wants answers, features or views of images comes here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import count
from typing import TypeVar

import torch
from torch import Tensor

from poise.inference.answers import BatchAnswers, Prediction
from poise.inference.limits import Limits, default_batch_size, in_halves
from poise.loading.overlap import map_ahead, run_stages
from poise.loading.prepare import Preparer
from poise.loading.sources import Failure, PlannedImage, Source
from poise.tuning import AnyTuner
from poise.tuning.answer import stacked
from poise.types import Adapted, DualEncoder
from poise.views.recipe import ViewRecipe

Z = TypeVar("Z")

_NOT_FINITE = (
    "The model's output for this image is not finite, even without tuning. Use dtype float32, or check the weights."
)


@dataclass(frozen=True)
class Watch:
    """How a run speaks with its caller, between batches.

    Args:
        check: called before each batch is handed out; raises to stop the run.
        progress: called with the number of images of each batch that is done.
    """

    check: Callable[[], None] = lambda: None
    progress: Callable[[int], None] = lambda images: None


@dataclass(frozen=True, eq=False)
class SourceGroup:
    """Images that share a recipe and a tuner. No batch holds images of two groups."""

    sources: Iterable[Source]
    recipe: ViewRecipe
    tuner: Callable[[], AnyTuner]  # called when the group's turn has come, in the thread that tunes


@dataclass
class _Batch:
    """Images of one group on their way; ``views`` of the readable ones, unless they did not fit the memory."""

    group: SourceGroup
    images: list[PlannedImage | Failure] = field(default_factory=list)
    views: Tensor | None = None

    @property
    def readable(self) -> list[PlannedImage]:
        return [image for image in self.images if isinstance(image, PlannedImage)]

    def forget_pixels(self) -> None:
        """Only what the answers need is kept while a batch is encoded and tuned."""
        self.images = [image if isinstance(image, Failure) else image.without_pixels() for image in self.images]


class Predictor:
    """Sources of images in; out, in order, each one's prediction, or a `Failure` that says why there is none.

    A source is a path, encoded bytes, a PIL image, a NumPy array, a uint8 tensor [3, H, W], a dataset's `Item`, an
    image that `poise.images.read_image` has loaded, or a `Failure`, which is passed on.

    Args:
        encoder: the model.
        tuner: what answers; without one only `features` and `views` can be asked for.
        views: how images are cut.
        limits: batch size and readers.

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
        limits: Limits | None = None,
    ) -> None:
        self.encoder, self.tuner = encoder, tuner
        self.recipe = views or ViewRecipe()
        self.limits = limits or Limits()
        self._preparer = Preparer(encoder, workers=self.limits.workers, processes=self.limits.processes)

    def run(
        self, sources: Iterable[Source], *, views: ViewRecipe | None = None, watch: Watch | None = None
    ) -> Iterator[Prediction | Failure]:
        """One outcome per source, in order; ``views`` replaces the recipe for this run."""
        return self.run_groups([self._group(sources, views)], watch=watch)

    def run_groups(
        self, groups: Iterable[SourceGroup], *, texts: bool = False, watch: Watch | None = None
    ) -> Iterator[Prediction | Failure]:
        """The outcomes of one group after the other, without a pause between them.

        Args:
            groups: what to do; each is looked at when its images are to be read.
            texts: also keep each image's tuned text features.
            watch: see `Watch`.
        """
        for batch, answers in self._batches(groups, self._answer, watch or Watch()):
            rows = iter([] if answers is None else answers.rows(texts=texts))
            for image in batch.images:
                row = None if isinstance(image, Failure) else next(rows)
                if isinstance(image, Failure):
                    yield image
                elif row is None:
                    yield Failure(image.source, "non_finite", _NOT_FINITE)
                else:
                    yield Prediction(image.source, image.notes, row)

    def features(self, sources: Iterable[Source], *, watch: Watch | None = None) -> Iterator[Tensor | Failure]:
        """Each image's unit features [V, D], on the CPU."""
        return self._tensors(sources, None, lambda batch: self._encode(batch).cpu(), watch)

    def views(
        self, sources: Iterable[Source], *, views: ViewRecipe | None = None, watch: Watch | None = None
    ) -> Iterator[Tensor | Failure]:
        """Each image's normalised views [V, 3, S, S], on the encoder's device."""
        return self._tensors(sources, views, self._views, watch)

    def _group(self, sources: Iterable[Source], views: ViewRecipe | None) -> SourceGroup:
        return SourceGroup(sources, views or self.recipe, self._own_tuner)

    def _own_tuner(self) -> AnyTuner:
        assert self.tuner is not None, "this predictor was made without a tuner"
        return self.tuner

    def _tensors(
        self,
        sources: Iterable[Source],
        views: ViewRecipe | None,
        compute: Callable[[_Batch], Tensor],
        watch: Watch | None,
    ) -> Iterator[Tensor | Failure]:
        for batch, tensors in self._batches([self._group(sources, views)], compute, watch or Watch()):
            if tensors is not None and tensors.is_cuda:
                tensors.record_stream(torch.cuda.current_stream(tensors.device))
            rows: Iterator[Tensor] = iter(() if tensors is None else tensors)
            for image in batch.images:
                yield image if isinstance(image, Failure) else next(rows)

    def _batches(
        self, groups: Iterable[SourceGroup], compute: Callable[[_Batch], Z], watch: Watch
    ) -> Iterator[tuple[_Batch, Z | None]]:
        """Each batch with what ``compute`` makes of it; None where none of its images could be read."""

        def cut(batch: _Batch) -> _Batch:
            if batch.readable:
                try:
                    batch.views = self._preparer.views(batch.readable, batch.group.recipe)
                    batch.forget_pixels()
                except torch.OutOfMemoryError:  # the other stage holds memory as well: there it is cut in halves
                    torch.cuda.empty_cache()
            return batch

        def finish(batch: _Batch) -> tuple[_Batch, Z | None]:
            if batch.views is not None and batch.views.is_cuda:
                batch.views.record_stream(torch.cuda.current_stream(batch.views.device))
            result = compute(batch) if batch.readable else None
            batch.views = None
            return batch, result

        stages = run_stages(self._read(groups), self.encoder.device, cut, finish)
        while True:
            watch.check()
            done = next(stages, None)
            if done is None:
                return
            watch.progress(len(done[0].images))
            yield done

    def _read(self, groups: Iterable[SourceGroup]) -> Iterator[_Batch]:
        """Batches of one group's images, read ahead."""
        numbers = count()
        jobs = ((group, source, next(numbers)) for group in groups for source in group.sources)
        batch: _Batch | None = None
        for group, image in self._read_ahead(jobs):
            if batch is not None and batch.group is not group:
                yield batch
                batch = None
            batch = batch or _Batch(group)
            batch.images.append(image)
            if len(batch.images) == self._batch_size(group.recipe):
                yield batch
                batch = None
        if batch is not None:
            yield batch

    def _read_ahead(
        self, jobs: Iterable[tuple[SourceGroup, Source, int]]
    ) -> Iterator[tuple[SourceGroup, PlannedImage | Failure]]:
        def prepare(job: tuple[SourceGroup, Source, int]) -> tuple[SourceGroup, PlannedImage | Failure]:
            group, source, number = job
            return group, self._preparer.prepare(source, group.recipe, number)

        workers, batch = self._preparer.workers, self._batch_size(self.recipe)
        window = batch + workers  # views that are cut ahead are large; pixels, for CUDA, are not
        if self.encoder.device.type == "cuda":
            window = 2 * max(min(batch, 32), workers)
        return map_ahead(prepare, jobs, threads=workers, window=window)

    def _batch_size(self, recipe: ViewRecipe) -> int:
        return self.limits.batch_size or default_batch_size(self.encoder.device, recipe.views)

    # What is computed of a batch. One that does not fit the device's memory is halved until it does.

    def _answer(self, batch: _Batch) -> BatchAnswers:
        tuner = batch.group.tuner()
        inputs = self._views(batch) if tuner.reads == "views" else self._encode(batch)
        batch.views = None
        # Images of an ordered stream have to go on in one piece: the first half would be learnt from twice.
        answers = tuner.predict(inputs) if tuner.ordered else in_halves(tuner.predict, inputs, _stacked)
        return BatchAnswers(answers, tuner.texts.init_features())

    @torch.no_grad()
    def _encode(self, batch: _Batch) -> Tensor:
        if batch.views is not None:
            return in_halves(self.encoder.encode_images, batch.views, torch.cat)
        return in_halves(lambda part: self.encoder.encode_images(self._cut(part, batch)), batch.readable, torch.cat)

    def _views(self, batch: _Batch) -> Tensor:
        return self._cut(batch.readable, batch) if batch.views is None else batch.views

    def _cut(self, images: list[PlannedImage], batch: _Batch) -> Tensor:
        return self._preparer.views(images, batch.group.recipe)


def _stacked(parts: list[dict[str, Adapted]]) -> dict[str, Adapted]:
    return {name: stacked([part[name] for part in parts]) for name in parts[0]}
