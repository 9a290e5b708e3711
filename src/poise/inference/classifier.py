"""Zero-shot image classification with calibrated probabilities."""

from __future__ import annotations

import math
import reprlib
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Generic, TypedDict, TypeVar, Unpack, cast, overload

import numpy as np

from poise import methods as method_table
from poise.backbones import load_model
from poise.errors import InvalidOptionError, PoiseError, UnreadableImageError
from poise.inference.answers import Answer, Prediction
from poise.inference.predictor import Predictor
from poise.inference.results import Details, Failure, Result
from poise.inits.kinds import check_template
from poise.methods import Method
from poise.prompts import DEFAULT_TEMPLATE, check_labels, tokenise
from poise.tuning import AnyTuner, Tuner, make_tuner
from poise.types import DualEncoder, Prompt
from poise.views import ViewRecipe

DEFAULT_MODEL = "pocket"
DEFAULT_METHOD = "kld+cats"

Answers = dict[str, Result]  # by method
R = TypeVar("R", Result, Answers)


class TuningOptions(TypedDict, total=False):
    """The keyword arguments that `Classifier` and `pipeline` share, for type checkers."""

    context: str
    init: str | Path | Prompt
    views: int
    augmix: bool
    seed: int
    on_long_label: str


class ClassifierOptions(TuningOptions, total=False):
    """The keyword arguments of `Classifier`, for type checkers."""

    template: str | None
    device: Any
    dtype: Any
    batch_size: int | None


