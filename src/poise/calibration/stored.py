"""What labelled images say about a classifier's answers, and its JSON file."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from poise.calibration import conformal, summary
from poise.calibration.calibrators import Calibrator, calibrator_from
from poise.calibration.certify import Certificate, certify
from poise.calibration.conditions import Conditions
from poise.errors import InvalidCalibrationError, reason_of
from poise.files import read_bounded, write_atomic
from poise.metrics import Bins, equal_width
from poise.metrics.bootstrap import Interval
from poise.metrics.sample import Bools, Floats, Ints
from poise.options import AnswerOptions, option_values
from poise.text import counted

FORMAT = "poise-calibration/1"
_MAX_BYTES = 256 << 20  # of a file: 100,000 images and ten methods need less


@dataclass(frozen=True, kw_only=True, eq=False)
class MethodCalibration:
    """One method's answers for the n calibration images, and the calibrator fitted to them.

    Sets and thresholds use the method's own probabilities, not the calibrated ones: their guarantee then needs nothing
    but exchangeable images, whatever calibrator was fitted.

    Attributes:
        settings: the method's settings.
        labels: correct classes [n].
        confidence: probability of the predicted class [n], before calibration.
        held_out: the same after calibration [n]; each image's calibrator was fitted without it.
        correct: whether the prediction is correct [n].
        scores: conformal scores [n] of the correct classes, by name of the score.
        calibrator: maps the method's probabilities to calibrated ones.
        intervals: each parameter of the calibrator with its 95 % confidence interval.
        reason: why this calibrator was chosen.
        before: metrics of the method's probabilities, with 95 % confidence intervals.
        after: the same for calibrated probabilities, each image's by a calibrator that was fitted without it.
        seconds: time per image.
        delta: probability with which a certified threshold may fail.
    """

    settings: Mapping[str, Any]
    labels: Ints
    confidence: Floats
    held_out: Floats
    correct: Bools
    scores: Mapping[str, Floats]
    calibrator: Calibrator
    intervals: Mapping[str, Interval]
    reason: str
    before: Mapping[str, Interval]
    after: Mapping[str, Interval]
    seconds: Interval
    delta: float

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

    def reliability(self, bins: int = 10) -> tuple[Bins, Bins]:
        """Return how often answers are right by confidence, before and after calibration."""
        return equal_width(self.confidence, self.correct, bins), equal_width(self.held_out, self.correct, bins)

    def certificate(self, max_error: float) -> Certificate:
        """Return the lowest confidence above which at most ``max_error`` of the answers are wrong."""
        return certify(self.confidence, self.correct, max_error, delta=self.delta)

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        arrays = {name: getattr(self, name).tolist() for name in ("labels", "confidence", "held_out", "correct")}
        return {
            "settings": dict(self.settings),
            "calibrator": self.calibrator.to_dict(),
            "reason": self.reason,
            "intervals": _rows(self.intervals),
            "delta": self.delta,
            "before": _rows(self.before),
            "after": _rows(self.after),
            "seconds": list(self.seconds),
            **arrays,
            "scores": {name: values.tolist() for name, values in self.scores.items()},
        }

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> MethodCalibration:
        """Read what `to_dict` returned; every value is checked."""
        labels = np.asarray(values["labels"])
        confidence, held_out = (_floats(values[name], 0.0, 1.0) for name in ("confidence", "held_out"))
        correct = np.asarray(values["correct"])
        scores = {name: _floats(values["scores"][name], -math.inf, math.inf) for name in conformal.scores}
        if labels.dtype.kind != "i" or labels.ndim != 1 or not len(labels) or correct.dtype != bool:
            raise ValueError("'labels' must be whole numbers and 'correct' true or false")
        if {len(array) for array in (confidence, held_out, correct, *scores.values())} != {len(labels)}:
            raise ValueError("its lists have different lengths")
        delta = float(values["delta"])
        if not 0 < delta < 1:
            raise ValueError(f"'delta' is {delta}, not between 0 and 1")
        return cls(
            settings=dict(values["settings"]),
            labels=labels.astype(np.int64),
            confidence=confidence,
            held_out=held_out,
            correct=correct,
            scores=scores,
            calibrator=calibrator_from(values["calibrator"]),
            reason=str(values["reason"]),
            delta=delta,
            intervals=_intervals(values["intervals"]),
            before=_intervals(values["before"]),
            after=_intervals(values["after"]),
            seconds=Interval(*map(float, values["seconds"])),
        )


@dataclass(frozen=True, kw_only=True, eq=False)
class Calibration:
    """A classifier's answers for labelled images, and what they allow to promise for other images like them.

    `Classifier.calibrate` and `poise calibrate` make it; `Classifier(labels, calibration=...)` uses it.

    Attributes:
        conditions: the model, labels and views that it is valid for.
        methods: by name of the method.
        recommended: the cheapest method that is not significantly worse than the best.
        reason: why, in one sentence.
        images: hashes of the images' pixels. These images are no test images.
    """

    conditions: Conditions
    methods: Mapping[str, MethodCalibration]
    recommended: str
    reason: str
    images: frozenset[str]

    @property
    def confidence(self) -> float:
        """Probability with which the certified thresholds of all methods hold."""
        return 1 - sum(part.delta for part in self.methods.values())

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
        """Return the part for the method called ``name``, whose settings must be the calibrated ones."""
        if name not in self.methods:
            raise InvalidCalibrationError(
                f"The calibration has no method '{name}'.", hint=f"It has: {', '.join(self.methods)}."
            )
        part, now = self.methods[name], plain(settings)
        for key in sorted(part.settings.keys() | now.keys()):
            if part.settings.get(key) != now.get(key):
                raise InvalidCalibrationError(
                    f"The calibration was made with {name}'s {key} {part.settings.get(key)!r}, and this classifier has "
                    f"{now.get(key)!r}.",
                    hint="Use the same settings, or run `poise calibrate` again.",
                )
        return part

    def options(self) -> dict[str, Any]:
        """Return the options of `poise.Classifier` of the calibration, with the recommended method."""
        return {**option_values(self.conditions, AnswerOptions), "method": [self.recommended]}

    def save(self, path: str | Path) -> None:
        """Write the calibration as JSON."""
        write_atomic(path, (json.dumps(self.to_dict(), ensure_ascii=False, allow_nan=False) + "\n").encode())

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        return {
            "format": FORMAT,
            "conditions": asdict(self.conditions),
            "recommended": self.recommended,
            "reason": self.reason,
            "images": sorted(self.images),
            "methods": {name: part.to_dict() for name, part in self.methods.items()},
        }

    @classmethod
    def load(cls, path: str | Path) -> Calibration:
        """Read a file that `save` wrote.

        Raises:
            InvalidCalibrationError: The file can't be read, or is not a calibration.
        """
        try:
            return cls.from_dict(json.loads(read_bounded(path, _MAX_BYTES)))
        except KeyError as problem:
            raise _unreadable(path, f"{problem} is missing") from None
        except (OSError, ArithmeticError, ValueError, TypeError, AttributeError, RecursionError) as problem:
            raise _unreadable(path, reason_of(problem)) from None

    @classmethod
    def from_dict(cls, values: Any) -> Calibration:
        """Read what `to_dict` returned; every value is checked, and one that is not valid raises a plain error."""
        if values["format"] != FORMAT:
            raise ValueError(f"its format is {values['format']!r}, and this version of poise reads '{FORMAT}'")
        methods = {str(name): MethodCalibration.from_dict(part) for name, part in values["methods"].items()}
        conditions = Conditions.from_dict(values["conditions"])
        if values["recommended"] not in methods:
            raise ValueError(f"the recommended method {values['recommended']!r} is not in it")
        if any(part.labels.min() < 0 or part.labels.max() >= len(conditions.labels) for part in methods.values()):
            raise ValueError("it has more classes than labels")
        images = frozenset(str(key) for key in values["images"])
        if {len(part.labels) for part in methods.values()} != {len(images)}:
            raise ValueError("it does not have one answer per image")
        return cls(
            conditions=conditions,
            methods=methods,
            recommended=values["recommended"],
            reason=str(values["reason"]),
            images=images,
        )


def plain(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings as JSON would return them, so that stored and new ones compare equal."""
    return dict(json.loads(json.dumps(dict(settings))))


def _unreadable(path: str | Path, problem: str) -> InvalidCalibrationError:
    return InvalidCalibrationError(
        f"'{path}' is not a calibration that can be used: {problem[:200].rstrip('.')}.",
        hint="Give the file that `poise calibrate --out` or `Calibration.save` wrote.",
    )


def _floats(values: Any, low: float, high: float) -> Floats:
    array = np.asarray(values, dtype=np.float64)
    if array.ndim != 1 or not np.isfinite(array).all() or (array < low).any() or (array > high).any():
        raise ValueError("it has numbers that are not valid")
    return array


def _rows(intervals: Mapping[str, Interval]) -> dict[str, list[float]]:
    return {name: list(interval) for name, interval in intervals.items()}


def _intervals(values: Mapping[str, Any]) -> dict[str, Interval]:
    return {str(name): Interval(*map(float, numbers)) for name, numbers in values.items()}
