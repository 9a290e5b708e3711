"""Called as transformers' zero-shot-image-classification pipeline is, with tuned, calibrated scores."""

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
from poise.errors import InvalidOptionError, UnknownNameError, UnreadableImageError
from poise.inference.classifier import (
    DEFAULT_METHOD,
    DEFAULT_MODEL,
    Classifier,
    TuningOptions,
    check_counts,
    find_methods,
)
from poise.inference.results import Result
from poise.methods import Method
from poise.types import DualEncoder

TASK = "zero-shot-image-classification"
Scores = list[dict[str, Any]]

_ONE_IMAGE = (str, bytes, bytearray, memoryview, Path, Image.Image, np.ndarray, torch.Tensor)


class CallOptions(TypedDict, total=False):
    """The keyword arguments of a call, for type checkers."""

    hypothesis_template: str | None
    top_k: int | None
    batch_size: int | None
    images: Any
    timeout: float | None


class ZeroShotImageClassification:
    """What `pipeline` returns: call it with an image, or images, and candidate labels."""

    task = TASK

    def __init__(
        self, encoder: DualEncoder, method: str | Method, *, batch_size: int | None = None, **options: Any
    ) -> None:
        self.encoder, self.batch_size = encoder, batch_size

        @lru_cache(maxsize=8)  # encoding the labels takes longer than most images
        def classifier(labels: tuple[str, ...], template: str | None, batch_size: int | None) -> Classifier[Result]:
            return Classifier(labels, encoder, method, template=template, batch_size=batch_size, **options)

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
        """Scores of each label, best first.

        Args:
            image: a path, a ``data:`` URL in base64, encoded bytes, a PIL image, an array or a uint8 tensor
                [3, H, W]; a list of them; or a generator or any other iterable, which is read as it is needed.
            candidate_labels: the labels.
            hypothesis_template: the sentence that a label is put into. The default is poise's own,
                "a photo of a {}.", or the fitted prompt's (``init``); transformers' is "This is a photo of {}.".
            top_k: only so many of the best labels.
            batch_size: images computed together; None: as the pipeline was made.
            images: the older name of ``image``.
            timeout: accepted and not used, because nothing is fetched.

        Returns:
            ``[{"score": ..., "label": ...}, ...]`` for one image, a list of such lists for a list, and an iterator of
            them for an iterable.
        """
        given = images if image is None else image
        if given is None:
            raise InvalidOptionError("No image was given.", hint="Pass a path, a PIL image, or a list of either.")
        if candidate_labels is None or isinstance(candidate_labels, str):  # a text would fall apart into letters
            raise InvalidOptionError(f"candidate_labels is {candidate_labels!r}.", hint="Pass a list of label texts.")
        check_counts(1, batch_size)
        if top_k is not None and top_k < 1:
            raise InvalidOptionError(f"top_k is {top_k}.", hint="Give a whole number from 1 on, or None for all.")
        classifier = self._classifier(tuple(candidate_labels), hypothesis_template, batch_size or self.batch_size)
        if isinstance(given, list | tuple):
            return list(self._each(classifier, given, top_k))
        if isinstance(given, Iterable) and not isinstance(given, _ONE_IMAGE):
            return self._each(classifier, given, top_k)
        return next(self._each(classifier, [given], top_k))

    def _each(self, classifier: Classifier[Result], images: Iterable[Any], top_k: int | None) -> Iterator[Scores]:
        sigmoid = self.encoder.activation == "sigmoid"  # those scores need the logits
        for result in classifier.results(map(_local, images), details=sigmoid):
            scores = result.probabilities
            if sigmoid and result.details is not None:  # as transformers does for SigLIP: one yes or no per label
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
    **options: Unpack[TuningOptions],
) -> ZeroShotImageClassification:
    """A pipeline for ``task``, called as the one of transformers is.

    It takes files, ``data:`` URLs, bytes, PIL images and arrays. Web addresses are refused: poise fetches nothing.

    Args:
        task: "zero-shot-image-classification".
        model: a name that `poise.load_model` takes, or a loaded model.
        method: what is tuned for each image; "zero-shot" gives transformers' own scores.
        device: "auto", "cpu", "cuda:1", a torch.device, or a number: that of a GPU, or -1 for the CPU.
        dtype: see `Classifier`.
        batch_size: images computed together; None: by device.
        options: of the `Classifier`: context, init, views, augmix, seed, on_long_label.

    Example:
        >>> import numpy as np
        >>> classify = pipeline("zero-shot-image-classification", model="tiny", device="cpu", views=4)
        >>> rows = classify(np.zeros((32, 32, 3), np.uint8), candidate_labels=["cat", "dog"], top_k=1)
        >>> [sorted(row) for row in rows]
        [['label', 'score']]
    """
    if task != TASK:
        raise UnknownNameError.of("task", task, [TASK])
    known = [*TuningOptions.__annotations__, "batch_size", "device", "dtype", "method"]
    for name in options:
        if name not in known:
            raise UnknownNameError.of("option", name, known)
    if not isinstance(method, str | Method):
        raise InvalidOptionError("A pipeline has one method.", hint="For several of them use poise.Classifier.")
    find_methods(method)
    check_counts(options.get("views", 1), batch_size)
    if isinstance(device, int):
        device = "cpu" if device < 0 else f"cuda:{device}"
    encoder = load_model(model, device=device, dtype=dtype) if isinstance(model, str) else model
    return ZeroShotImageClassification(encoder, method, batch_size=batch_size, **options)


def _local(image: Any) -> Any:
    """Base64 strings as bytes, as the original reads them; addresses are refused where files are read."""
    if not isinstance(image, str) or not image.startswith("data:image/"):
        return image
    try:
        return base64.b64decode(image.split(",", 1)[-1], validate=True)
    except binascii.Error:
        raise UnreadableImageError(
            "The data: string is not valid base64.", hint="Pass the file's bytes instead."
        ) from None
