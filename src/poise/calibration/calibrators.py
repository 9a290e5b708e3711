"""A calibrator: a map from probabilities to probabilities that never changes the predicted label.

It is fitted on labelled images (`posterior.py`) and applied to others that are predicted in the same way.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import scipy  # imports scipy.special when it is first used
from numpy.typing import ArrayLike

from poise.calibration.chunks import Table, as_table, in_chunks
from poise.errors import InvalidOptionError
from poise.metrics.sample import Floats, Ints, check_table

TINY = float(np.finfo(np.float32).tiny)  # probabilities of 0 are raised to this
CLIP = 1e-6  # confidences are kept this far away from 0 and 1 where their logarithms are taken
LEAST = 0.01  # of the top label's lead over 1 / C that is left to it, so that the order of classes survives
MOST = 10_000  # curves of a calibrator; a fit gives a few hundred
RANGES = {"weight": (0.0, 1.0), "temperature": (6e-3, 150.0), "a": (0.0, 1e4), "b": (0.0, 1e4), "m": (-1e4, 1e4)}


class Curve(NamedTuple):
    """One map: softmax(log p / temperature), then sigmoid(a ln c - b ln(1 - c) + m) of the top label's confidence c.

    (temperature, a, b, m) = (1, 1, 1, 0) leaves probabilities as they are.
    """

    weight: float
    temperature: float = 1.0
    a: float = 1.0
    b: float = 1.0
    m: float = 0.0


@dataclass(frozen=True)
class Calibrator:
    """The weighted mean of the probabilities that several curves give.

    In each curve, the other classes share what the top label leaves in the proportions that they have at the curve's
    temperature. Where one of them would overtake the top label in the mean, the row at its temperatures is mixed with
    the uniform distribution instead, which keeps the order of all classes.

    >>> Calibrator((Curve(1.0, temperature=2.0),)).apply([[0.8, 0.2]]).round(4).tolist()
    [[0.6667, 0.3333]]
    """

    curves: tuple[Curve, ...] = (Curve(1.0),)

    def __post_init__(self) -> None:
        if not 0 < len(self.curves) <= MOST or abs(sum(curve.weight for curve in self.curves) - 1) > 1e-6:
            raise InvalidOptionError(
                f"A calibrator with {len(self.curves)} curves was given, or their weights do not add up to 1.",
                hint=f"Give 1 to {MOST} curves.",
            )
        for curve in self.curves:
            for (name, (low, high)), value in zip(RANGES.items(), curve, strict=True):
                if not low <= value <= high:
                    raise InvalidOptionError(
                        f"{name} = {value} was given to a curve of a calibrator.",
                        hint=f"Give a number from {low:g} to {high:g}.",
                    )

    def groups(self) -> Iterator[tuple[float, Floats]]:
        """Yield each temperature, and the weights and parameters (weight, a, b, m) [K, 4] of its curves."""
        table = np.array(self.curves, dtype=np.float64)
        for temperature in np.unique(table[:, 1]):
            yield float(temperature), table[table[:, 1] == temperature][:, [0, 2, 3, 4]]

    def apply(self, probs: ArrayLike) -> Table:
        """Return calibrated probabilities [N, C]; predicted labels stay the same, of tied classes the first one.

        Args:
            probs: class probabilities [N, C]. Half and single precision give float32 (relative errors of about 1e-5),
                anything else gives float64.
        """
        table, groups = as_table(probs), list(self.groups())
        out = np.empty_like(table)

        def work(rows: slice) -> None:
            check_table(table[rows])
            with np.errstate(under="ignore"):
                out[rows] = _applied(groups, table[rows])

        in_chunks(work, *table.shape)
        return out

    def to_dict(self) -> dict[str, Any]:
        """Return the curves, which `calibrator_from` reads."""
        return {"name": "curves", "curves": [list(curve) for curve in self.curves]}


def _applied(groups: list[tuple[float, Floats]], table: Table) -> Table:
    if table.shape[1] == 1:
        return np.ones_like(table)
    rows, top = np.arange(len(table)), table.argmax(1)
    logs = np.log(np.maximum(table, TINY))
    logs -= logs[rows, top][:, None]
    out, chance, single = np.zeros_like(table), np.zeros(len(table)), np.zeros(len(table))
    powers = np.empty_like(logs)
    for temperature, curves in groups:
        weight, rest = curves[:, 0].sum(), _powers(logs, temperature, top, powers)
        right = confidences(rest, curves)
        powers *= ((weight - right) / rest).astype(powers.dtype)[:, None]
        out += powers
        chance += right
        single += weight / (1 + rest)
    even = 1 / table.shape[1]
    above = np.maximum(single - even, 0)
    chance = np.maximum(chance, even + LEAST * above)
    out *= ((1 - chance) / np.maximum(out.sum(1, dtype=np.float64), TINY)).astype(out.dtype)[:, None]
    over = np.flatnonzero(out.max(1) >= chance)
    out[rows, top] = chance
    if len(over):
        # At most 1 where rows sum to 1; those of half precision may not, and their top label may be below 1 / C.
        share = np.minimum((chance - even)[over] / np.maximum(above[over], TINY), 1)[:, None]
        out[over] = even + share * (_scaled(groups, logs[over], top[over]) - even)
    lost = np.flatnonzero(out.argmax(1) != top)  # rounding has made another class equal
    out[lost, top[lost]] = np.nextafter(out[lost].max(1), out.dtype.type(2))
    return out


def _scaled(groups: list[tuple[float, Floats]], logs: Table, top: Ints) -> Table:
    """Return the weighted mean [N, C] of the rows at each temperature, without curves."""
    out, powers, rows = np.zeros_like(logs), np.empty_like(logs), np.arange(len(logs))
    for temperature, curves in groups:
        rest = _powers(logs, temperature, top, powers)
        powers[rows, top] = 1
        out += powers * (curves[:, 0].sum() / (1 + rest)).astype(out.dtype)[:, None]
    return out


def _powers(logs: Table, temperature: float, top: Ints, out: Table) -> Floats:
    """Write the classes' ratios to the top label at a temperature, 0 for itself, and return their sum [N]."""
    np.multiply(logs, 1 / temperature, out=out)
    np.exp(out, out=out)
    out[np.arange(len(out)), top] = 0
    rest = out.sum(1).astype(np.float64)
    if len(none := np.flatnonzero(rest < 1e-30)):  # all underflow: the others share equally what is left
        out[none] = TINY
        out[none, top[none]] = 0
        rest[none] = out[none].sum(1)
    return rest


