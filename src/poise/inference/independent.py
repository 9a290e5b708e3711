"""Labels that apply independently: their answers, and how they are calibrated and evaluated."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from poise.calibration.independent import IndependentCalibration, LabelThresholds, truth_table
from poise.calibration.label_evaluation import LabelEvaluation
from poise.calibration.levels import failure
from poise.defaults import DEFAULT_METHOD
from poise.errors import InvalidCalibrationError, InvalidOptionError
from poise.inference.answers import of_image
from poise.inference.calibrating import Watched
from poise.inference.evaluating import check_unseen, none_left, sorted_out
from poise.inference.guarantees import conditions_of
from poise.inference.heuristics import match_of
from poise.results import Failure, Result
from poise.text import counted
from poise.types import Answer, DualEncoder

if TYPE_CHECKING:
    from poise.inference.classifier import Classifier

ZERO_SHOT = "zero-shot"
FEWEST = 2  # images of a calibration


def independent_method(method: Any) -> str:
    """Return the method of independent labels: zero-shot, also where the default of other labels was left."""
    given = [method] if isinstance(method, str) else [getattr(row, "name", row) for row in method]
    if given in ([ZERO_SHOT], [DEFAULT_METHOD]):
        return ZERO_SHOT
    raise InvalidOptionError(
        f"Independent labels can't be answered by {', '.join(map(str, given))[:200]}.",
        hint="Use zero-shot: nobody has shown that tuning, which sharpens one label against the others, helps here.",
    )


def check_independent(independent: bool, calibration: object, precision: float | None, recall: float | None) -> None:
    """Raise an error if these options of `Classifier` don't fit together."""
    if calibration is not None and isinstance(calibration, IndependentCalibration) != independent:
        kinds = ("labels of which one applies", "independent labels")
        raise InvalidCalibrationError(
            f"The calibration is of {kinds[not independent]}, and the classifier has {kinds[independent]}.",
            hint="Use `independent` in both, or in neither.",
        )
    if (precision is not None or recall is not None) and not (independent and calibration is not None):
        raise InvalidOptionError(
            "precision and recall need independent labels and their calibration.",
            hint="Make one with `poise calibrate --independent`, and give it as `calibration`.",
        )


class LabelGuarantees:
    """Applies a calibration of independent labels, or the model's own scale and bias.

    Args:
        classifier: with independent labels.
        calibration: of them; None: the model's own scale and bias.
        precision: of each label's yes; None: no label gets one.
        recall: of each label's no, likewise.
        others: what is promised about labels of which one applies, which is refused.
    """

    def __init__(
        self,
        classifier: Classifier[Any],
        calibration: IndependentCalibration | None,
        precision: float | None,
        recall: float | None,
        others: Mapping[str, float | None],
    ) -> None:
        if given := [name for name, level in others.items() if level is not None]:
            raise InvalidOptionError(
                f"{given[0]} is for labels of which one applies.",
                hint="For independent labels, give precision or recall: a set of yes and no would say nothing more.",
            )
        self.encoder, self.calibration = classifier.encoder, calibration
        self.precision, self.recall = precision, recall
        self.images: frozenset[str] = frozenset()
        self.thresholds: LabelThresholds | None = None
        self.guarantee: str | None = None
        if calibration is None:
            return
        now = conditions_of(classifier, like=calibration.conditions.fingerprint)
        calibration.conditions.check(now, reads_views=False)
        self.images = frozenset(calibration.images)
        if precision is not None or recall is not None:
            self.thresholds = calibration.thresholds(precision, recall)
            self.guarantee = in_words(precision, recall, calibration.confidence)

    def check(self) -> None:
        """Raise an error if the model has no probabilities of single labels, and no calibration gives them."""
        if self.calibration is None and own_start(self.encoder) is None:
            raise InvalidOptionError(
                f"{self.encoder.name} has no probabilities of single labels: it was trained to compare labels with "
                "each other, so its logits have no zero.",
                hint="Give a calibration (`poise calibrate --independent`), or use a model with a sigmoid (SigLIP).",
            )

    def probabilities(self, logits: np.ndarray) -> np.ndarray:
        """Return the probability of each label [C]."""
        if self.calibration is None:
            return np.asarray(1 / (1 + np.exp(-np.clip(logits, -500, 500))))
        return np.asarray(self.calibration.probabilities(logits[None])[0])

    def result(self, answer: Answer[np.ndarray], labels: tuple[str, ...]) -> Result:
        """Return the answer for one image."""
        probs = self.probabilities(answer.logits)
        order = np.argsort(-probs, kind="stable")
        outcomes: Any = None
        if self.thresholds is not None:
            said = self.thresholds.outcomes((answer.logits - self.encoder.bias) / self.encoder.scale)
            outcomes = {labels[at]: said[at] for at in order}
        top = probs[order]
        return Result(
            label=labels[order[0]],
            confidence=float(top[0]),
            probabilities={labels[at]: float(probs[at]) for at in order},
            entropy=math.fsum(-q * math.log(q) for p in probs for q in (p, 1 - p) if q > 0),
            margin=float(top[0] - (top[1] if len(top) > 1 else 0.0)),
            method=ZERO_SHOT,
            source=answer.source,
            fallback=bool(answer.fallback),
            degenerate=False,
            match=match_of(answer.init_probs, self.encoder.scale),
            notes=answer.notes,
            outcomes=outcomes,
            guarantee=self.guarantee,
        )


