"""The results of a classification."""

from __future__ import annotations

import json
import math
from dataclasses import asdict, dataclass, field, replace
from html import escape
from typing import Any

import numpy as np

from poise.errors import InvalidOptionError
from poise.inference.answers import Answer, Prediction
from poise.inference.guarantees import CalibratedAnswer, Decision, Guarantees
from poise.inference.heuristics import UNKNOWN, agreement, match
from poise.loading.sources import Failure
from poise.types import DualEncoder

__all__ = ["Decision", "Details", "Failure", "Result", "make_result"]

_TINY = 1e-300  # probabilities of 0 are raised to this
_EMPTY = "no label is probable enough for the prediction set, so it contains the most probable one"
_ONE_LABEL = "there is one label only, so its probability is 1 for any image"
_SHOWN = 10  # labels shown in a notebook


@dataclass(frozen=True)
class Details:
    """Intermediate results for one image.

    Attributes:
        init_probabilities: probabilities under the initial prompt (zero-shot), by label.
        target_probabilities: p_aug, the target of the views, under the tuned prompt, by label.
        view_confidences: top probability of each view under the initial prompt; view 0 is the plain image.
        view_temperatures: temperature by which the method divides each view's logits; 1 without CATS.
        view_labels: the most probable label of each view under the tuned prompt.
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
    view_labels: tuple[str, ...]
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
        match: heuristic; how much better the image matches the best label than the labels on average, under the initial
            prompt and in units of the cosine: log(C * MCM) for C labels, where MCM is the maximum concept matching
            score. Low values suggest that the image shows something else. Comparable between images under the same
            labels and model.
        agreement: heuristic; share of the augmented views whose most probable label is that of the image, under the
            tuned prompt. None if there are no augmented views.
        rejected: the most probable label, if ``match`` is below ``reject``, so that ``label`` is "unknown"; otherwise
            None.
        notes: changes when the image was read (first frame used, alpha blended with white, ...), and remarks.
        details: intermediate results, if requested.
        raw_confidence: confidence before calibration; None if the classifier has no calibration.
        prediction_set: labels, most probable first, that contain the correct one for the share of images that
            `Classifier` was given as ``coverage``; otherwise None.
        decision: whether to answer, if `Classifier` was given ``max_error``; otherwise None.
        calibrated: what `set_at` needs.
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
    raw_confidence: float | None = None
    prediction_set: tuple[str, ...] | None = None
    decision: Decision | None = None
    calibrated: CalibratedAnswer | None = field(default=None, repr=False, compare=False)

    def top(self, k: int = 5) -> list[tuple[str, float]]:
        """Return the ``k`` most probable labels with their probabilities, best first."""
        return list(self.probabilities.items())[:k]

    def set_at(self, coverage: float, *, score: str = "lac", per_class: bool = False) -> tuple[str, ...]:
        """Return the prediction set: labels that contain the correct one for this share of images, most probable first.

        The guarantee holds on average over images like the calibration images. If no label is probable enough, the set
        contains the most probable one.

        Args:
            coverage: the share, such as 0.9.
            score: "lac" (the smallest sets on average), "aps" or "raps" (larger for images that are hard).
            per_class: whether the guarantee is to hold for each class that has enough calibration images.

        Raises:
            InvalidOptionError: The classifier has no calibration, or it has too few images for this coverage.
        """
        if self.calibrated is None:
            raise InvalidOptionError(
                "This result has no prediction sets, because the classifier has no calibration.",
                hint="Use Classifier(labels, calibration=...).",
            )
        return self.calibrated.set_at(coverage, score, per_class)[0]

    def to_dict(self) -> dict[str, Any]:
        """Return a dict for JSON, with None for numbers that are not finite."""
        plain = asdict(replace(self, calibrated=None))
        del plain["calibrated"]
        values: dict[str, Any] = json.loads(json.dumps(plain), parse_constant=lambda name: None)
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
        facts = [self.source, self.method]
        if self.rejected:
            facts.append(f"{self.label} (match {self.match:.3f})")
        if self.prediction_set is not None:
            facts.append("{" + ", ".join(self.prediction_set) + "}")
        if self.decision is not None:
            facts.append(self.decision.action)
        return f"<table><caption>{escape('; '.join(facts))}</caption>{rows}{rest}</table>"


def make_result(
    prediction: Prediction,
    method: str,
    labels: tuple[str, ...],
    encoder: DualEncoder,
    guarantees: Guarantees | None,
    reject: float | None,
    details: bool,
) -> Result:
    """Return one method's answer for one image, calibrated if there are guarantees."""
    answer = prediction.answers[method]
    probs = answer.probs
    added: dict[str, Any] = {"notes": prediction.notes + ((_ONE_LABEL,) if len(labels) == 1 else ())}
    if guarantees:
        probs, calibrated = guarantees.answer(method, answer.probs, prediction.key)
        added |= {
            "calibrated": calibrated,
            "raw_confidence": float(answer.probs.max()),
            "decision": guarantees.decision(method, answer.probs),
        }
        if guarantees.coverage is not None:
            added["prediction_set"], empty = calibrated.set_at(guarantees.coverage)
            added["notes"] += (_EMPTY,) if empty else ()
    ranked = dict(sorted(_by_label(labels, probs).items(), key=lambda item: -item[1]))
    best, top = next(iter(ranked)), list(ranked.values())
    # Under the initial prompt: rules and post-hoc steps have logits that are not cosines times the scale.
    matched = match(np.log(np.maximum(answer.init_probs, _TINY)), encoder.scale)
    rejected = reject is not None and matched < reject
    return Result(
        label=UNKNOWN if rejected else best,
        confidence=top[0],
        probabilities=ranked,
        entropy=0.0 - math.fsum(p * math.log(p) for p in top if p > 0),  # 0 instead of -0 if certain
        margin=top[0] - (top[1] if len(top) > 1 else 0.0),
        method=method,
        source=prediction.source,
        fallback=answer.fallback,
        degenerate=len(top) == 1,
        match=matched,
        agreement=agreement(answer.view_labels, int(answer.probs.argmax())),
        rejected=best if rejected else None,
        details=_details(answer, labels, encoder) if details else None,
        **added,
    )


def _details(answer: Answer, labels: tuple[str, ...], encoder: DualEncoder) -> Details:
    return Details(
        init_probabilities=_by_label(labels, answer.init_probs),
        target_probabilities=_by_label(labels, answer.target_probs),
        view_confidences=tuple(answer.confidences.tolist()),
        view_temperatures=tuple(answer.temperatures.tolist()),
        view_labels=tuple(labels[at] for at in answer.view_labels),
        selected_views=tuple(answer.selected.tolist()),
        losses=tuple(answer.losses.tolist()),
        logits=_by_label(labels, answer.logits),
        scale=encoder.scale,
        bias=encoder.bias,
    )


def _by_label(labels: tuple[str, ...], values: np.ndarray) -> dict[str, float]:
    return dict(zip(labels, values.tolist(), strict=True))
