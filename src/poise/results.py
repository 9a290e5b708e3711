"""The answer for one image, as Python, the server, its client, `poise classify` and the demo page share it.

This module imports neither torch nor fastapi, so that a client can use it. The comments below the fields are also the
descriptions in the schema of the HTTP server, which is made from these classes.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass, replace
from html import escape
from typing import Any, ClassVar, Literal, Protocol, runtime_checkable

from poise.errors import CalibrationImageError, InvalidOptionError, PoiseError, UnreadableImageError
from poise.text import first_few

_OWN_THRESHOLD = "Nothing is guaranteed: the threshold is your own."
_SHOWN = 10  # labels shown in a notebook
_SCHEMA: dict[str, Any] = {  # read by pydantic, where the server describes its answers
    "use_attribute_docstrings": True,
    "json_schema_serialization_defaults_required": True,
    "arbitrary_types_allowed": True,
}


@dataclass(frozen=True)
class Details:
    """Intermediate results for one image."""

    __pydantic_config__: ClassVar[dict[str, Any]] = _SCHEMA

    init_probabilities: dict[str, float]
    """Probabilities under the initial prompt (zero-shot), by label."""
    target_probabilities: dict[str, float]
    """p_aug, the target of the views, under the tuned prompt, by label."""
    view_confidences: tuple[float, ...]
    """Top probability of each view under the initial prompt; view 0 is the plain image."""
    view_temperatures: tuple[float, ...]
    """Temperature by which the method divides each view's logits; 1 without CATS."""
    view_labels: tuple[str, ...]
    """The most probable label of each view under the tuned prompt."""
    selected_views: tuple[int, ...]
    """Indices of the views in the target, most confident first."""
    losses: tuple[float, ...] = field(metadata={"json_schema_extra": {"items": {"type": ["number", "null"]}}})
    """The loss at each step; in JSON null if it is not finite."""
    logits: dict[str, float]
    """Logits of the plain view under the tuned prompt, by label."""
    scale: float
    """The model's factor from cosine to logit."""
    bias: float
    """The constant that the model adds to each logit."""


@runtime_checkable
class PredictionSets(Protocol):
    """Makes the prediction sets of one image, from its probabilities and a calibration."""

    def set_at(self, coverage: float, score: str, per_class: bool) -> tuple[tuple[str, ...], bool]:
        """Return the labels of the set, most probable first, and whether it would be empty otherwise."""


