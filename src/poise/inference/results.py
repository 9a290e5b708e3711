"""What a classification returns."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from poise.loading.read import Failure

__all__ = ["Details", "Failure", "Result"]


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
    """One image's answer. Probabilities are over the given labels and sum to 1: they say nothing of other things."""

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

    def to_dict(self) -> dict[str, Any]:
        """Plain data, ready for JSON."""
        return asdict(self)
