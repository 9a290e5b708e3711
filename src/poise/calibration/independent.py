"""Labels that apply independently of each other: calibrated probabilities, and certified thresholds for each label.

The probability of label c is sigmoid(a_c z_c + b_c), where z_c is the model's logit. The labels' (a_c, b_c) are drawn
from a normal distribution around a shared (a, b), whose spread is learned from all labels (EM, with a weak prior). A
label with few images stays near (a, b), which all labels know; one with many has its own.

"Yes" is said from a threshold on that is certified for precision (`certify`: at least this share of the yes is right),
and "no" below one that is certified for recall (of the images that have the label, at most the rest get a no). Both
compare the model's own cosine, so that they need nothing of the fit. All thresholds share delta.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import scipy  # imports scipy.special when it is first used

from poise.calibration.certify import certify, upper_bound
from poise.calibration.conditions import Conditions
from poise.calibration.levels import exact_level
from poise.calibration.stored import INDEPENDENT, Calibration, check_content, content_hash, plain, read_file
from poise.errors import InvalidCalibrationError, InvalidOptionError
from poise.files import write_atomic
from poise.metrics.sample import NO, YES, Bools, Floats, Ints
from poise.options import AnswerOptions, option_values
from poise.text import as_words, counted

WORDS = {YES: "yes", NO: "no", 0: "unsure"}
ROUNDS = 60  # of EM; few change anything
STEEPEST = 30.0  # logits are at most this
SPREAD = (0.3, 1.0)  # of a_c / a and b_c that is expected before, in units of a standard deviation of the logits
WEIGHT = 4.0  # of that expectation, in labels


class LabelFit(NamedTuple):
    """The result of `fit_labels`: sigmoid(a z + b)."""

    a: Floats  # [C]
    b: Floats  # [C]
    shared: tuple[float, float]  # a, and the logit of the probability at a mean logit, of all labels


def fit_labels(logits: Floats, truth: Bools, start: tuple[float, float] | None = None) -> LabelFit:
    """Fit the probabilities of independent labels.

    Args:
        logits: of n images [n, C].
        truth: whether each image has each label [n, C].
        start: the (a, b) that the model was trained with; None: it has none, and its logits no zero.

    >>> generator = np.random.default_rng(0)
    >>> z = generator.normal(size=(400, 3))
    >>> fit = fit_labels(z, generator.random((400, 3)) < scipy.special.expit(2 * z - 1))
    >>> [round(value) for value in fit.shared]
    [2, -1]
    """
    # Labels differ in their mean logit. A model without a zero of its own gets one for each label there.
    middle = np.broadcast_to(logits.mean(0) if start is None else logits.mean(), logits.shape[1:])
    size = float((logits - middle).std()) or 1.0
    u = (logits - middle) / size  # probabilities are sigmoid(A u + B)
    share = float(np.clip(truth.mean(), 1e-3, 1 - 1e-3))
    centre, prior = np.array([1.0, scipy.special.logit(share)]), np.array([3.0, 10.0])
    if start is not None:
        centre = np.array([start[0] * size, start[0] * middle[0] + start[1]])
        prior = np.array([0.5 * centre[0], 2.0])
    theta, own = np.tile(centre, (logits.shape[1], 1)), centre.copy()  # [C, 2], [2]
    spread = np.array([SPREAD[0] * max(abs(centre[0]), 1.0), SPREAD[1]])
    for _ in range(ROUNDS):
        expected = np.array([SPREAD[0] * max(abs(own[0]), 1e-3), SPREAD[1]])
        theta, variance = newton(u, truth, theta, own, spread)
        spread = np.sqrt((((theta - own) ** 2 + variance).sum(0) + WEIGHT * expected**2) / (len(theta) + WEIGHT))
        weight = len(theta) / spread**2
        own = (theta.mean(0) * weight + centre / prior**2) / (weight + 1 / prior**2)
        own[0] = max(own[0], 1e-2)
    theta[:, 0] = np.maximum(theta[:, 0], 0.05 * own[0])  # a higher logit never means less
    a = theta[:, 0] / size
    return LabelFit(a, theta[:, 1] - a * middle, (float(own[0] / size), float(own[1])))


def newton(u: Floats, truth: Bools, theta: Floats, own: Floats, spread: Floats) -> tuple[Floats, Floats]:
    """Return (A, B) of each label [C, 2] after a few steps, and their posterior variances."""
    for _ in range(3):
        p = scipy.special.expit(np.clip(theta[:, 0] * u + theta[:, 1], -STEEPEST, STEEPEST))  # [n, C]
        residual, w = truth - p, p * (1 - p)
        gradient = np.stack([(residual * u).sum(0), residual.sum(0)], 1) - (theta - own) / spread**2
        one, both, two = (w * u * u).sum(0) + spread[0] ** -2, (w * u).sum(0), w.sum(0) + spread[1] ** -2
        determinant = one * two - both**2
        step = np.stack([two * gradient[:, 0] - both * gradient[:, 1], one * gradient[:, 1] - both * gradient[:, 0]], 1)
        theta = theta + np.clip(step / determinant[:, None], -3, 3)
    return theta, np.stack([two, one], 1) / determinant[:, None]


def yes_from(cosines: Floats, truth: Bools, precision: float, delta: float) -> float:
    """Lowest cosine from which "yes" is right in at least the share ``precision``; infinite if none is certified."""
    found = certify((cosines + 1) / 2, truth, 1 - precision, delta=delta)
    return float("inf") if found.threshold is None else 2 * found.threshold - 1


def no_below(cosines: Floats, truth: Bools, recall: float, delta: float) -> float:
    """Highest cosine below which "no" misses at most the share 1 - ``recall`` of the images with the label.

    It is that of the (k + 1)-th lowest of the m images with the label, for the largest k whose exact binomial bound is
    at most 1 - ``recall``. Minus infinity if there is none.
    """
    exact_level("recall", recall)
    found = np.sort(cosines[truth])
    missed = np.arange(len(found))
    allowed = np.flatnonzero(upper_bound(missed, np.full(len(found), len(found)), delta) <= 1 - recall + 1e-12)
    return float(found[allowed[-1]]) if len(allowed) else float("-inf")


@dataclass(frozen=True, eq=False)
class LabelThresholds:
    """From which cosine on a label is answered with yes [C], and below which with no [C]."""

    yes: Floats
    no: Floats

    def outcomes(self, cosines: Floats) -> list[str]:
        """Return "yes", "no" or "unsure" for each label of one image [C]."""
        return [WORDS[code] for code in self.codes(cosines)]

    def codes(self, cosines: Floats) -> Ints:
        """Return `YES`, `NO` or 0 for each label [..., C]."""
        return np.where(cosines >= self.yes, YES, np.where(cosines < self.no, NO, 0))


def label_thresholds(
    cosines: Floats, truth: Bools, precision: float | None, recall: float | None, delta: float
) -> LabelThresholds:
    """Return the thresholds that are certified for all labels together.

    Args:
        cosines: of n images and C labels [n, C], or other scores from -1 to 1.
        truth: whether each image has each label [n, C].
        precision: of each label's yes; None: no label gets one.
        recall: of each label's no, likewise.
        delta: probability with which any of the thresholds may fail; all have an equal share of it.
    """
    labels = truth.shape[1]
    part = delta / (labels * max((precision is not None) + (recall is not None), 1))
    yes, no = np.full(labels, np.inf), np.full(labels, -np.inf)
    for at in range(labels):
        if precision is not None:
            yes[at] = yes_from(cosines[:, at], truth[:, at], precision, part)
        if recall is not None:
            no[at] = no_below(cosines[:, at], truth[:, at], recall, part)
    return LabelThresholds(yes, np.minimum(no, yes))


@dataclass(frozen=True, kw_only=True, eq=False)
class IndependentCalibration:
    """Logits of labelled images for labels that apply independently, and what they allow to promise.

    `Classifier.calibrate` and `poise calibrate --independent` make it, and `Classifier(labels, independent=True,
    calibration=...)` uses it.

    Attributes:
        conditions: the model, labels and template that it is valid for.
        settings: of the method.
        cosines: of the n images and C labels [n, C].
        truth: whether each image has each label [n, C].
        scale: the model's factor from cosine to logit.
        bias: the constant that the model adds to each logit.
        start: the model's own (a, b); None if it has none.
        delta: probability with which any of the certified thresholds may fail.
        images: hashes of the images' pixels. These images are no test images.
    """

    conditions: Conditions
    settings: Mapping[str, Any]
    cosines: Floats
    truth: Bools
    scale: float
    bias: float
    start: tuple[float, float] | None
    delta: float
    images: tuple[str, ...]
    recommended: str = "zero-shot"

    @property
    def methods(self) -> tuple[str, ...]:
        """The only method."""
        return (self.recommended,)

    @cached_property
    def fit(self) -> LabelFit:
        """The parameters of the probabilities."""
        return fit_labels(self.scale * self.cosines + self.bias, self.truth, self.start)

    @property
    def confidence(self) -> float:
        """Probability with which all certified thresholds hold."""
        return 1 - self.delta

    def __len__(self) -> int:
        return len(self.images)

    def __repr__(self) -> str:
        labels = counted(len(self.conditions.labels), "label")
        return f"IndependentCalibration({counted(len(self), 'image')}, {labels})"

    def probabilities(self, logits: Floats) -> Floats:
        """Return the calibrated probabilities [N, C] of logits [N, C]."""
        return np.asarray(scipy.special.expit(self.fit.a * logits + self.fit.b))

    def thresholds(self, precision: float | None = None, recall: float | None = None) -> LabelThresholds:
        """Return the thresholds that are certified for all labels together with the confidence 1 - delta.

        Args:
            precision: share of each label's yes that is right; None: no label gets a yes.
            recall: share of the images with a label that get no "no"; None: no label gets a no.

        Raises:
            InvalidCalibrationError: No label has enough images.
        """
        asked = [level for level in (precision, recall) if level is not None]
        for name, level in (("precision", precision), ("recall", recall)):
            if level is not None:
                exact_level(name, level)
        found = label_thresholds(self.cosines, self.truth, precision, recall, self.delta)
        if asked and not np.isfinite(found.yes).any() and not np.isfinite(found.no).any():
            raise InvalidCalibrationError(
                f"No label has a certified threshold with these {counted(len(self), 'image')}.",
                hint=f"{self.truth.shape[1]} labels share the confidence: calibrate on more images or fewer labels, or "
                "ask for a lower level.",
            )
        return found

    def summary(self) -> str:
        """Return the labels with their numbers of images and probabilities, as text."""
        counts = self.truth.sum(0)
        lines = [f"{counted(len(self), 'image')}, {counted(len(counts), 'label')}, which apply independently"]
        width = max(map(len, self.conditions.labels))
        for at, label in enumerate(self.conditions.labels):
            lines.append(f"{label:<{width}}  {counts[at]} images, a {self.fit.a[at]:.3g}, b {self.fit.b[at]:.3g}")
        return "\n".join(lines)

    def options(self) -> dict[str, Any]:
        """Return the options of `poise.Classifier` of the calibration."""
        return {**option_values(self.conditions, AnswerOptions), "method": [self.recommended]}

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        values: dict[str, Any] = {
            "format": INDEPENDENT,
            "conditions": plain(asdict(self.conditions)),
            "settings": plain(self.settings),
            "cosines": self.cosines.tolist(),
            "truth": [np.flatnonzero(row).tolist() for row in self.truth],
            "scale": self.scale,
            "bias": self.bias,
            "start": None if self.start is None else list(self.start),
            "delta": self.delta,
            "images": list(self.images),
        }
        return {**values, "checksum": content_hash(values)}

    def save(self, path: str | Path) -> None:
        """Write the calibration as JSON."""
        write_atomic(path, (json.dumps(self.to_dict(), ensure_ascii=False, allow_nan=False) + "\n").encode())

    @classmethod
    def from_dict(cls, values: Any) -> IndependentCalibration:
        """Read what `to_dict` returned; every value is checked."""
        check_content(values)
        conditions = Conditions.from_dict(values["conditions"])
        cosines = np.asarray(values["cosines"], dtype=np.float64)
        shape = len(values["images"]), len(conditions.labels)
        if cosines.shape != shape or not np.isfinite(cosines).all() or np.abs(cosines).max() > 1.01:
            raise ValueError("its cosines are not valid")
        truth = np.zeros(shape, dtype=bool)
        for row, members in zip(truth, values["truth"], strict=True):
            if any(type(at) is not int or not 0 <= at < shape[1] for at in members):
                raise ValueError("an image has a label that does not exist")
            row[members] = True
        scale, bias, delta = (float(values[name]) for name in ("scale", "bias", "delta"))
        if not (0 < scale < 1e6 and abs(bias) < 1e6 and 0 < delta < 1):
            raise ValueError("its scale, bias or delta is not valid")
        start = None if values["start"] is None else (float(values["start"][0]), float(values["start"][1]))
        return cls(
            conditions=conditions,
            settings=dict(values["settings"]),
            cosines=cosines,
            truth=truth,
            scale=scale,
            bias=bias,
            start=start,
            delta=delta,
            images=tuple(str(key) for key in values["images"]),
        )


def read_calibration(path: str | Path) -> Calibration | IndependentCalibration:
    """Read the file of a calibration of either kind.

    Raises:
        InvalidCalibrationError: The file can't be read, or is not a calibration.
    """
    return read_file(
        path,
        lambda values: (IndependentCalibration if values["format"] == INDEPENDENT else Calibration).from_dict(values),
    )


def truth_table(labels: Sequence[str], given: Sequence[Sequence[str]]) -> Bools:
    """Return whether each image has each label [n, C], from the labels of each image."""
    position = {as_words(label): at for at, label in enumerate(labels)}
    table = np.zeros((len(given), len(labels)), dtype=bool)
    for row, members in zip(table, given, strict=True):
        if isinstance(members, str):
            raise InvalidOptionError(
                f"{members!r} was given for an image.", hint="Independent labels need a list of labels per image."
            )
        for label in members:
            if as_words(label) not in position:
                raise InvalidOptionError(
                    f"An image has the label {label!r}, which the classifier has not.",
                    hint="Add it to the labels, or leave it out.",
                )
            row[position[as_words(label)]] = True
    return table
