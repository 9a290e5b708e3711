"""A batch's answers as rows on the host: what everybody who reports answers starts from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from poise.objectives.dispersion import mean_distance_to_centroid
from poise.types import Adapted

_NUMBERS = (
    "probs", "init_probs", "target_probs", "logits", "confidences", "temperatures", "losses", "selected", "fallback",
)  # fmt: skip


@dataclass(frozen=True)
class Answer:
    """One method's answer for one image, in NumPy; probabilities and logits in float64."""

    probs: np.ndarray  # [C] under the tuned prompt: the prediction
    init_probs: np.ndarray  # [C] under the initial prompt
    target_probs: np.ndarray  # [C] p_aug under the tuned prompt
    logits: np.ndarray  # [C] of the plain view under the tuned prompt
    confidences: np.ndarray  # [V] of each view under the initial prompt
    temperatures: np.ndarray  # [V] that each view's logits are divided by in the target
    selected: np.ndarray  # [K] the views that entered the target
    losses: np.ndarray  # [steps]
    fallback: bool  # tuning was not finite, so the initial prompt answered
    dispersion: float  # of the tuned text features: their mean distance to the centroid (ATFD)
    init_dispersion: float  # of the initial ones
    text_features: np.ndarray | None = None  # [C, D] under the tuned prompt, where asked for


@dataclass(frozen=True)
class Prediction:
    """One image and every method's answer for it."""

    source: str
    notes: tuple[str, ...]  # what reading the image had to do beyond decoding
    answers: Mapping[str, Answer]


@dataclass(frozen=True)
class BatchAnswers:
    """What a tuner says about a batch, still on its device."""

    by_method: Mapping[str, Adapted]
    init_features: Tensor  # [1, C, D]: the class texts under the initial prompt

    def rows(self, *, texts: bool = False) -> list[dict[str, Answer] | None]:
        """Per image its answers by method; None where the model's own output is not finite.

        Tuning that is not finite falls back to the initial prompt, so what is left then is not finite without tuning.
        """
        start = float(dispersion(self.init_features)[0])
        columns = {name: _columns(answer, start, texts=texts) for name, answer in self.by_method.items()}
        images = [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
        return [row if all(np.isfinite(answer.probs).all() for answer in row.values()) else None for row in images]


def dispersion(text_features: Tensor) -> Tensor:
    """ATFD of unit text features [B, C, D] -> [B]: mean distance to their centroid, in float64."""
    return mean_distance_to_centroid(text_features.detach().double())


def _columns(answer: Adapted, start: float, *, texts: bool) -> list[Answer]:
    """One method's answers for B images."""
    tensors = {name: getattr(answer, name) for name in _NUMBERS}
    numbers = _on_host({**tensors, "spread": dispersion(answer.text_features)})
    features = answer.text_features.detach().float().cpu().numpy() if texts else [None] * len(answer.probs)
    return [
        Answer(
            **{name: numbers[name][row] for name in _NUMBERS if name not in ("selected", "fallback")},
            selected=numbers["selected"][row].astype(np.int64),
            fallback=bool(numbers["fallback"][row, 0]),
            dispersion=float(numbers["spread"][row, 0]),
            init_dispersion=start,
            text_features=features[row],
        )
        for row in range(len(answer.probs))
    ]


def _on_host(tensors: Mapping[str, Tensor]) -> dict[str, np.ndarray]:
    """Each tensor [B, ...] as float64 [B, n]; in one copy, as each one waits for the device."""
    flat = [tensor.detach().double().reshape(len(tensor), -1) for tensor in tensors.values()]
    ends = np.cumsum([part.shape[1] for part in flat])
    whole = torch.cat(flat, dim=1).cpu().numpy()
    return dict(zip(tensors, np.split(whole, ends[:-1], axis=1), strict=True))
