"""A calibration applied to probabilities in an array."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from poise.calibration.feasible import certified, check_coverage
from poise.errors import InvalidOptionError, reason_of
from poise.metrics.sample import Bools, Floats, check_table

if TYPE_CHECKING:
    from poise.calibration.stored import MethodCalibration
    from poise.calibration.tree import Tree


@dataclass(frozen=True, eq=False)
class Applied:
    """What a calibration says about N images with C labels.

    Attributes:
        probabilities: calibrated probabilities [N, C].
        sets: whether each label is in the image's prediction set [N, C]; None if no coverage was asked for.
        answered: whether to answer each image [N]; None if no error was asked for.
        threshold: the lowest probability, before calibration, that is answered; None if no error was asked for.
        nodes: with a tree, the node that each image is answered with, None where it is not; None if no error was asked
            for, or without a tree.
    """

    probabilities: Floats
    sets: Bools | None
    answered: Bools | None
    threshold: float | None
    nodes: tuple[str | None, ...] | None = None


def applied(
    name: str,
    part: MethodCalibration,
    probs: ArrayLike,
    classes: int,
    coverage: float | None,
    max_error: float | None,
    tree: Tree | None = None,
) -> Applied:
    """Apply the calibration of the method ``name`` to probabilities; see `Calibration.apply`."""
    table = array_of("Probabilities", probs).astype(np.float64)
    check_table(table)
    if table.shape[1] != classes:
        raise InvalidOptionError(
            f"Probabilities of {table.shape[1]} labels were given.", hint=f"The calibration has {classes} labels."
        )
    table, sets, answered, threshold, nodes = np.minimum(table, 1.0), None, None, None, None
    if coverage is not None:
        check_coverage(coverage, len(part.labels))
        sets = part.sets(table, coverage, np.zeros(len(table))).members
    if max_error is not None:
        threshold = certified(name, part, max_error).threshold
        assert threshold is not None
        answered = np.asarray(table.max(1) >= threshold)
        if tree is not None:
            nodes = tree.answers(table, threshold)
            answered = np.array([node is not None for node in nodes], dtype=bool)
    return Applied(np.asarray(part.calibrator.apply(table), np.float64), sets, answered, threshold, nodes)


def array_of(what: str, values: Any) -> NDArray[Any]:
    """Return an array of real numbers, or raise an error that says what is none."""
    try:
        array = np.asarray(values)
    except (TypeError, ValueError) as problem:
        raise _no_numbers(what, reason_of(problem)) from None
    if array.dtype.kind not in "fiu":
        raise _no_numbers(what, f"they are of the type {array.dtype}")
    return array


def _no_numbers(what: str, reason: str) -> InvalidOptionError:
    return InvalidOptionError(f"{what} are not an array of numbers: {reason[:200]}.", hint="Give rows of equal length.")
