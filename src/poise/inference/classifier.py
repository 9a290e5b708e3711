"""The front door: name the labels, hand over images, get probabilities that mean what they say."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, overload

import torch

from poise import methods as method_table
from poise.backbones import load_model
from poise.errors import InvalidOptionError, PoiseError, UnreadableImageError
from poise.images import LoadedImage, read_image
from poise.inference.results import Details, Failure, Result
from poise.inits.kinds import check_template
from poise.methods import Method
from poise.prompts import tokenise
from poise.tuning import AnyTuner, Tuner, make_tuner
from poise.types import Adapted, DualEncoder, Prompt
from poise.views import make_views_batched, plan_views

DEFAULT_MODEL = "pocket"
DEFAULT_METHOD = "kld+cats"
DEFAULT_TEMPLATE = "a photo of a {}."
BATCH_SIZES = {"cuda": 16, "cpu": 4, "mps": 4}  # images tuned together: results don't depend on it, memory does

Answers = dict[str, Result]


class Classifier:
    """Zero-shot classification with test-time prompt tuning.

    Labels are encoded once, here. Calls are free of state: the same image, labels, options and seed give the same
    answer, whatever its file name and whichever images come before it or in the same batch.
    """

    def __init__(
        self,
        model: str | DualEncoder = DEFAULT_MODEL,
        labels: Sequence[str] = (),
        method: str | Method | Sequence[str | Method] = DEFAULT_METHOD,
        *,
        template: str | None = None,  # "a photo of a {}." by default; a fitted prompt brings its own
        context: str = "auto",
        start: Prompt | str | Path | None = None,  # where tuning begins: a prompt, or the file of a fitted one
        views: int = 64,
        augmix: bool = False,
        seed: int = 0,
        device: str = "auto",
        dtype: str = "auto",
        batch_size: int | None = None,
        on_long_label: str = "error",
    ) -> None:
        check_counts(views, batch_size)
        named = [method] if isinstance(method, str | Method) else list(method)
        if not named:
            raise InvalidOptionError("No method was given.", hint=f"Known: {', '.join(method_table.names())}.")
        self.methods = tuple(method_table.get(item) if isinstance(item, str) else item for item in named)
        self.encoder = load_model(model, device=device, dtype=dtype) if isinstance(model, str) else model
        if context == "auto" and start is None and not self._tunes():
            context = "none"  # so that a template may be the name alone
        if isinstance(start, str | Path):
            check_template(str(start), template)
        words = template or DEFAULT_TEMPLATE
        classes = tokenise(self.encoder, labels, words, context=context, on_long_label=on_long_label)
        self.labels = classes.labels
        self.views, self.augmix, self.seed = views, augmix, seed
        self.batch_size = batch_size or BATCH_SIZES.get(self.encoder.device.type, 4)
        self._tuner: AnyTuner = (
            make_tuner(self.encoder, classes, self.methods, init=str(start), on_long_label=on_long_label)
            if isinstance(start, str | Path)
            else Tuner(self.encoder, classes, self.methods, start)
        )

    @overload
    def __call__(self, images: list[Any] | tuple[Any, ...], *, details: bool = False) -> list[Result]: ...

    @overload
    def __call__(self, images: Any, *, details: bool = False) -> Result: ...

    def __call__(self, images: Any, *, details: bool = False) -> Result | list[Result]:
        """Classify one image (path, bytes, PIL image, array) or a list of them, by the first method.

        An unreadable image raises. To get an error row instead, use `each`.
        """
        several = isinstance(images, list | tuple)
        answers = []
        for outcome in self.each(images if several else [images], details=details):
            if isinstance(outcome, Failure):
                raise UnreadableImageError(outcome.message, code=outcome.code)
            answers.append(outcome[self.methods[0].name])
        return answers if several else answers[0]

    def each(self, images: Iterable[Any], *, details: bool = False) -> Iterator[Answers | Failure]:
        """One outcome per image, in order: the answer of every method, or why there is none."""
        stream = iter(images)
        while batch := list(islice(stream, self.batch_size)):
            read = [read_or_fail(item) for item in batch]
            pictures = [item for item in read if isinstance(item, LoadedImage)]
            answers = iter(self._classify(pictures, details) if pictures else [])
            for item in read:
                yield item if isinstance(item, Failure) else next(answers)

    def _classify(self, pictures: list[LoadedImage], details: bool) -> list[Answers | Failure]:
        # Zero-shot reads the plain view alone, so the others are made only when somebody looks at them.
        count = self.views if self._tunes() or details else 1
        plans = [
            plan_views(picture.image.size, views=count, seed=self.seed, key=picture.key, augmix=self.augmix)
            for picture in pictures
        ]
        images = [picture.image for picture in pictures]
        views = make_views_batched(images, self.encoder.image, plans, self.encoder.device)
        whole = self._tuner.reads == "views"  # image prompts are tuned too
        adapted = self._tuner.predict(views if whole else self.encoder.encode_images(views))
        return [self._outcome(picture, row, adapted, details) for row, picture in enumerate(pictures)]

    def _tunes(self) -> bool:
        return any(method.tunes for method in self.methods)

    def _outcome(self, picture: LoadedImage, row: int, adapted: dict[str, Adapted], details: bool) -> Answers | Failure:
        if not all(bool(answer.probs[row].isfinite().all()) for answer in adapted.values()):
            message = "The model's output for this image is not finite, even without tuning."
            return Failure(picture.source, "non_finite", f"{message} Try dtype='float32', or check the weights.")
        return {name: self._result(picture, row, name, answer, details) for name, answer in adapted.items()}

    def _result(self, picture: LoadedImage, row: int, method: str, answer: Adapted, details: bool) -> Result:
        probabilities = dict(zip(self.labels, answer.probs[row].double().tolist(), strict=True))
        ranked = dict(sorted(probabilities.items(), key=lambda item: -item[1]))
        top = list(ranked.values())
        return Result(
            label=next(iter(ranked)),
            confidence=top[0],
            probabilities=ranked,
            entropy=0.0 - math.fsum(p * math.log(p) for p in top if p > 0),  # a sure answer has 0, not -0
            margin=top[0] - (top[1] if len(top) > 1 else 0.0),
            method=method,
            source=picture.source,
            fallback=bool(answer.fallback[row]),
            degenerate=len(top) == 1,
            notes=picture.notes,
            details=self._details(row, answer) if details else None,
        )

    def _details(self, row: int, answer: Adapted) -> Details:
        def by_label(values: torch.Tensor) -> dict[str, float]:
            return dict(zip(self.labels, values.double().tolist(), strict=True))

        return Details(
            init_probabilities=by_label(answer.init_probs[row]),
            target_probabilities=by_label(answer.target_probs[row]),
            view_confidences=tuple(answer.confidences[row].tolist()),
            view_temperatures=tuple(answer.temperatures[row].tolist()),
            selected_views=tuple(answer.selected[row].tolist()),
            losses=tuple(answer.losses[row].tolist()),
            logits=by_label(answer.logits[row]),
            scale=self.encoder.scale,
            bias=self.encoder.bias,
            activation="softmax",
        )


def read_or_fail(item: Any) -> LoadedImage | Failure:
    """The picture, or why there is none; what is either already stays as it is."""
    try:
        return item if isinstance(item, LoadedImage | Failure) else read_image(item)
    except PoiseError as error:
        return Failure(str(item) if isinstance(item, str | Path) else "image", error.code, str(error))


def check_counts(views: object, batch_size: object) -> None:
    """Refuse numbers of views, or of images together, that can't be."""
    if not _is_count(views):
        raise InvalidOptionError(
            f"views is {views!r}.", hint="It counts the plain view: give a whole number from 1 on."
        )
    if batch_size is not None and not _is_count(batch_size):
        raise InvalidOptionError(f"batch_size is {batch_size!r}.", hint="Give a whole number from 1 on.")


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 1
