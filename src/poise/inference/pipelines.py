"""A pipeline with the interface of transformers' zero-shot-image-classification pipeline, with tuned scores."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, TypedDict, Unpack, overload

import numpy as np
import torch
from PIL import Image

from poise.backbones import load_model
from poise.defaults import DEFAULT_METHOD, DEFAULT_MODEL
from poise.errors import InvalidOptionError, UnknownNameError, UnreadableImageError
from poise.inference.classifier import Classifier
from poise.inference.option_checks import check_counts, find_methods
from poise.methods import Method
from poise.options import AnswerOptions, ComputeOptions, Options, check_names, rows
from poise.results import Failure
from poise.types import DualEncoder

TASK = "zero-shot-image-classification"
Scores = list[dict[str, Any]]
_PER_CALL = ("labels", "parents", "groups", "template", "one_label")  # which a call decides

_ONE_IMAGE = (str, bytes, bytearray, memoryview, Path, Image.Image, np.ndarray, torch.Tensor)


class CallOptions(TypedDict, total=False):
    """The keyword arguments of a call, for type checkers."""

    hypothesis_template: str | None
    top_k: int | None
    batch_size: int | None
    images: Any
    timeout: float | None


class ZeroShotImageClassification:
    """Scores labels for images; created by `pipeline`."""

    task = TASK

    def __init__(
        self, encoder: DualEncoder, method: str | Method, *, batch_size: int | None = None, **options: Any
    ) -> None:
        self.encoder, self.batch_size = encoder, batch_size

        @lru_cache(maxsize=8)  # encoding the labels takes longer than most images
        def classifier(labels: tuple[str, ...], template: str | None, batch_size: int | None) -> Classifier[Any]:
            alone = encoder.activation == "sigmoid"  # which scores each label by itself, so that one has a meaning
            return Classifier(
                labels, encoder, method, template=template, batch_size=batch_size, one_label=alone, **options
            )

        self._classifier = classifier

    @overload
    def __call__(
        self, image: list[Any] | tuple[Any, ...], candidate_labels: Sequence[str], **options: Unpack[CallOptions]
    ) -> list[Scores]: ...

    @overload
    def __call__(
        self, image: Iterator[Any], candidate_labels: Sequence[str], **options: Unpack[CallOptions]
    ) -> Iterator[Scores]: ...

    @overload
    def __call__(
        self, image: Any = ..., candidate_labels: Sequence[str] | None = ..., **options: Unpack[CallOptions]
    ) -> Scores: ...

    def __call__(
        self,
        image: Any = None,
        candidate_labels: Sequence[str] | None = None,
        *,
        hypothesis_template: str | None = None,
        top_k: int | None = None,
        batch_size: int | None = None,
        images: Any = None,
        timeout: float | None = None,
    ) -> Scores | list[Scores] | Iterator[Scores]:
        """Return the scores of the labels, best first.

        Args:
            image: a path, a ``data:`` URL in base64, encoded bytes, a PIL image, an array or a uint8 tensor
                [3, H, W]; a list of them; or a generator or another iterable, which is read lazily.
            candidate_labels: the labels.
            hypothesis_template: prompt with ``{}`` for the label. The default is "a photo of a {}.", or the template
                of the fitted prompt (``init``); the default of transformers is "This is a photo of {}.".
            top_k: number of labels to return; None: all.
            batch_size: images computed together; None: the pipeline's ``batch_size``.
            images: the older name of ``image``.
            timeout: accepted for compatibility; has no effect, because nothing is downloaded.

        Returns:
            ``[{"score": ..., "label": ...}, ...]`` for one image, a list of such lists for a list, and an iterator of
            them for an iterable.
        """
        inputs = images if image is None else image
        if inputs is None:
            raise InvalidOptionError("No image was given.", hint="Pass a path, a PIL image, or a list of either.")
        if candidate_labels is None or isinstance(candidate_labels, str):  # a string is a sequence of letters
            raise InvalidOptionError(f"candidate_labels is {candidate_labels!r}.", hint="Pass a list of strings.")
        check_counts(1, batch_size)
        if top_k is not None and top_k < 1:
            raise InvalidOptionError(f"top_k is {top_k}.", hint="Use a whole number of at least 1, or None for all.")
        classifier = self._classifier(tuple(candidate_labels), hypothesis_template, batch_size or self.batch_size)
        if isinstance(inputs, list | tuple):
            return list(self._scores(classifier, inputs, top_k))
        if isinstance(inputs, Iterable) and not isinstance(inputs, _ONE_IMAGE):
            return self._scores(classifier, inputs, top_k)
        return next(self._scores(classifier, [inputs], top_k))

    def _scores(self, classifier: Classifier[Any], images: Iterable[Any], top_k: int | None) -> Iterator[Scores]:
        sigmoid = self.encoder.activation == "sigmoid"  # as in transformers, SigLIP scores each label independently
        for outcome in classifier.each(map(_decode_data_url, images), details=sigmoid):
            if isinstance(outcome, Failure):
                raise outcome.error()
            (result,) = outcome.values()
            scores = result.probabilities
            if sigmoid and result.details is not None:
                logits = torch.tensor(list(result.details.logits.values()), dtype=torch.float64)
                scores = dict(zip(result.details.logits, logits.sigmoid().tolist(), strict=True))
            ranked = sorted(scores.items(), key=lambda item: -item[1])
            yield [{"score": score, "label": label} for label, score in ranked[:top_k]]


def pipeline(
    task: str = TASK,
    model: str | DualEncoder = DEFAULT_MODEL,
    *,
    method: str | Method = DEFAULT_METHOD,
    device: str | int | torch.device = "auto",
    dtype: str | torch.dtype = "auto",
    batch_size: int | None = None,
    **options: Any,
) -> ZeroShotImageClassification:
    """Return a pipeline with the interface of transformers' pipeline for ``task``.

    It accepts files, ``data:`` URLs, bytes, PIL images and arrays, but no web addresses: poise downloads nothing.

    Args:
        task: "zero-shot-image-classification".
        model: a name from `poise.list_models`, or a loaded model.
        method: how the prompt is tuned for each image; "zero-shot" gives the scores of transformers.
        device: "auto", "cpu", "cuda:1", a torch.device, the number of a GPU, or -1 for the CPU.
        dtype: see `Classifier`.
        batch_size: images computed together; None: by device.
        options: other options of `Classifier` that need no calibration, such as views, init and seed.

    Example:
        >>> import numpy as np
        >>> classify = pipeline("zero-shot-image-classification", model="tiny", device="cpu", views=4)
        >>> rows = classify(np.zeros((32, 32, 3), np.uint8), candidate_labels=["cat", "dog"], top_k=1)
        >>> [sorted(row) for row in rows]
        [['label', 'score']]
    """
    if task != TASK:
        raise UnknownNameError.of("task", task, [TASK])
    check_names(options, (row.name for row in rows(AnswerOptions, ComputeOptions) if row.name not in _PER_CALL))
    if not isinstance(method, str | Method):
        raise InvalidOptionError("A pipeline has one method.", hint="Use poise.Classifier for several methods.")
    find_methods(method)
    check_counts(options.get("views", Options.views), batch_size)
    if isinstance(device, int):
        device = "cpu" if device < 0 else f"cuda:{device}"
    scale = options.pop("logit_scale", None)
    encoder = load_model(model, device=device, dtype=dtype, logit_scale=scale) if isinstance(model, str) else model
    return ZeroShotImageClassification(encoder, method, batch_size=batch_size, **options)


def _decode_data_url(image: Any) -> Any:
    """Return the bytes of a base64 data URL; other sources are returned unchanged."""
    if not isinstance(image, str) or not image.startswith("data:image/"):
        return image
    try:
        return base64.b64decode(image.split(",", 1)[-1], validate=True)
    except binascii.Error:
        hint = "Pass the file's bytes instead."
        raise UnreadableImageError("The data: string is not valid base64.", hint=hint) from None
