"""What labelled images say about a classifier's answers, and its JSON file."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import ArrayLike

from poise.calibration import conformal, summary
from poise.calibration.applied import Applied, applied
from poise.calibration.calibrators import Calibrator, calibrator_from
from poise.calibration.certify import NEVER, Certificate, certify, certify_changing
from poise.calibration.conditions import Conditions
from poise.calibration.monitor import Monitor
from poise.calibration.tree import Tree
from poise.calibration.truth_monitor import TruthMonitor
from poise.errors import InvalidCalibrationError, InvalidLabelsError, UnknownNameError, reason_of
from poise.files import checksum, read_bounded, write_atomic
from poise.metrics import Bins, confidence_gap, equal_width, gap_p_value
from poise.metrics.bootstrap import Interval
from poise.metrics.sample import Bools, Floats, Ints
from poise.options import AnswerOptions, option_values
from poise.text import counted

T = TypeVar("T")
FORMAT = "poise-calibration/2"
INDEPENDENT = "poise-labels/1"  # the format of `poise.calibration.independent`
FIRST = "poise-calibration/1"  # no checksum, and LAC scores 1 - p
_LOOK = re.compile("[0-9a-f]{64}")  # what `poise.images.look` gives
_MAX_BYTES = 256 << 20  # of a file: 100,000 images and ten methods need less


@dataclass(frozen=True, eq=False)
class Further:
    """Answers for further labelled images, drawn among those above a cut-off (`plan.Plan`); for certificates only.

    Attributes:
        cutoff: the confidence that they exceed; those that don't, on another device by rounding, are not used.
        labels: correct classes [m].
        predicted: predicted classes [m].
        confidence: probability of the predicted class [m], before calibration.
    """

    cutoff: float
    labels: Ints
    predicted: Ints
    confidence: Floats

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        return {
            "cutoff": self.cutoff,
            **{name: getattr(self, name).tolist() for name in ("labels", "predicted", "confidence")},
        }

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Further:
        """Read what `to_dict` returned; every value is checked."""
        (cutoff,) = _floats([values["cutoff"]], 0.0, 1.0).tolist()
        labels, predicted = _classes(values)
        confidence = _floats(values["confidence"], 0.0, 1.0)
        if not len(labels) == len(predicted) == len(confidence):
            raise ValueError("its lists have different lengths")
        return cls(cutoff, labels, predicted, confidence)


@dataclass(frozen=True, kw_only=True, eq=False)
class MethodCalibration:
    """One method's answers for the n calibration images, and the calibrator fitted to them.

    Sets and thresholds use the method's own probabilities, not the calibrated ones: their guarantee then needs nothing
    but exchangeable images, whatever calibrator was fitted.

    Attributes:
        settings: the method's settings.
        labels: correct classes [n].
        predicted: predicted classes [n]; -1 for a wrong one that is not known (in files of the first format).
        confidence: probability of the predicted class [n], before calibration.
        match: of each image [n] with its best label (`Result.match`); None where only probabilities are known.
        scores: conformal scores [n] of the correct classes, by name of the score.
        calibrator: maps the method's probabilities to calibrated ones.
        unchanged: probability that the probabilities were calibrated as they are; None in files of the first format.
        intervals: the calibrator's parameters, with 95 % intervals.
        before: metrics of the method's probabilities, with 95 % confidence intervals.
        after: NLL and Brier score of calibrated probabilities, each image's by a calibrator that was fitted without it.
        seconds: time per image; None where only probabilities are known.
        delta: probability with which a certified threshold may fail.
        node_thresholds: with a tree, `Tree.thresholds` of the images, [n] each; None without.
        further: labelled images above a cut-off, for certificates; None where all images are a random sample.
    """

    settings: Mapping[str, Any]
    labels: Ints
    predicted: Ints
    confidence: Floats
    match: Floats | None
    scores: Mapping[str, Floats]
    calibrator: Calibrator
    unchanged: float | None
    intervals: Mapping[str, Interval]
    before: Mapping[str, Interval]
    after: Mapping[str, Interval]
    seconds: Interval | None
    delta: float
    node_thresholds: tuple[Floats, Floats] | None = None
    further: Further | None = None

    def __len__(self) -> int:
        """How many labelled images there are."""
        return len(self.labels) + (0 if self.further is None else len(self.further.labels))

    @property
    def correct(self) -> Bools:
        """Whether each prediction is correct [n]."""
        return np.asarray(self.predicted == self.labels)

    def sets(
        self, probs: Floats, coverage: float, u: Floats, *, score: str = "lac", per_class: bool = False
    ) -> conformal.PredictionSets:
        """Return the prediction sets of N images.

        Args:
            probs: the method's probabilities [N, C].
            coverage: share of images whose set contains the correct label, such as 0.9.
            u: a number in [0, 1] for each image [N], which APS and RAPS need to break ties at random.
            score: a row of `poise.calibration.conformal.scores`: "lac", "aps" or "raps".
            per_class: whether coverage holds for each class that has enough calibration images.
        """
        row, scores = conformal.scores.get(score), self.scores[score]
        quantile: float | Floats = conformal.quantile(scores, coverage)
        if per_class:
            quantile = conformal.class_quantiles(scores, self.labels, probs.shape[1], coverage).values
        return row.sets(probs, quantile, u)

    @property
    def gap(self) -> tuple[float, float]:
        """Mean confidence minus accuracy, before calibration, and its exact p-value (`poise.metrics.gap_p_value`)."""
        return confidence_gap(self.confidence, self.correct), gap_p_value(self.confidence, self.correct)

    def reliability(self, bins: int = 10) -> Bins:
        """Return how often answers are right by confidence, before calibration."""
        return equal_width(self.confidence, self.correct, bins)

    def certificate(self, max_error: float) -> Certificate:
        """Return the lowest confidence above which at most ``max_error`` of the answers are wrong."""
        if self.node_thresholds is not None:
            return certify_changing(*self.node_thresholds, max_error, delta=self.delta)
        return certify(*self.surest, max_error, delta=self.delta)

    @property
    def surest(self) -> tuple[Floats, Bools]:
        """Confidences of the images that thresholds are certified on, and whether the answers are correct.

        These are all images, or those above the cut-off if further ones were drawn there.
        """
        if (more := self.further) is None:
            return self.confidence, self.correct
        confidence = np.concatenate([self.confidence, more.confidence])
        correct = np.concatenate([self.correct, more.labels == more.predicted])
        return confidence[confidence > more.cutoff], correct[confidence > more.cutoff]

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        return {
            "settings": dict(self.settings),
            "calibrator": self.calibrator.to_dict(),
            "unchanged": self.unchanged,
            "intervals": _rows(self.intervals),
            "delta": self.delta,
            "before": _rows(self.before),
            "after": _rows(self.after),
            "seconds": None if self.seconds is None else list(self.seconds),
            **{name: getattr(self, name).tolist() for name in ("labels", "predicted", "confidence")},
            "match": None if self.match is None else self.match.tolist(),
            "scores": {name: values.tolist() for name, values in self.scores.items()},
            **({} if (nodes := self.node_thresholds) is None else {"nodes": [part.tolist() for part in nodes]}),
            **({} if self.further is None else {"further": self.further.to_dict()}),
        }

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> MethodCalibration:
        """Read what `to_dict` returned; every value is checked, also against the others."""
        labels, predicted = _classes(values)
        confidence = _floats(values["confidence"], 0.0, 1.0)
        match = None if values["match"] is None else _floats(values["match"], -math.inf, math.inf)
        scores = {name: _floats(values["scores"][name], -math.inf, math.inf) for name in conformal.scores}
        nodes = None
        if "nodes" in values:
            first, wrong = (_floats(part, NEVER, 1.0) for part in values["nodes"])
            nodes = first, wrong
        arrays = [predicted, confidence, *scores.values(), *([] if match is None else [match]), *(nodes or ())]
        if {len(array) for array in arrays} != {len(labels)}:
            raise ValueError("its lists have different lengths")
        if nodes is not None and (nodes[1] > nodes[0]).any():
            raise ValueError("nodes are wrong at thresholds at which nothing is answered")
        delta = float(values["delta"])
        if not 0 < delta < 1:
            raise ValueError(f"'delta' is {delta}, not between 0 and 1")
        _check_scores(labels == predicted, confidence, scores)
        return cls(
            settings=dict(values["settings"]),
            labels=labels,
            predicted=predicted,
            confidence=confidence,
            match=match,
            scores=scores,
            calibrator=calibrator_from(values["calibrator"]),
            unchanged=None if values["unchanged"] is None else float(values["unchanged"]),
            delta=delta,
            intervals=_intervals(values["intervals"]),
            before=_intervals(values["before"]),
            after=_intervals(values["after"]),
            seconds=None if values["seconds"] is None else Interval(*map(float, values["seconds"])),
            node_thresholds=nodes,
            further=Further.from_dict(values["further"]) if "further" in values else None,
        )


@dataclass(frozen=True, kw_only=True, eq=False)
class Calibration:
    """A classifier's answers for labelled images, and what they allow to promise for other images like them.

    `Classifier.calibrate` and `poise calibrate` make it, and `Classifier(labels, calibration=...)` uses it.
    `calibrate_probabilities` makes one without a model, and `apply` uses it.

    Attributes:
        conditions: the model, labels and views that it is valid for.
        methods: by name of the method.
        recommended: the cheapest method that is not significantly worse than the best.
        reason: why, in one sentence.
        images: hashes of the images' pixels. These images are no test images.
        looks: hashes by which copies of them in another size or encoding are noticed (`poise.images.look`); none where
            there were no pixels, and in older files.
    """

    conditions: Conditions
    methods: Mapping[str, MethodCalibration]
    recommended: str
    reason: str
    images: frozenset[str]
    looks: frozenset[str] = frozenset()

    @property
    def confidence(self) -> float:
        """Probability with which the certified thresholds of all methods hold."""
        return 1 - sum(part.delta for part in self.methods.values())

    @cached_property
    def tree(self) -> Tree | None:
        """The tree of the labels; None without."""
        return Tree(self.conditions.labels, self.conditions.parents) if self.conditions.parents else None

    @property
    def random(self) -> int:
        """How many of the images are a random sample; the others are above a cut-off, for certificates only."""
        return len(self.methods[self.recommended].labels)

    def __len__(self) -> int:
        return len(self.images)

    def __repr__(self) -> str:
        names = ", ".join(self.methods)
        labels = counted(len(self.conditions.labels), "label")
        return f"Calibration({counted(len(self), 'image')}, {labels}, methods {names})"

    def summary(self) -> str:
        """Return the labels with their numbers of images, the methods with their metrics, and the recommendation."""
        return summary.summary(self)

    def _repr_html_(self) -> str:
        """Return the summary with a reliability diagram of each method, for notebooks."""
        return summary.html(self)

    def method(self, name: str, settings: Mapping[str, Any]) -> MethodCalibration:
        """Return the part for one method.

        Args:
            name: of the method.
            settings: of the method now (`poise.methods.Method.settings`).

        Raises:
            InvalidCalibrationError: The method was not calibrated, or with other settings.
        """
        part, now = self._part(name), plain(settings)
        for key in sorted(part.settings.keys() | now.keys()):
            if part.settings.get(key) != now.get(key):
                raise InvalidCalibrationError(
                    f"The calibration was made with {name}'s {key} {part.settings.get(key)!r}, and this classifier has "
                    f"{now.get(key)!r}.",
                    hint="Use the same settings, or run `poise calibrate` again.",
                )
        return part

    def monitor(self, alpha: float = 0.01, *, method: str | None = None, seed: int = 0) -> Monitor:
        """Return a test, without labels, of whether later images are still like the calibration images.

        Args:
            alpha: probability of a false alarm, however many images follow.
            method: whose answers it is shown; None for the recommended one.
            seed: of the random numbers that break ties.
        """
        name = self.recommended if method is None else method
        if name not in self.methods:
            raise UnknownNameError.of("method", name, self.methods, owner="the calibration")
        return Monitor(self.methods[name].confidence, self.methods[name].match, alpha=alpha, seed=seed)

    def truth_monitor(
        self,
        alpha: float = 0.01,
        *,
        coverage: float | None = None,
        max_error: float | None = None,
        method: str | None = None,
        seed: int = 0,
    ) -> TruthMonitor:
        """Return a test of later images whose labels are known: answers, coverage of sets, and certified errors.

        Args:
            alpha: probability of a false alarm, however many images follow.
            coverage: of the prediction sets; None: sets are not tested.
            max_error: certified share of wrong answers; None: it is not tested.
            method: whose answers it is shown; None for the recommended one.
            seed: of the random numbers that break ties.
        """
        name = self.recommended if method is None else method
        return TruthMonitor(name, self._part(name), coverage=coverage, max_error=max_error, alpha=alpha, seed=seed)

    def apply(
        self,
        probs: ArrayLike,
        *,
        coverage: float | None = None,
        max_error: float | None = None,
        method: str | None = None,
    ) -> Applied:
        """Apply the calibration to probabilities of other images that were made in the same way.

        Args:
            probs: probabilities [N, C] before calibration.
            coverage: share of images whose prediction set is to contain the correct label, such as 0.9; None: no sets.
            max_error: certified share of wrong answers among those given; None: no decisions.
            method: a method of the calibration; None for the recommended one.

        Raises:
            InvalidOptionError: These are no probabilities of the calibration's labels.
            InvalidCalibrationError: There are too few calibration images, or the error can't be certified.
        """
        name = self.recommended if method is None else method
        part = self._part(name)
        return applied(name, part, probs, len(self.conditions.labels), coverage, max_error, self.tree)

    def _part(self, name: str) -> MethodCalibration:
        if name not in self.methods:
            raise InvalidCalibrationError(
                f"The calibration has no method '{name}'.", hint=f"It has: {', '.join(self.methods)}."
            )
        return self.methods[name]

    def options(self) -> dict[str, Any]:
        """Return the options of `poise.Classifier` of the calibration, with the recommended method."""
        self.conditions.check_model()
        return {**option_values(self.conditions, AnswerOptions), "method": [self.recommended]}

    def save(self, path: str | Path) -> None:
        """Write the calibration as JSON."""
        write_atomic(path, (json.dumps(self.to_dict(), ensure_ascii=False, allow_nan=False) + "\n").encode())

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        values = {
            "format": FORMAT,
            "conditions": plain(asdict(self.conditions)),
            "recommended": self.recommended,
            "reason": self.reason,
            "images": sorted(self.images),
            **({"looks": sorted(self.looks)} if self.looks else {}),
            "methods": {name: part.to_dict() for name, part in self.methods.items()},
        }
        return {**values, "checksum": content_hash(values)}

    @classmethod
    def load(cls, path: str | Path) -> Calibration:
        """Read a file that `save` wrote.

        Raises:
            InvalidCalibrationError: The file can't be read, or is not a calibration.
        """
        return read_file(path, cls.from_dict)

    @classmethod
    def from_dict(cls, values: Any) -> Calibration:
        """Read what `to_dict` returned; every value is checked, and one that is not valid raises a plain error."""
        if values["format"] == FIRST:
            values = {**values, "methods": {name: _second(part) for name, part in values["methods"].items()}}
        elif values["format"] == INDEPENDENT:
            raise ValueError("it is of independent labels, and one of labels of which one applies is needed")
        elif values["format"] != FORMAT:
            raise ValueError(f"its format is {values['format']!r}, and this version of poise reads '{FORMAT}'")
        else:
            check_content(values)
        methods = {str(name): MethodCalibration.from_dict(part) for name, part in values["methods"].items()}
        conditions = Conditions.from_dict(values["conditions"])
        if values["recommended"] not in methods:
            raise ValueError(f"the recommended method {values['recommended']!r} is not in it")
        for part in methods.values():
            for answers in (part, part.further):
                if answers is not None and not _known(answers.labels, answers.predicted, len(conditions.labels)):
                    raise ValueError("it has more classes than labels")
        try:
            tree = Tree(conditions.labels, conditions.parents) if conditions.parents else None
        except InvalidLabelsError as problem:
            raise ValueError(problem.message) from None
        if any((part.node_thresholds is None) != (tree is None) for part in methods.values()):
            raise ValueError("it has a tree, or answers of its nodes, but not both")
        images = frozenset(str(key) for key in values["images"])
        if {len(part) for part in methods.values()} != {len(images)}:
            raise ValueError("it does not have one answer per image")
        looks = frozenset(values.get("looks", ()))
        if not all(isinstance(look, str) and _LOOK.fullmatch(look) for look in looks) or len(looks) > len(images):
            raise ValueError("'looks' are not hashes of its images")
        return cls(
            conditions=conditions,
            methods=methods,
            recommended=values["recommended"],
            reason=str(values["reason"]),
            images=images,
            looks=looks,
        )


def read_file(path: str | Path, parse: Callable[[Any], T]) -> T:
    """Return what ``parse`` makes of a file of JSON, or raise an error that says what is wrong with it."""
    try:
        return parse(json.loads(read_bounded(path, _MAX_BYTES)))
    except KeyError as problem:
        raise _unreadable(path, f"{problem} is missing") from None
    except (OSError, ArithmeticError, ValueError, TypeError, AttributeError, RecursionError) as problem:
        raise _unreadable(path, reason_of(problem)) from None


def plain(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings as JSON would return them, so that stored and new ones compare equal."""
    return dict(json.loads(json.dumps(dict(settings))))


