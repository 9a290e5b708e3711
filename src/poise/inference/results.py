"""The results of a classification."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from html import escape
from typing import Any

from poise.loading.sources import Failure

__all__ = ["Details", "Failure", "Result"]

_SHOWN = 10  # labels shown in a notebook


@dataclass(frozen=True)
class Details:
    """Intermediate results for one image."""

    init_probabilities: dict[str, float]  # under the initial prompt: zero-shot
    target_probabilities: dict[str, float]  # p_aug under the tuned prompt
    view_confidences: tuple[float, ...]  # of each view under the initial prompt; view 0 is the plain image
    view_temperatures: tuple[float, ...]  # by which the method divides each view's logits; 1 without CATS
    selected_views: tuple[int, ...]  # most confident first
    losses: tuple[float, ...]  # one per step
    logits: dict[str, float]  # of the plain view under the tuned prompt
    scale: float  # the model's factor from cosine to logit
    bias: float


@dataclass(frozen=True)
class Result:
    """The answer for one image.

    Probabilities are relative to the labels and sum to 1: an image of something else still gets one of the labels.
    """

    label: str
    confidence: float
    probabilities: dict[str, float]  # of all labels, most probable first
    entropy: float  # in nats, from 0 (certain) to log(number of labels)
    margin: float  # difference between the two largest probabilities
    method: str
    source: str  # the path, or <bytes>, <image>, <array>, <tensor>
    fallback: bool  # tuning gave NaN or Inf, so this is the answer of the initial prompt
    degenerate: bool  # there is only one label, whose probability is 1 for any image
    notes: tuple[str, ...] = ()  # changes when the image was read: first frame used, alpha blended with white, ...
    details: Details | None = None

    def top(self, k: int = 5) -> list[tuple[str, float]]:
        """Return the ``k`` most probable labels with their probabilities, best first."""
        return list(self.probabilities.items())[:k]

    def to_dict(self) -> dict[str, Any]:
        """Return a dict for JSON, with None for numbers that are not finite."""
        values: dict[str, Any] = json.loads(json.dumps(asdict(self)), parse_constant=lambda name: None)
        return values

    def _repr_html_(self) -> str:
        """Return a table for notebooks with a bar for each of the most probable labels."""
        rows = "".join(
            f"<tr><td style='text-align:left'>{escape(label)}</td><td>{prob:.3f}</td><td style='width:12em'>"
            f"<div style='background:#4c72b0;height:0.8em;width:{100 * prob:.1f}%'></div></td></tr>"
            for label, prob in self.top(_SHOWN)
        )
        more = len(self.probabilities) - _SHOWN
        rest = f"<tr><td colspan='3' style='text-align:left'>and {more} more</td></tr>" if more > 0 else ""
        return f"<table><caption>{escape(self.source)}, {escape(self.method)}</caption>{rows}{rest}</table>"