@dataclass(frozen=True)
class Result:
    """The answer for one image.

    Probabilities are relative to the labels and sum to 1 (with groups, in each group): an out-of-distribution image
    still gets one of the labels, unless `Classifier` was given ``reject``. Independent labels have a probability each.
    """

    __pydantic_config__: ClassVar[dict[str, Any]] = _SCHEMA

    label: str
    """The most probable label; "unknown" if the image was rejected."""
    confidence: float
    """Probability of the most probable label."""
    probabilities: dict[str, float]
    """Probabilities of all labels, most probable first."""
    entropy: float
    """Entropy of the probabilities in nats, from 0 (certain) to log(number of labels)."""
    margin: float
    """Difference between the two largest probabilities."""
    method: str
    """The method's name."""
    source: str
    """The path, or <bytes>, <image>, <array>, <tensor>."""
    fallback: bool
    """Whether tuning gave NaN or Inf, so that this is the answer of the initial prompt."""
    degenerate: bool
    """Whether there is only one label, whose probability is 1 for any image."""
    match: float
    """Heuristic: how much better the image matches the best label than the labels on average, under the initial prompt
    and in units of the cosine: log(C * MCM) for C labels, where MCM is the maximum concept matching score. Low values
    suggest that the image shows none of the labels. Comparable between images under the same labels and model."""
    rejected: str | None = None
    """The most probable label, if ``match`` is below ``reject``, so that ``label`` is "unknown"; otherwise None."""
    notes: tuple[str, ...] = ()
    """Changes when the image was read (first frame used, alpha blended with white, ...), and remarks."""
    details: Details | None = None
    """Intermediate results, if requested."""
    raw_confidence: float | None = None
    """Confidence before calibration; None if the classifier has no calibration."""
    prediction_set: tuple[str, ...] | None = None
    """Labels, most probable first, that contain the correct one for the share of images that was asked for as
    ``coverage``; otherwise None."""
    groups: dict[str, Result] | None = None
    """The answer of each group of labels; None without groups. ``label`` then has the label of each group, and
    ``confidence`` is the product of theirs: the probability that all are right, if groups are independent."""
    nodes: dict[str, float] | None = None
    """Probabilities of the tree's inner nodes, most probable first; None without a tree."""
    path: tuple[str, ...] | None = None
    """From below the root to a label, always to the most probable child; None without a tree."""
    node: str | None = None
    """The last node of the path that reaches the threshold: the answer, if there is a tree and a decision to answer."""
    depth: int | None = None
    """How many nodes of the path the answer has; 0 if none is answered, None without a tree or decision."""
    outcomes: dict[str, Literal["yes", "no", "unsure"]] | None = None
    """Whether each label applies, if labels are independent and ``precision`` or ``recall`` was given; else None."""
    decision: Literal["answer", "abstain"] | None = None
    """"answer" or "abstain", if ``max_error`` was given; otherwise None."""
    threshold: float | None = None
    """The lowest confidence, before calibration, that is answered; None without a decision."""
    guarantee: str | None = None
    """What holds for the answers, in words; None without a decision."""
    calibrated: PredictionSets | None = field(default=None, repr=False, compare=False, metadata={"exclude": True})
    """What `set_at` needs; not part of JSON."""

    @property
    def yes(self) -> tuple[str, ...] | None:
        """Independent labels that apply, most probable first; None without ``outcomes``."""
        return self._said("yes")

    @property
    def unsure(self) -> tuple[str, ...] | None:
        """Independent labels that may apply or not, most probable first; None without ``outcomes``."""
        return self._said("unsure")

    def _said(self, word: str) -> tuple[str, ...] | None:
        return None if self.outcomes is None else tuple(label for label, said in self.outcomes.items() if said == word)

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

    def decided_at(self, threshold: float) -> Result:
        """Return it with the decision of a threshold of one's own: to answer from this confidence on.

        With a tree, the answer is the deepest node of the path that reaches the threshold.
        """
        answered, added = self.confidence >= threshold, dict[str, Any]()
        if self.path is not None:
            known = {**self.probabilities, **(self.nodes or {})}
            reached = [node for node in self.path if known[node] >= threshold]
            answered, added = bool(reached), {"node": reached[-1] if reached else None, "depth": len(reached)}
        decision: Literal["answer", "abstain"] = "answer" if answered and self.rejected is None else "abstain"
        return replace(self, decision=decision, threshold=threshold, guarantee=_OWN_THRESHOLD, **added)

    def to_dict(self) -> dict[str, Any]:
        """Return a dict for JSON, with None for numbers that are not finite."""
        plain: dict[str, Any] = _plain(self)
        return plain

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Result:
        """Read what `to_dict` returned, or a server sent; fields that a newer version adds are left out."""
        found = _known(cls, values)
        if found.get("details") is not None:
            found["details"] = Details(**_known(Details, found["details"]))
        if found.get("groups") is not None:
            found["groups"] = {name: cls.from_dict(part) for name, part in found["groups"].items()}
        return cls(**found)

    def __str__(self) -> str:
        """Return one line: source, label, confidence and method, and what was decided."""
        label = self.rejected or self.label
        return f"{self.source}: {label} {self.confidence:.3f} ({'; '.join(self._facts())})"

    def _facts(self) -> list[str]:
        """Return how the answer was made and what was decided, for people."""
        facts = [self.method]
        if self.raw_confidence is not None:
            facts.append("calibrated")
        if self.rejected:
            facts.append(f"{self.label} (match {self.match:.3f})")
        if self.prediction_set is not None:
            facts.append("{" + first_few(self.prediction_set) + "}")
        if self.yes is not None:
            facts.append(f"yes: {first_few(self.yes) or 'none'}")
        if self.decision is not None:
            facts.append(self.decision if self.node is None else f"{self.decision}: {self.node}")
        return facts

    def _repr_html_(self) -> str:
        """Return a table for notebooks with a bar for each of the most probable labels."""
        rows = "".join(
            f"<tr><td style='text-align:left'>{escape(label)}</td><td>{prob:.3f}</td><td style='width:12em'>"
            f"<div style='background:#4c72b0;height:0.8em;width:{100 * prob:.1f}%'></div></td></tr>"
            for label, prob in self.top(_SHOWN)
        )
        more = len(self.probabilities) - _SHOWN
        rest = f"<tr><td colspan='3' style='text-align:left'>and {more} more</td></tr>" if more > 0 else ""
        caption = "; ".join([self.source, *self._facts()])
        return f"<table><caption>{escape(caption)}</caption>{rows}{rest}</table>"


