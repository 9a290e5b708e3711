"""The answers of a batch as one NumPy row per image and method."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from poise.objectives.dispersion import mean_distance_to_centroid
from poise.types import Adapted

_NUMBERS = (
    "probs",
    "init_probs",
    "target_probs",
    "logits",
    "confidences",
    "temperatures",
    "losses",
    "selected",
    "view_labels",
    "fallback",
)
_INDICES = ("selected", "view_labels")


@dataclass(frozen=True)
class Prediction:
    """One method's answer for one image, in NumPy; probabilities and logits are float64."""

    probs: np.ndarray  # [C] under the tuned prompt: the prediction
    init_probs: np.ndarray  # [C] under the initial prompt
    target_probs: np.ndarray  # [C] p_aug under the tuned prompt
    logits: np.ndarray  # [C] of the plain view under the tuned prompt
    confidences: np.ndarray  # [V] of each view under the initial prompt
    temperatures: np.ndarray  # [V] by which the target divides each view's logits
    selected: np.ndarray  # [K] indices of the views in the target
    view_labels: np.ndarray  # [V] the most probable class of each view under the tuned prompt
    losses: np.ndarray  # [steps]
    fallback: bool  # whether tuning gave NaN or Inf, so that the initial prompt answered
    dispersion: float  # mean distance of the tuned text features to their centroid (ATFD)
    init_dispersion: float  # the same under the initial prompt
    text_features: np.ndarray | None = None  # [C, D] under the tuned prompt, if requested
    source: str = ""  # of the image
    notes: tuple[str, ...] = ()  # changes beyond decoding when the image was read
    key: str = ""  # hash of the pixels

    def about(self, source: str, notes: tuple[str, ...], key: str) -> Prediction:
        """Return it with what is known about the image."""
        return replace(self, source=source, notes=notes, key=key)


Predictions = dict[str, Prediction]  # of one image, by method


def of_image(predictions: Predictions) -> Prediction:
    """Return one of an image's predictions, which share what is known about the image."""
    return next(iter(predictions.values()))


def answer_rows(
    by_method: Mapping[str, Adapted], init_features: Tensor, *, texts: bool = False
) -> list[Predictions | None]:
    """Return the answers of each image by method, or None for an image for which the model's output is not finite.

    If tuning gives NaN or Inf, the initial prompt answers, so such an image has no finite answer without tuning either.

    Args:
        by_method: the answers for B images, on their device.
        init_features: class text features [1, C, D] under the initial prompt.
        texts: whether to include the tuned text features.
    """
    init_dispersion = float(_dispersion(init_features)[0])
    columns = {name: _columns(adapted, init_dispersion, texts) for name, adapted in by_method.items()}
    images = [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
    return [row if all(np.isfinite(part.probs).all() for part in row.values()) else None for row in images]


def _columns(adapted: Adapted, init_dispersion: float, texts: bool) -> list[Prediction]:
    """Return one method's answers for B images."""
    tensors = {name: getattr(adapted, name) for name in _NUMBERS}
    numbers = _on_host({**tensors, "dispersion": _dispersion(adapted.text_features)})
    features = adapted.text_features.detach().float().cpu().numpy() if texts else [None] * len(adapted.probs)
    return [
        Prediction(
            **{name: numbers[name][row] for name in _NUMBERS if name not in (*_INDICES, "fallback")},
            **{name: numbers[name][row].astype(np.int64) for name in _INDICES},
            fallback=bool(numbers["fallback"][row, 0]),
            dispersion=float(numbers["dispersion"][row, 0]),
            init_dispersion=init_dispersion,
            text_features=features[row],
        )
        for row in range(len(adapted.probs))
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
