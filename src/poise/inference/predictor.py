"""The pipeline from image sources to answers, features or views; every command uses it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any, TypeVar

import torch
from torch import Tensor

from poise.inference.answers import Predictions, answer_rows
from poise.inference.batch_sizes import in_halves
from poise.inference.batches import Batch, SourceGroup, Stages, Watch
from poise.loading.prepare import Preparer
from poise.loading.sources import Source
from poise.results import Failure
from poise.tuning import AnyTuner
from poise.tuning.answer import stacked
from poise.types import Answer, DualEncoder
from poise.views.recipe import ViewRecipe

S = TypeVar("S", bound=Stages)

_NOT_FINITE = (
    "The model's output for this image is not finite, even without tuning. Use dtype float32, or check the weights."
)


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
        >>> predictions, failure = predictor.run([np.zeros((8, 8, 3), np.uint8), "missing.png"])
        >>> predictions["tpt"].probs.shape, failure.code
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

    def run(self, sources: Iterable[Source], *, views: ViewRecipe | None = None) -> Iterator[Predictions | Failure]:
        """Yield one outcome per source, in order; ``views`` replaces the recipe."""
        return self.run_groups([self._group(sources, views)])

    def run_groups(
        self, groups: Iterable[SourceGroup], *, texts: bool = False, watch: Watch | None = None
    ) -> Iterator[Predictions | Failure]:
        """Yield the outcomes of several groups, in order and without a pause between groups.

        Args:
            groups: the groups; each is requested when its first image is to be read.
            texts: whether to return each image's tuned text features.
            watch: callbacks.
        """
        for images, answers in self._stages(_Answers).run(groups, watch or Watch()):
            rows = iter(answer_rows(*answers, texts=texts) if answers else ())
            for image in images:
                if isinstance(image, Failure):
                    yield image
                elif (row := next(rows)) is None:
                    yield Failure(image.source, "non_finite", _NOT_FINITE)
                else:
                    known: dict[str, Any] = {"source": image.source, "notes": image.notes, "key": image.key}
                    yield {name: replace(part, **known) for name, part in row.items()}

    def answer(self, features: Tensor) -> Iterator[Predictions | None]:
        """Yield the answers by method for unit features [N, V, D]; None for an image whose output is not finite."""
        assert self.tuner is not None, "this predictor was made without a tuner"
        size = self._stages(_Answers).batch_size(ViewRecipe(features.shape[1]))
        for part in features.split(size):
            answers = _predict(self.tuner, part.to(self.encoder.device))
            yield from answer_rows(answers, self.tuner.texts.init_features())

    def features(self, sources: Iterable[Source]) -> Iterator[Tensor | Failure]:
        """Yield each image's unit features [V, D], on the CPU."""
        return self._tensors(self._stages(_Features), sources, None)

    def views(self, sources: Iterable[Source], *, views: ViewRecipe | None = None) -> Iterator[Tensor | Failure]:
        """Yield each image's normalised views [V, 3, S, S], on the encoder's device."""
        return self._tensors(self._stages(_Views), sources, views)

    def _stages(self, kind: type[S]) -> S:
        return kind(self._preparer, self.recipe, self.batch_size)

    def _group(self, sources: Iterable[Source], views: ViewRecipe | None) -> SourceGroup:
        return SourceGroup(sources, views or self.recipe, lambda: self.tuner)

    def _tensors(
        self, stages: Stages[Tensor], sources: Iterable[Source], views: ViewRecipe | None
    ) -> Iterator[Tensor | Failure]:
        for images, tensors in stages.run([self._group(sources, views)], Watch()):
            if tensors is not None and tensors.is_cuda:
                tensors.record_stream(torch.cuda.current_stream(tensors.device))
            rows: Iterator[Tensor] = iter(() if tensors is None else tensors)
            for image in images:
                yield image if isinstance(image, Failure) else next(rows)


class _Answers(Stages[tuple[dict[str, Answer[Tensor]], Tensor]]):
    """The answers by method, and the class text features [1, C, D] under the initial prompt."""

    def compute(self, batch: Batch) -> tuple[dict[str, Answer[Tensor]], Tensor]:
        tuner = batch.group.tuner()
        assert tuner is not None, "this predictor was made without a tuner"
        inputs = self.views(batch) if tuner.reads == "views" else self.features(batch)
        with self.times.stage("answers"):
            return _predict(tuner, inputs), tuner.texts.init_features()


class _Features(Stages[Tensor]):
    """Unit features [B, V, D], on the CPU."""

    def compute(self, batch: Batch) -> Tensor:
        return self.features(batch).cpu()


class _Views(Stages[Tensor]):
    """Normalised views [B, V, 3, S, S]."""

    def compute(self, batch: Batch) -> Tensor:
        return self.views(batch)


def _predict(tuner: AnyTuner, inputs: Tensor) -> dict[str, Answer[Tensor]]:
    """Return the answers by method, in halves that fit into memory.

    A batch of an ordered stream is not halved: the tuner would learn from the first half twice.
    """
    return tuner.predict(inputs) if tuner.ordered else in_halves(tuner.predict, inputs, _stacked)


def _stacked(parts: list[dict[str, Answer[Tensor]]]) -> dict[str, Answer[Tensor]]:
    return {name: stacked([part[name] for part in parts]) for name in parts[0]}