class Classifier(Generic[R]):
    """Zero-shot image classification with test-time prompt tuning.

    The labels are encoded once, by the constructor. Calls have no side effects: the same image, labels, options and
    seed give the same answer, independent of the file's name and of the other images in the call (up to rounding).

    Args:
        labels: class names without duplicates. Probabilities are relative to these labels and sum to 1.
        model: a name from `poise.list_models`, or a loaded model.
        method: how the prompt is tuned for each image: a name from `poise.list_methods`, with post-hoc steps after it
            if wanted ("kld+cats | cots"), or a `poise.Method`; or a list of them.
        template: prompt with ``{}`` for the label. None: "a photo of a {}.", or the template of the prompt file that
            ``init`` names.
        context: which words of the template are tuned: those "before" or "after" the label, "around" it, "none" of
            them, or "auto" (those before it if there are any).
        init: where tuning starts: "template" (its words), "fpp" or "fpp-shift" (fitted here, without data), the file
            of a prompt from `poise fit` or `poise convert`, or a prompt.
        views: views per image, the plain image included.
        augmix: mix the augmented views with AugMix, as the published protocol does on fine-grained datasets.
        seed: seed of the random views.
        device: "auto" (CUDA, else MPS, else the CPU), "cpu", "cuda", "cuda:1", "mps", or a torch.device.
        dtype: "auto" (float16 on CUDA, else float32), "float32", "float16", "bfloat16" or "float64".
        batch_size: images computed together; None: by device.
        on_long_label: "error" rejects labels that are longer than the model reads; "truncate" cuts them and warns.

    Raises:
        InvalidLabelsError: Labels are missing, blank, repeated or too long.
        InvalidOptionError, UnknownNameError: An option or a name is not valid.

    Example:
        >>> import numpy as np
        >>> classify = Classifier(["cat", "dog"], model="tiny", views=4, device="cpu")
        >>> image = np.zeros((32, 32, 3), np.uint8)
        >>> result = classify(image)
        >>> result.label in classify.labels, round(sum(result.probabilities.values()), 6)
        (True, 1.0)
        >>> classify.predict_proba([image, image]).shape
        (2, 2)
    """

    @overload
    def __init__(
        self: Classifier[Result], labels: Sequence[str], model: str | DualEncoder = ...,
        method: str | Method = ..., **options: Unpack[ClassifierOptions],
    ) -> None: ...  # fmt: skip

    @overload
    def __init__(
        self: Classifier[Answers], labels: Sequence[str], model: str | DualEncoder = ...,
        method: Sequence[str | Method] = ..., **options: Unpack[ClassifierOptions],
    ) -> None: ...  # fmt: skip

    def __init__(
        self,
        labels: Sequence[str],
        model: str | DualEncoder = DEFAULT_MODEL,
        method: str | Method | Sequence[str | Method] = DEFAULT_METHOD,
        *,
        template: str | None = None,
        context: str = "auto",
        init: str | Path | Prompt = "template",
        views: int = 64,
        augmix: bool = False,
        seed: int = 0,
        device: Any = "auto",
        dtype: Any = "auto",
        batch_size: int | None = None,
        on_long_label: str = "error",
    ) -> None:
        # Check all that does not depend on the model before loading it.
        check_counts(views, batch_size)
        self.labels = check_labels(labels)
        self.methods = find_methods(method)
        self._several = not isinstance(method, str | Method)
        if not isinstance(init, Prompt):
            check_template(str(init), template)
        self.encoder = load_model(model, device=device, dtype=dtype) if isinstance(model, str) else model
        self.recipe = ViewRecipe(views, seed, augmix)
        tuner = self._make_tuner(template, context, init, on_long_label)
        self._predictor = Predictor(self.encoder, tuner, self.recipe, batch_size=batch_size or 0)

    @overload
    def __call__(self, images: list[Any] | tuple[Any, ...], *, details: bool = False) -> list[R]: ...

    @overload
    def __call__(self, images: Any, *, details: bool = False) -> R: ...

    def __call__(self, images: Any, *, details: bool = False) -> R | list[R]:
        """Classify one image, or a list of them.

        Args:
            images: a path, encoded bytes, a PIL image, a NumPy array or a uint8 tensor [3, H, W]; or a list of them.
            details: whether to return intermediate results (`Result.details`).

        Returns:
            A `Result`, or a dict of results by method if ``method`` is a list; a list of them for a list of images.

        Raises:
            UnreadableImageError: An image can't be read. `each` yields a `Failure` instead.
        """
        if isinstance(images, list | tuple):
            return list(self.results(images, details=details))
        return next(self.results([images], details=details))

    def results(self, images: Iterable[Any], *, details: bool = False) -> Iterator[R]:
        """Yield what a call returns for each image, in order; images may come from a generator.

        Raises:
            UnreadableImageError: An image can't be read.
        """
        for outcome in self.each(images, details=details):
            answers = _or_raise(outcome)
            yield cast(R, answers if self._several else answers[self.methods[0].name])

    def each(self, images: Iterable[Any], *, details: bool = False) -> Iterator[Answers | Failure]:
        """Yield one outcome per image, in order: a dict of results by method, or a `Failure` with the reason."""
        # Zero-shot uses the plain view only; the other views are needed for the details.
        reads_views = any(method.reads_views for method in self.methods)
        recipe = self.recipe if details or reads_views else ViewRecipe(1, self.recipe.seed)
        for outcome in self._predictor.run(images, views=recipe):
            if isinstance(outcome, Failure):
                yield outcome
            else:
                yield {name: self._result(outcome, name, details) for name in outcome.answers}

    @overload
    def predict_proba(self: Classifier[Result], images: Iterable[Any]) -> np.ndarray: ...

    @overload
    def predict_proba(self: Classifier[Answers], images: Iterable[Any]) -> dict[str, np.ndarray]: ...

    def predict_proba(self, images: Iterable[Any]) -> np.ndarray | dict[str, np.ndarray]:
        """Return the probabilities [N, C] of N images, columns in the order of ``labels``.

        If ``method`` is a list, the result is a dict of such arrays by method.

        Raises:
            UnreadableImageError: An image can't be read.
        """
        names = [method.name for method in self.methods]
        rows = [_or_raise(outcome) for outcome in self.each(images)]
        values = [[[row[name].probabilities[label] for label in self.labels] for row in rows] for name in names]
        probs = np.array(values).reshape(len(names), len(rows), len(self.labels))
        return dict(zip(names, probs, strict=True)) if self._several else probs[0]

    def __repr__(self) -> str:
        labels, methods = reprlib.repr(self.labels), ", ".join(method.name for method in self.methods)
        model = f"model '{self.encoder.name}', method {methods}, on {self.encoder.device}"
        return f"Classifier({len(self.labels)} labels: {labels}; {model})"

    def _make_tuner(
        self, template: str | None, context: str, init: str | Path | Prompt, on_long_label: str
    ) -> AnyTuner:
        if context == "auto" and init == "template" and not self._tunes():
            context = "none"  # nothing is tuned, so the template "{}" is valid, too
        classes = tokenise(
            self.encoder, self.labels, template or DEFAULT_TEMPLATE, context=context, on_long_label=on_long_label
        )
        if isinstance(init, Prompt):
            return Tuner(self.encoder, classes, self.methods, init)
        return make_tuner(self.encoder, classes, self.methods, init=str(init), on_long_label=on_long_label)

    def _tunes(self) -> bool:
        return any(method.tunes for method in self.methods)

    def _result(self, prediction: Prediction, method: str, details: bool) -> Result:
        answer = prediction.answers[method]
        ranked = dict(sorted(self._by_label(answer.probs).items(), key=lambda item: -item[1]))
        top = list(ranked.values())
        return Result(
            label=next(iter(ranked)),
            confidence=top[0],
            probabilities=ranked,
            entropy=0.0 - math.fsum(p * math.log(p) for p in top if p > 0),  # 0 instead of -0 if certain
            margin=top[0] - (top[1] if len(top) > 1 else 0.0),
            method=method,
            source=prediction.source,
            fallback=answer.fallback,
            degenerate=len(top) == 1,
            notes=prediction.notes,
            details=self._details(answer) if details else None,
        )

    def _details(self, answer: Answer) -> Details:
        return Details(
            init_probabilities=self._by_label(answer.init_probs),
            target_probabilities=self._by_label(answer.target_probs),
            view_confidences=tuple(answer.confidences.tolist()),
            view_temperatures=tuple(answer.temperatures.tolist()),
            selected_views=tuple(answer.selected.tolist()),
            losses=tuple(answer.losses.tolist()),
            logits=self._by_label(answer.logits),
            scale=self.encoder.scale,
            bias=self.encoder.bias,
        )

    def _by_label(self, values: np.ndarray) -> dict[str, float]:
        return dict(zip(self.labels, values.tolist(), strict=True))


