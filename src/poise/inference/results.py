"""What a classification returns."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from html import escape
from typing import Any

from poise.loading.sources import Failure

__all__ = ["Details", "Failure", "Result"]

_SHOWN = 10  # labels in a notebook


@dataclass(frozen=True)
class Details:
    """How an answer came about, for one image."""

    init_probabilities: dict[str, float]  # under the un-tuned prompt: plain zero-shot
    target_probabilities: dict[str, float]  # p_aug under the tuned prompt
    view_confidences: tuple[float, ...]  # of each view under the un-tuned prompt; view 0 is the plain image
    view_temperatures: tuple[float, ...]  # what the method divides each view's logits by; 1 without CATS
    selected_views: tuple[int, ...]  # most certain first
    losses: tuple[float, ...]  # one per step
    logits: dict[str, float]  # of the plain view under the tuned prompt
    scale: float  # from cosine to logit, the model's own
    bias: float


@dataclass(frozen=True)
class Result:
    """One image's answer.

    Probabilities are relative to the given labels and sum to 1: an image of something else still gets one of them.
    """

    label: str
    confidence: float
    probabilities: dict[str, float]  # of every label, most probable first
    entropy: float  # in nats; 0 is sure, log(number of labels) knows nothing
    margin: float  # between the two most probable labels
    method: str
    source: str  # the path, or <bytes>, <image>, <array>, <tensor>
    fallback: bool  # tuning gave something not finite, so the un-tuned prompt answered
    degenerate: bool  # a single label: its probability is 1 whatever the image shows
    notes: tuple[str, ...] = ()  # what reading the image had to do: first frame of many, alpha put on white, ...
    details: Details | None = None

    def top(self, k: int = 5) -> list[tuple[str, float]]:
        """The ``k`` most probable labels with their probabilities, best first."""
        return list(self.probabilities.items())[:k]

    def to_dict(self) -> dict[str, Any]:
        """Plain data, ready for JSON: a number that is not finite becomes None."""
        plain: dict[str, Any] = _finite(asdict(self))
        return plain

    def _repr_html_(self) -> str:
        """What a notebook shows: a bar for each of the most probable labels."""
        rows = "".join(
            f"<tr><td style='text-align:left'>{escape(label)}</td><td>{share:.3f}</td><td style='width:12em'>"
            f"<div style='background:#4c72b0;height:0.8em;width:{100 * share:.1f}%'></div></td></tr>"
            for label, share in self.top(_SHOWN)
        )
        more = len(self.probabilities) - _SHOWN
        rest = f"<tr><td colspan='3' style='text-align:left'>and {more} more</td></tr>" if more > 0 else ""
        return f"<table><caption>{escape(self.source)}, {escape(self.method)}</caption>{rows}{rest}</table>"


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _finite(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(entry) for entry in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