def confidences(rest: Floats, curves: Floats) -> Floats:
    """Return the weighted sum [N] of curves (weight, a, b, m) [K, 4]; ``rest`` [N] is (1 - c) / c."""
    clipped = np.clip(rest, CLIP / (1 - CLIP), (1 - CLIP) / CLIP)
    right = -np.log1p(clipped)  # ln c
    wrong = np.log(clipped) + right  # ln (1 - c)
    weight, a, b, m = curves.T
    return np.asarray(scipy.special.expit(np.outer(right, a) - np.outer(wrong, b) + m) @ weight)


def calibrator_from(values: Mapping[str, Any]) -> Calibrator:
    """Return the calibrator that ``to_dict`` described, in this version or before; else raise `InvalidOptionError`."""
    name = values.get("name") if isinstance(values, Mapping) else None
    wanted = {"curves": ["curves"], "temperature": ["temperature"], "beta": ["a", "b", "m", "temperature"]}
    if not isinstance(name, str) or name not in wanted:
        raise InvalidOptionError(f"No calibrator has the name {str(name)[:40]!r}.", hint=f"Known: {', '.join(wanted)}.")
    if set(values) != {"name", *wanted[name]}:
        raise InvalidOptionError(
            f"The calibrator '{name}' does not have exactly its parameters.",
            hint=f"Give {', '.join(['name', *wanted[name]])}.",
        )
    if name == "curves":
        return Calibrator(tuple(Curve(*map(_number, row)) for row in values["curves"]))
    return Calibrator((Curve(1.0, **{key: _number(values[key]) for key in wanted[name]}),))


def _number(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise InvalidOptionError(f"A calibrator has {str(value)[:40]!r}.", hint="Give numbers.")
    return float(value)