def _second(part: Mapping[str, Any]) -> dict[str, Any]:
    """Return a method of a file of the first format in the second: LAC scores were 1 - p."""
    correct, labels = np.asarray(part["correct"]), np.asarray(part["labels"])
    if correct.dtype != bool or correct.shape != labels.shape:
        raise ValueError("'correct' must be true or false for each image")
    probs = np.maximum(1 - _floats(part["scores"]["lac"], 0.0, 1.0), conformal.LOWEST)
    return {
        **part,
        "predicted": np.where(correct, labels, -1).tolist(),
        "match": None,
        "unchanged": None,
        "after": {name: part["after"][name] for name in ("nll", "brier")},
        "scores": {**part["scores"], "lac": (-np.log(probs)).tolist()},
    }


def _check_scores(correct: Bools, confidence: Floats, scores: Mapping[str, Floats]) -> None:
    """Raise an error if scores contradict the confidences: they are of the same probabilities."""
    label = np.exp(-scores["lac"])  # probability of the correct class
    aps, near = scores["aps"], 1e-4  # probabilities in half precision are rounded, and sum to 1 up to 5e-3
    fits = np.where(
        correct,
        (np.abs(label - confidence) <= near) & (aps >= -near) & (aps <= confidence + near),
        (label <= np.minimum(confidence, 1 - confidence + 5e-3) + near) & (aps >= confidence - near),
    )
    if not (fits & (aps <= 1 + 5e-3 + near) & (scores["raps"] >= aps - near)).all():
        raise ValueError("its scores contradict its confidences")


