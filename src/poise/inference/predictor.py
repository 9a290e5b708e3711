"""The pipeline from image sources to answers, features or views; every command uses it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any, TypeVar

import torch
from torch import Tensor

from poise.errors import InvalidDatasetError
from poise.inference.answers import Predictions, answer_rows
from poise.inference.batch_sizes import in_halves
from poise.inference.batches import Batch, Computed, SourceGroup, Stages, Watch
from poise.loading.prepare import Preparer
from poise.loading.sources import PlannedImage, Source
from poise.results import Failure
from poise.tuning import AnyTuner
from poise.tuning.answer import stacked
from poise.types import Answer, DualEncoder
from poise.views.recipe import ViewRecipe

S = TypeVar("S", bound=Stages)
Answers = tuple[dict[str, Answer[Tensor]], Tensor]  # by method, and the text features [1, C, D] under the init

NOT_FINITE = (
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
        self.preparer = Preparer(encoder, workers=workers, processes=processes)

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
        for batch in self.batches(groups, watch=watch):
            yield from outcomes(batch.images, batch.result, texts=texts)

    def batches(self, groups: Iterable[SourceGroup], *, watch: Watch | None = None) -> Iterator[Computed[Answers]]:
        """Yield the answers of `run_groups` batch by batch, on the encoder's device."""
        return self._stages(_Answers).run(groups, watch or Watch())

    def feature_batches(self, groups: Iterable[SourceGroup]) -> Iterator[Computed[Tensor]]:
        """Yield unit features [B, V, D] batch by batch, on the CPU."""
        return self._stages(_Features).run(groups, Watch())

    def answer_stored(self, features: Tensor) -> Answers:
        """Return the answers by method for unit features [B, V, D], and the class text features under the init."""
        assert self.tuner is not None, "this predictor was made without a tuner"
        return _answers(self.tuner, features)

    def answer(self, features: Tensor) -> Iterator[Predictions | None]:
        """Yield the answers by method for unit features [N, V, D]; None for an image whose output is not finite."""
        for part in features.split(self._stages(_Answers).batch_size(ViewRecipe(features.shape[1]))):
            yield from answer_rows(*self.answer_stored(part.to(self.encoder.device)))

    def features(self, sources: Iterable[Source]) -> Iterator[Tensor | Failure]:
        """Yield each image's unit features [V, D], on the CPU."""
        return self._tensors(self._stages(_Features), sources, None)

    def views(self, sources: Iterable[Source], *, views: ViewRecipe | None = None) -> Iterator[Tensor | Failure]:
        """Yield each image's normalised views [V, 3, S, S], on the encoder's device."""
        return self._tensors(self._stages(_Views), sources, views)

    def _stages(self, kind: type[S]) -> S:
        return kind(self.preparer, self.recipe, self.batch_size)

    def _group(self, sources: Iterable[Source], views: ViewRecipe | None) -> SourceGroup:
        return SourceGroup(sources, views or self.recipe, lambda: self.tuner)

    def _tensors(
        self, stages: Stages[Tensor], sources: Iterable[Source], views: ViewRecipe | None
    ) -> Iterator[Tensor | Failure]:
        for batch in stages.run([self._group(sources, views)], Watch()):
            tensors = batch.result
            if tensors is not None and tensors.is_cuda:
                tensors.record_stream(torch.cuda.current_stream(tensors.device))
            rows: Iterator[Tensor] = iter(() if tensors is None else tensors)
            for image in batch.images:
                yield image if isinstance(image, Failure) else next(rows)


def outcomes(
    images: Iterable[PlannedImage | Failure], answers: Answers | None, *, texts: bool = False
) -> Iterator[Predictions | Failure]:
    """Yield the answers of each image of a batch, read back to the host, or why it has none."""
    rows = iter(answer_rows(*answers, texts=texts) if answers else ())
    for image in images:
        if isinstance(image, Failure):
            yield image
        elif (row := next(rows)) is None:
            yield Failure(image.source, "non_finite", NOT_FINITE)
        else:
            known: dict[str, Any] = {name: getattr(image, name) for name in ("source", "notes", "key", "look")}
            yield {name: replace(part, **known) for name, part in row.items()}


class _Answers(Stages[Answers]):
    """The answers by method, and the class text features [1, C, D] under the initial prompt."""

    def compute(self, batch: Batch) -> Answers:
        tuner = batch.group.tuner()
        assert tuner is not None, "this predictor was made without a tuner"
        inputs = self.views(batch) if tuner.reads == "views" else self.features(batch)
        with self.times.stage("answers"):
            return _answers(tuner, inputs)


class _Features(Stages[Tensor]):
    """Unit features [B, V, D], on the CPU."""

    def compute(self, batch: Batch) -> Tensor:
        return self.features(batch).cpu()


class _Views(Stages[Tensor]):
    """Normalised views [B, V, 3, S, S]."""

    def compute(self, batch: Batch) -> Tensor:
        return self.views(batch)


def _answers(tuner: AnyTuner, inputs: Tensor) -> Answers:
    texts = tuner.texts.init_features()
    if (
        tuner.reads != "views" and inputs.shape[-1] != texts.shape[-1]
    ):  # of stored features, which may come from anybody
        raise InvalidDatasetError(
            f"The features have {inputs.shape[-1]} numbers, and those of the model {texts.shape[-1]}.",
            hint="Give features that this model made.",
        )
    return _predict(tuner, inputs), texts


def _predict(tuner: AnyTuner, inputs: Tensor) -> dict[str, Answer[Tensor]]:
    """Return the answers by method, in halves that fit into memory.

    A batch of an ordered stream is not halved: the tuner would learn from the first half twice.
    """
    return tuner.predict(inputs) if tuner.ordered else in_halves(tuner.predict, inputs, _stacked)


def _stacked(parts: list[dict[str, Answer[Tensor]]]) -> dict[str, Answer[Tensor]]:
    return {name: stacked([part[name] for part in parts]) for name in parts[0]}