Results = dict[str, Result]  # of one image, by method


@dataclass(frozen=True)
class Failure:
    """An image without an answer, and the reason."""

    source: str
    """The path, the dataset's id, or ``<bytes>``, ``<image>``, ``<array>``, ``<tensor>``."""
    code: str
    """A stable error code, such as "unreadable_image" or "non_finite"."""
    message: str
    """The problem and how to solve it."""

    def error(self) -> PoiseError:
        """Return the exception that this failure is where an image must have an answer."""
        kinds: dict[str, type[PoiseError]] = {kind.code: kind for kind in (UnreadableImageError, CalibrationImageError)}
        return kinds.get(self.code, PoiseError)(self.message, code=self.code)


COLUMNS = (  # of CSV files and data frames, before the error and the probabilities
    *("source", "method", "label", "confidence", "margin", "entropy", "match", "raw_confidence", "rejected"),
    *("fallback", "prediction_set", "node", "depth", "decision", "threshold", "yes", "unsure"),
)


def flat_rows(outcome: Results | Failure, labels: Sequence[str], top_k: int | None = None) -> list[dict[str, Any]]:
    """Return one row per method of an image, all with the same keys: `COLUMNS`, the error, and the probabilities.

    Names are those of JSON, with a dot where JSON has an object: ``error.code`` and ``error.message``.

    Args:
        outcome: the answers for one image, or the reason why there are none.
        labels: of the classifier; each has a column ``p(LABEL)``.
        top_k: columns ``label 1``, ``p 1``, ... of the most probable labels instead; None for all labels.
    """
    if isinstance(outcome, Failure):
        error = {"source": outcome.source, "error.code": outcome.code, "error.message": outcome.message}
        return [{**_flat(None, labels, top_k), **error}]
    return [_flat(result, labels, top_k) for result in outcome.values()]


def _flat(result: Result | None, labels: Sequence[str], top_k: int | None) -> dict[str, Any]:
    row = {name: getattr(result, name, None) for name in (*COLUMNS, "error.code", "error.message")}
    if top_k is None:
        return row | {f"p({label})": result and result.probabilities[label] for label in labels}
    best = result.top(top_k) if result else [(None, None)] * min(top_k, len(labels))
    for at, (label, prob) in enumerate(best, 1):
        row |= {f"label {at}": label, f"p {at}": prob}
    return row


def _plain(value: Any) -> Any:
    """Return a value as JSON has it: dataclasses as dicts without what is internal, and numbers that are finite."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, tuple):
        return [_plain(item) for item in value]
    if is_dataclass(value):
        return {row.name: _plain(getattr(value, row.name)) for row in fields(value) if not row.metadata.get("exclude")}
    return value


def _known(kind: type[Any], values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values of a class's fields; the lists of JSON become tuples, and null in them a number."""
    names = (row.name for row in fields(kind) if row.name in values and not row.metadata.get("exclude"))
    return {name: _read(values[name]) for name in names}


def _read(value: Any) -> Any:
    return tuple(math.nan if item is None else item for item in value) if isinstance(value, list) else value