def in_words(precision: float | None, recall: float | None, confidence: float) -> str:
    """Return what the thresholds promise."""
    parts = []
    if precision is not None:
        parts.append(f"at least {100 * precision:.3g} % of each label's yes are right")
    if recall is not None:
        parts.append(f"at most {100 * (1 - recall):.3g} % of the images that have a label get a no for it")
    return (
        f"In the long run, for images drawn like the calibration images, {' and '.join(parts)}; a calibration that "
        f"says so fails for some label in at most {100 * (1 - confidence):.3g} % of draws."
    )


def own_start(encoder: DualEncoder) -> tuple[float, float] | None:
    """Return the (a, b) that a model was trained with; None for one that compares labels with each other."""
    return (1.0, 0.0) if encoder.activation == "sigmoid" else None


def _unwatched(outcomes: Iterator[Any], total: int) -> Iterator[Any]:
    return outcomes


def calibrate(
    classifier: Classifier[Any],
    images: Sequence[Any],
    labels: Sequence[Sequence[str]],
    *,
    confidence: float = 0.95,
    watched: Watched = _unwatched,
) -> IndependentCalibration:
    """Calibrate independent labels; see `Classifier.calibrate`."""
    delta = failure(confidence)
    table = truth_table(classifier.labels, labels)
    if len(table) != len(images):
        raise InvalidOptionError(
            f"{counted(len(images), 'image')} and {counted(len(table), 'list')} of labels were given.",
            hint="Give one list of labels per image; an empty one if none applies.",
        )
    found: dict[str, tuple[np.ndarray, np.ndarray]] = {}
    encoder = classifier.encoder
    for outcome, row in zip(watched(classifier.predictions(images), len(images)), table, strict=True):
        if isinstance(outcome, Failure):
            continue
        answer = of_image(outcome)
        cosines, before = found.get(answer.key, ((answer.logits - encoder.bias) / encoder.scale, row))
        found[answer.key] = cosines, before | row
    if len(found) < FEWEST:
        raise InvalidCalibrationError(
            f"{counted(len(found), 'image')} can be used, and at least {FEWEST} are needed.", hint="Label more images."
        )
    return IndependentCalibration(
        conditions=conditions_of(classifier),
        settings=classifier.methods[0].settings(),
        cosines=np.array([cosines for cosines, _ in found.values()]),
        truth=np.array([row for _, row in found.values()]),
        scale=float(encoder.scale),
        bias=float(encoder.bias),
        start=own_start(encoder),
        delta=delta,
        images=tuple(found),
    )


def evaluate(
    classifier: Classifier[Any],
    images: Sequence[Any],
    labels: Sequence[Sequence[str]],
    *,
    watched: Watched = _unwatched,
) -> LabelEvaluation:
    """Evaluate independent labels on images that were not calibrated on; see `Classifier.evaluate`."""
    table = truth_table(classifier.labels, labels)
    guarantees = classifier.label_guarantees
    assert guarantees is not None
    check_unseen(guarantees.images, images, classifier.read_recipe())
    rows: list[tuple[Result, np.ndarray]] = []
    failures: list[Failure] = []
    outcomes: Iterator[Any] = watched(classifier.each(images), len(images))
    for outcome, row in zip(outcomes, table, strict=True):
        if isinstance(outcome, Failure):
            failures.append(outcome)
        else:
            rows.append((outcome[ZERO_SHOT], row))
    left_out, unreadable = sorted_out(failures)
    if not rows:
        raise none_left(left_out, unreadable)
    asked = guarantees.thresholds is not None
    return LabelEvaluation(
        labels=classifier.labels,
        probs=np.array([[result.probabilities[label] for label in classifier.labels] for result, _ in rows]),
        truth=np.array([row for _, row in rows]),
        outcomes=np.array([[(result.outcomes or {})[label] for label in classifier.labels] for result, _ in rows])
        if asked
        else None,
        precision=guarantees.precision,
        recall=guarantees.recall,
        left_out=left_out,
        failures=unreadable,
    )
