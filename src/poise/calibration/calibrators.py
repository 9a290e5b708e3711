"""Calibrators: maps from probabilities to probabilities that never change the predicted label.

A calibrator is fitted on labelled images and applied to others that are predicted in the same way.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any, ClassVar, TypeVar

import numpy as np
import scipy  # imports scipy.special when it is first used
from numpy.typing import ArrayLike

from poise.calibration.chunks import Table, as_table, in_chunks
from poise.calibration.fits import TINY, BetaFit, Fit, TemperatureFit, beta_features
from poise.errors import InvalidOptionError
from poise.metrics.sample import Ints, check_table, checked_probs
from poise.registry import Registry, check_options

LEAST = 0.01  # of the top label's lead over 1 / C that beta calibration leaves, so that the order of classes survives

K = TypeVar("K", bound="type[Calibrator]")


@dataclass(frozen=True)
class Calibrator(ABC):
    """A calibrator; its fields are its parameters."""

    name: ClassVar[str]
    about: ClassVar[str]
    fit: ClassVar[type[Fit]]
    ranges: ClassVar[Mapping[str, tuple[float, float]]]

    def __post_init__(self) -> None:
        check_options(type(self), asdict(self), f"the calibrator '{self.name}'")
        for name, (low, high) in self.ranges.items():
            if not low <= getattr(self, name) <= high:
                raise InvalidOptionError(
                    f"{name} = {getattr(self, name)} was given to the calibrator '{self.name}'.",
                    hint=f"Give a number from {low:g} to {high:g}.",
                )
            object.__setattr__(self, name, float(getattr(self, name)))

    def apply(self, probs: ArrayLike) -> Table:
        """Return calibrated probabilities [N, C]; predicted labels stay the same, of tied classes the first one.

        Args:
            probs: class probabilities [N, C]. Half and single precision give float32 (relative errors of about 1e-5),
                anything else gives float64.
        """
        table = as_table(probs)
        out = np.empty_like(table)

        def work(rows: slice) -> None:
            chunk = table[rows]
            check_table(chunk)
            out[rows] = self._apply(chunk, chunk.argmax(1))

        in_chunks(work, *table.shape)
        return out

    def to_dict(self) -> dict[str, Any]:
        """Return the name and the parameters, which `calibrator_from` reads."""
        return {"name": self.name, **asdict(self)}

    @abstractmethod
    def _apply(self, table: Table, top: Ints) -> Table: ...


calibrators = Registry[type[Calibrator]]("calibrator")


def _register(kind: K) -> K:
    calibrators.add(kind.name)(kind)
    return kind


@_register
@dataclass(frozen=True)
class Temperature(Calibrator):
    """Divide the logits by a temperature: softmax(log p / T). T > 1 lowers confidences.

    >>> Temperature(2.0).apply([[0.8, 0.2]]).round(4).tolist()
    [[0.6667, 0.3333]]
    """

    name = "temperature"
    about = "one temperature for all logits"
    fit = TemperatureFit
    ranges: ClassVar = {"temperature": (1e-4, 1e4)}

    temperature: float

    def _apply(self, table: Table, top: Ints) -> Table:
        out = np.maximum(table, TINY)
        rows = np.arange(len(out))
        np.log(out, out=out)
        out -= out[rows, top][:, None]
        with np.errstate(under="ignore"):
            out *= 1 / self.temperature
            np.exp(out, out=out)
            out /= out.sum(1, keepdims=True)
        return _top_first(out, top)


@_register
@dataclass(frozen=True)
class Beta(Calibrator):
    """Temperature scaling, then beta calibration of the top label's confidence c: sigmoid(a ln c - b ln(1 - c) + m).

    The other classes share the rest and keep their proportions. Where one of them would overtake the top label, the row
    is mixed with the uniform distribution instead, which keeps the order of all classes.

    >>> Beta(1.0, 1.0, -1.0).apply([[0.8, 0.15, 0.05]]).round(4).tolist()
    [[0.5954, 0.3035, 0.1012]]
    """

    name = "beta"
    about = "a temperature, then a curve with three parameters for the top label's confidence"
    fit = BetaFit
    ranges: ClassVar = {"a": (0.0, 1e4), "b": (0.0, 1e4), "m": (-1e4, 1e4), "temperature": (1e-4, 1e4)}

    a: float
    b: float
    m: float
    temperature: float = 1.0

    def _apply(self, table: Table, top: Ints) -> Table:
        if self.temperature != 1.0:
            table = Temperature(self.temperature)._apply(table, top)
        rows, classes = np.arange(len(table)), table.shape[1]
        if classes == 1:
            return np.ones_like(table)
        confidence, even = table[rows, top].astype(np.float64), 1 / classes
        above = np.maximum(confidence - even, 0)
        fitted = scipy.special.expit(beta_features(confidence) @ np.array([self.a, self.b, self.m]))
        chance = np.maximum(fitted, even + LEAST * above)
        out = np.maximum(table, TINY)  # classes of probability 0 share equally where there are no others
        out[rows, top] = 0
        out *= ((1 - chance) / out.sum(1, dtype=np.float64)).astype(out.dtype)[:, None]
        over = np.flatnonzero(out.max(1) >= chance)
        # At most 1 where rows sum to 1; those of half precision may not, and their top label may be below 1 / C.
        share = np.minimum((chance - even)[over] / np.maximum(above[over], TINY), 1)[:, None]
        mixed = even + share * (table[over] - even)
        out[rows, top] = chance
        out[over] = mixed
        return _top_first(out, top)


def _top_first(out: Table, top: Ints) -> Table:
    """Make the top label the largest where rounding has made another one equal."""
    lost = np.flatnonzero(out.argmax(1) != top)
    out[lost, top[lost]] = np.nextafter(out[lost].max(1), out.dtype.type(2))
    return out


def calibrator_from(values: Mapping[str, Any]) -> Calibrator:
    """Return the calibrator that ``to_dict`` described; anything else raises `InvalidOptionError`."""
    known = ", ".join(calibrators.names())
    name = values.get("name") if isinstance(values, Mapping) else None
    if not isinstance(name, str) or name not in calibrators:
        raise InvalidOptionError(f"No calibrator has the name {str(name)[:40]!r}.", hint=f"Known: {known}.")
    kind = calibrators.get(name)
    wanted = {"name", *(field.name for field in fields(kind))}
    if set(values) != wanted:
        raise InvalidOptionError(
            f"The calibrator '{name}' does not have exactly its parameters.", hint=f"Give {', '.join(sorted(wanted))}."
        )
    return kind(**{key: value for key, value in values.items() if key != "name"})


def fit_temperature(probs: ArrayLike, labels: ArrayLike, weights: ArrayLike | None = None) -> Temperature:
    """Fit a temperature by maximum likelihood under the weak prior log T ~ N(0, 1).

    Args:
        probs: class probabilities [N, C] of labelled images.
        labels: class indices [N].
        weights: how often each image counts [N]; by default once.
    """
    return Temperature(*_fitted(Temperature, probs, labels, weights))


def fit_beta(probs: ArrayLike, labels: ArrayLike, weights: ArrayLike | None = None) -> Beta:
    """Fit a temperature, then beta calibration of the top label with a, b ~ N(1, 1/4) and m ~ N(0, 1/4) as priors.

    Args:
        probs: class probabilities [N, C] of labelled images.
        labels: class indices [N].
        weights: how often each image counts [N]; by default once.
    """
    return Beta(*_fitted(Beta, probs, labels, weights))


def _fitted(kind: type[Calibrator], probs: ArrayLike, labels: ArrayLike, weights: ArrayLike | None) -> list[float]:
    table, truth = checked_probs(probs, labels)
    counts = np.ones(len(table)) if weights is None else np.asarray(weights, dtype=np.float64)
    if counts.shape != (len(table),) or not np.isfinite(counts).all() or counts.min() < 0:
        raise InvalidOptionError(
            f"Weights of shape {counts.shape} were given, or some are negative or not finite.",
            hint=f"Give {len(table)} numbers of at least 0.",
        )
    fit = kind.fit(table, truth)
    return fit.refined(fit.parameters(counts[None])[0], counts).tolist()
