"""The one place where arrays from outside are checked and brought to float64."""

from __future__ import annotations

from typing import Any, NamedTuple, TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from poise.errors import InvalidOptionError

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]
Part = TypeVar("Part", NDArray[np.float64], NDArray[np.int64], NDArray[np.bool_])

SUM_TOLERANCE = 5e-3  # rows computed in half precision still pass; logits and scores do not


class TopLabel(NamedTuple):
    """The predicted class of each image, its probability, and whether it is right."""

    prediction: Ints  # [N]; of tied classes the first
    confidence: Floats  # [N]
    correct: Bools  # [N]


def checked_probs(probs: ArrayLike, labels: ArrayLike) -> tuple[Floats, Ints]:
    """``probs`` [N, C] as float64 and ``labels`` [N] as int64, or an error that says what is wrong."""
    table = np.asarray(probs, dtype=np.float64)
    if table.ndim != 2 or 0 in table.shape:
        raise InvalidOptionError(f"Probabilities of shape {table.shape} were given.", hint="Give [images, classes].")
    if not np.isfinite(table).all():
        raise InvalidOptionError("Some probabilities are not finite.", hint="Leave failed images out.")
    if table.min() < 0 or table.max() > 1 + SUM_TOLERANCE or np.abs(table.sum(1) - 1).max() > SUM_TOLERANCE:
        raise InvalidOptionError("The rows are not probabilities: entries lie in [0, 1] and each row sums to 1.",
                            hint="Logits need a softmax first; percent need a division by 100.")  # fmt: skip
    truth = _integers(labels)
    if truth.shape != (len(table),):
        raise InvalidOptionError(
            f"{truth.size} labels were given for {len(table)} images.", hint="Give one label per image."
        )
    if truth.min() < 0 or truth.max() >= table.shape[1]:
        raise InvalidOptionError(f"Labels run from {truth.min()} to {truth.max()}.",
                            hint=f"With {table.shape[1]} classes they lie in 0..{table.shape[1] - 1}.")  # fmt: skip
    return np.minimum(table, 1.0), truth


def checked_top(confidence: ArrayLike, correct: ArrayLike) -> tuple[Floats, Bools]:
    """``confidence`` [N] in [0, 1] as float64 and ``correct`` [N] as bool."""
    values = np.asarray(confidence, dtype=np.float64)
    hits = np.asarray(correct)
    if values.ndim != 1 or values.size == 0 or hits.shape != values.shape:
        raise InvalidOptionError(f"Confidences of shape {values.shape} and outcomes of shape {hits.shape} were given.",
                            hint="Both are vectors of one length, at least 1.")  # fmt: skip
    if not np.isfinite(values).all() or values.min() < 0 or values.max() > 1:
        raise InvalidOptionError("Some confidences are not in [0, 1].", hint="Percent need a division by 100.")
    if not np.isin(hits, (0, 1)).all():
        raise InvalidOptionError("Outcomes other than true and false were given.", hint="Give prediction == label.")
    return values, hits.astype(bool)


def checked_count(name: str, value: int) -> int:
    """``value``, when it is a whole number of at least 1."""
    if int(value) != value or value < 1:
        raise InvalidOptionError(f"{name} = {value} was given.", hint="It is a whole number of at least 1.")
    return int(value)


def top_label(probs: ArrayLike, labels: ArrayLike) -> TopLabel:
    """The winning class of each row.

    >>> top_label([[0.2, 0.8], [0.5, 0.5]], [1, 1]).correct.tolist()
    [True, False]
    """
    table, truth = checked_probs(probs, labels)
    prediction = table.argmax(1).astype(np.int64)
    return TopLabel(prediction, table.max(1), prediction == truth)


def in_top(probs: ArrayLike, labels: ArrayLike, k: int = 5) -> Bools:
    """[N]: is the label among the ``k`` most probable classes? Of tied classes the first counts as more probable.

    With k classes or fewer every label is, so the answer is always true.
    """
    k = checked_count("k", k)
    table, truth = checked_probs(probs, labels)
    own = np.take_along_axis(table, truth[:, None], axis=1)  # [N, 1]
    earlier = np.arange(table.shape[1]) < truth[:, None]  # [N, C]
    rank = (table > own).sum(1) + ((table == own) & earlier).sum(1)
    return np.asarray(rank < k)


def known(part: Part | None) -> Part:
    """An optional part of a sample that the metric at hand needs, and that `Metric.available` has found."""
    if part is None:
        raise InvalidOptionError("The sample holds the top label alone.", hint="Make it with Sample.of(probs, labels).")
    return part


def _integers(labels: ArrayLike) -> Ints:
    given: NDArray[Any] = np.asarray(labels)
    if given.dtype.kind not in "iu" and not np.array_equal(given, given.astype(np.int64)):
        raise InvalidOptionError("Labels are class indices.", hint="Give whole numbers from 0.")
    return given.astype(np.int64)