def check_content(values: Mapping[str, Any]) -> None:
    """Raise an error if the content of a file is not that of its checksum."""
    if values["checksum"] != content_hash({key: part for key, part in values.items() if key != "checksum"}):
        raise ValueError("its checksum is another one, so it was changed after it was written")


def content_hash(values: Mapping[str, Any]) -> str:
    """Return a hash of the content; against mistakes, not against somebody who computes it again."""
    return checksum(json.dumps(values, sort_keys=True, ensure_ascii=False, allow_nan=False).encode())


def _unreadable(path: str | Path, problem: str) -> InvalidCalibrationError:
    return InvalidCalibrationError(
        f"'{path}' is not a calibration that can be used: {problem[:200].rstrip('.')}.",
        hint="Give the file that `poise calibrate --out` or `Calibration.save` wrote.",
    )


def _classes(values: Mapping[str, Any]) -> tuple[Ints, Ints]:
    """Return the correct and the predicted classes."""
    labels, predicted = (np.asarray(values[name]) for name in ("labels", "predicted"))
    if any(array.dtype.kind != "i" or array.ndim != 1 or not len(array) for array in (labels, predicted)):
        raise ValueError("'labels' and 'predicted' must be whole numbers")
    return labels.astype(np.int64), predicted.astype(np.int64)


def _known(labels: Ints, predicted: Ints, classes: int) -> bool:
    return bool(labels.min() >= 0 and max(labels.max(), predicted.max()) < classes)


def _floats(values: Any, low: float, high: float) -> Floats:
    array = np.asarray(values, dtype=np.float64)
    if array.ndim != 1 or not np.isfinite(array).all() or (array < low).any() or (array > high).any():
        raise ValueError("it has numbers that are not valid")
    return array


def _rows(intervals: Mapping[str, Interval]) -> dict[str, list[float]]:
    return {name: list(interval) for name, interval in intervals.items()}


def _intervals(values: Mapping[str, Any]) -> dict[str, Interval]:
    return {str(name): Interval(*map(float, numbers)) for name, numbers in values.items()}
