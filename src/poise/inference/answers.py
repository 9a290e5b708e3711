"""The answers of a batch as one NumPy row per image and method."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from poise.objectives.dispersion import mean_distance_to_centroid
from poise.types import Answer

_REALS = ("probs", "init_probs", "target_probs", "logits", "confidences", "temperatures", "losses")
_NUMBERS: dict[str, Any] = dict.fromkeys(_REALS, np.float64) | {"selected": np.int64, "view_labels": np.int64}

Predictions = dict[str, Answer[np.ndarray]]  # of one image, by method


def of_image(predictions: Predictions) -> Answer[np.ndarray]:
    """Return one of an image's answers, which share what is known about the image."""
    return next(iter(predictions.values()))


def answer_rows(
    by_method: Mapping[str, Answer[Tensor]], init_features: Tensor, *, texts: bool = False
) -> list[Predictions | None]:
    """Return the answers of each image by method, or None for an image for which the model's output is not finite.

    If tuning gives NaN or Inf, the initial prompt answers, so such an image has no finite answer without tuning either.

    Args:
        by_method: the answers for B images, on their device.
        init_features: class text features [1, C, D] under the initial prompt.
        texts: whether to include the tuned text features.
    """
    init_dispersion = float(_dispersion(init_features)[0])
    columns = {name: _columns(answer, init_dispersion, texts) for name, answer in by_method.items()}
    images = [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
    return [row if all(np.isfinite(part.probs).all() for part in row.values()) else None for row in images]


def _columns(answer: Answer[Tensor], init_dispersion: float, texts: bool) -> list[Answer[np.ndarray]]:
    """Return one method's answers for B images."""
    assert answer.text_features is not None
    tensors = {name: getattr(answer, name) for name in (*_NUMBERS, "fallback")}
    numbers = _on_host({**tensors, "dispersion": _dispersion(answer.text_features)})
    features = answer.text_features.detach().float().cpu().numpy() if texts else [None] * len(answer.probs)
    return [
        Answer(
            **{name: numbers[name][row].astype(kind, copy=False) for name, kind in _NUMBERS.items()},
            fallback=numbers["fallback"][row, 0].astype(bool),
            dispersion=float(numbers["dispersion"][row, 0]),
            init_dispersion=init_dispersion,
            text_features=features[row],
        )
        for row in range(len(answer.probs))
    ]


def _dispersion(text_features: Tensor) -> Tensor:
    """Return the ATFD [B] of unit text features [B, C, D], in float64; once if all images share them."""
    shared = text_features.stride(0) == 0
    rows = mean_distance_to_centroid((text_features[:1] if shared else text_features).detach().double())
    return rows.expand(len(text_features))


def _on_host(tensors: Mapping[str, Tensor]) -> dict[str, np.ndarray]:
    """Return tensors [B, ...] as float64 arrays [B, n]; in one copy, because each copy waits for the device."""
    flat = [tensor.detach().double().reshape(len(tensor), -1) for tensor in tensors.values()]
    ends = np.cumsum([part.shape[1] for part in flat])
    joined = torch.cat(flat, dim=1).cpu().numpy()
    return dict(zip(tensors, np.split(joined, ends[:-1], axis=1), strict=True))
