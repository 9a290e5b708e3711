"""A drop-in for transformers' zero-shot-image-classification pipeline, with tuned, calibrated scores."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch

from poise.backbones import load_model
from poise.errors import InvalidOptionError, UnknownNameError, UnreadableImageError
from poise.inference.classifier import DEFAULT_METHOD, DEFAULT_MODEL, Classifier
from poise.methods import Method
from poise.types import DualEncoder

TASK = "zero-shot-image-classification"
Scores = list[dict[str, Any]]


class ZeroShotImageClassification:
    """Call it as the transformers pipeline of the same name: same arguments, same shape of answer."""

    task = TASK

    def __init__(self, encoder: DualEncoder, method: str | Method, **options: Any) -> None:
        self.encoder = encoder
        # The original's default; a fitted prompt (``start``) brings its own.
        self._template = None if options.get("start") else "This is a photo of {}."
        self._classifier = lru_cache(maxsize=8)(
            lambda labels, template: Classifier(encoder, labels, method, template=template, **options)
        )

    def __call__(
        self,
        image: Any = None,
        candidate_labels: Sequence[str] | None = None,
        *,
        hypothesis_template: str | None = None,
        images: Any = None,
        timeout: float | None = None,
        batch_size: int | None = None,
    ) -> Scores | list[Scores]:
        """``[{"score", "label"}]``, best first; nested once more for a list of images.

        ``images`` is the older name of ``image``. ``timeout`` and ``batch_size`` are accepted for compatibility:
        nothing is fetched, and batching changes a score by rounding at most.
        """
        given = images if image is None else image
        if given is None:
            raise InvalidOptionError("No image was given.", hint="Pass a path, a PIL image, or a list of either.")
        if candidate_labels is None or isinstance(candidate_labels, str):  # a text would fall apart into letters
            raise InvalidOptionError(f"candidate_labels is {candidate_labels!r}.", hint="Pass a list of label texts.")
        classifier = self._classifier(tuple(candidate_labels), hypothesis_template or self._template)
        rich = self.encoder.activation == "sigmoid"  # those scores need the logits
        if isinstance(given, list | tuple):
            return [self._scores(result) for result in classifier([_local(item) for item in given], details=rich)]
        return self._scores(classifier(_local(given), details=rich))

    def _scores(self, result: Any) -> Scores:
        scores = result.probabilities
        if self.encoder.activation == "sigmoid":  # as transformers does for SigLIP: one yes or no per label
            logits = torch.tensor(list(result.details.logits.values()), dtype=torch.float64)
            scores = dict(zip(result.details.logits, logits.sigmoid().tolist(), strict=True))
        return [{"score": score, "label": label} for label, score in sorted(scores.items(), key=lambda item: -item[1])]


def pipeline(
    task: str = TASK,
    model: str | DualEncoder = DEFAULT_MODEL,
    *,
    method: str | Method = DEFAULT_METHOD,
    device: str = "auto",
    dtype: str = "auto",
    **options: Any,
) -> ZeroShotImageClassification:
    """The pipeline object for ``task``; ``options`` are the Classifier's (views, seed, augmix, ...)."""
    if task != TASK:
        raise UnknownNameError.of("task", task, [TASK])
    encoder = load_model(model, device=device, dtype=dtype) if isinstance(model, str) else model
    return ZeroShotImageClassification(encoder, method, **options)


def _local(image: Any) -> Any:
    """Refuse addresses (nothing is fetched from a network) and read base64 strings, as the original does."""
    if not isinstance(image, str) or Path(image[:4096]).exists():
        return image
    if image.startswith(("http://", "https://")):
        raise UnreadableImageError(f"'{image}' is a web address.", hint="Download the picture first and pass its path.")
    if not image.startswith("data:image/"):
        return image
    try:
        return base64.b64decode(image.split(",", 1)[-1], validate=True)
    except binascii.Error:
        raise UnreadableImageError(
            "The data: string is not valid base64.", hint="Pass the file's bytes instead."
        ) from None
