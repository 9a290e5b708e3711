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
    """Intermediate results for one image.

    Attributes:
        init_probabilities: probabilities under the initial prompt (zero-shot), by label.
        target_probabilities: p_aug, the target of the views, under the tuned prompt, by label.
        view_confidences: top probability of each view under the initial prompt; view 0 is the plain image.
        view_temperatures: temperature by which the method divides each view's logits; 1 without CATS.
        selected_views: indices of the views in the target, most confident first.
        losses: the loss at each step.
        logits: logits of the plain view under the tuned prompt, by label.
        scale: the model's factor from cosine to logit.
        bias: the constant that the model adds to each logit.
    """

    init_probabilities: dict[str, float]
    target_probabilities: dict[str, float]
    view_confidences: tuple[float, ...]
    view_temperatures: tuple[float, ...]
    selected_views: tuple[int, ...]
    losses: tuple[float, ...]
    logits: dict[str, float]
    scale: float
    bias: float


@dataclass(frozen=True)
class Result:
    """The answer for one image.

    Probabilities are relative to the labels and sum to 1: an image of something else still gets one of the labels,
    unless `Classifier` was given ``reject``.

    Attributes:
        label: the most probable label; "unknown" if the image was rejected.
        confidence: probability of the most probable label.
        probabilities: probabilities of all labels, most probable first.
        entropy: entropy of the probabilities in nats, from 0 (certain) to log(number of labels).
        margin: difference between the two largest probabilities.
        method: the method's name.
        source: the path, or <bytes>, <image>, <array>, <tensor>.
        fallback: whether tuning gave NaN or Inf, so that this is the answer of the initial prompt.
        degenerate: whether there is only one label, whose probability is 1 for any image.
        match: heuristic; how much better the image matches the most probable label than the labels on average, in
            units of the cosine: log(C * MCM) for C labels, where MCM is the maximum concept matching score. Low values
            suggest that the image shows something else. Comparable between images under the same labels and model.
        agreement: heuristic; share of the augmented views whose most probable label is that of the image, under the
            tuned prompt. None if there are no augmented views.
        rejected: the most probable label, if ``match`` is below ``reject``, so that ``label`` is "unknown"; otherwise
            None.
        notes: changes when the image was read: first frame used, alpha blended with white, ...
        details: intermediate results, if requested.
    """

    label: str
    confidence: float
    probabilities: dict[str, float]
    entropy: float
    margin: float
    method: str
    source: str
    fallback: bool
    degenerate: bool
    match: float
    agreement: float | None = None
    rejected: str | None = None
    notes: tuple[str, ...] = ()
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
        unknown = f": {self.label} (match {self.match:.3f})" if self.rejected else ""
        caption = f"<caption>{escape(self.source)}, {escape(self.method)}{unknown}</caption>"
        return f"<table>{caption}{rows}{rest}</table>"