def find_methods(method: str | Method | Sequence[str | Method]) -> tuple[Method, ...]:
    """Return the methods that the option ``method`` names."""
    chosen = [method] if isinstance(method, str | Method) else list(method)
    if not chosen:
        raise InvalidOptionError("No method was given.", hint=f"Known: {', '.join(method_table.names())}.")
    found = tuple(method_table.get(item) if isinstance(item, str) else item for item in chosen)
    streams = [item.name for item in found if item.ordered]
    if streams:
        raise InvalidOptionError(
            f"The answers of {', '.join(streams)} depend on the images before.",
            hint="Here each image is answered by itself. Run such methods with `poise bench run`.",
        )
    return found


def check_counts(views: object, batch_size: object) -> None:
    """Raise an error if the number of views, or of images per batch, is not valid."""
    views_hint, batch_size = " The plain image counts as a view.", 1 if batch_size is None else batch_size
    for name, count, hint in (("views", views, views_hint), ("batch_size", batch_size, "")):
        if not isinstance(count, int) or isinstance(count, bool) or count < 1:
            raise InvalidOptionError(f"{name} is {count!r}.", hint=f"Use a whole number of at least 1.{hint}")


def _or_raise(outcome: Answers | Failure) -> Answers:
    if isinstance(outcome, Failure):
        kind = UnreadableImageError if outcome.code == UnreadableImageError.code else PoiseError
        raise kind(outcome.message, code=outcome.code)
    return outcome
