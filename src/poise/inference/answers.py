"""A batch's answers as rows on the host: what everybody who reports answers starts from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from torch import Tensor

from poise.objectives.dispersion import mean_distance_to_centroid
from poise.types import Adapted


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
        start = dispersion(self.init_features)[0]
        columns = {name: _columns(answer, start, texts=texts) for name, answer in self.by_method.items()}
        images = [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
        return [row if all(np.isfinite(answer.probs).all() for answer in row.values()) else None for row in images]


def dispersion(text_features: Tensor) -> np.ndarray:
    """ATFD of unit text features [B, C, D] -> [B]: mean distance to their centroid, in float64."""
    return np.asarray(mean_distance_to_centroid(text_features.detach().double()).cpu().numpy())


def _columns(answer: Adapted, start: float, *, texts: bool) -> list[Answer]:
    """One method's answers for B images."""
    names = ("probs", "init_probs", "target_probs", "logits", "confidences", "temperatures", "losses")
    numbers = {name: getattr(answer, name).detach().double().cpu().numpy() for name in names}
    selected, fallback = answer.selected.cpu().numpy(), answer.fallback.cpu().numpy()
    spread = dispersion(answer.text_features)
    features = answer.text_features.detach().float().cpu().numpy() if texts else [None] * len(spread)
    return [
        Answer(
            **{name: column[row] for name, column in numbers.items()},
            selected=selected[row],
            fallback=bool(fallback[row]),
            dispersion=float(spread[row]),
            init_dispersion=float(start),
            text_features=features[row],
        )
        for row in range(len(spread))
    ]
