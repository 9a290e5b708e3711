"""The predictions that metrics read. Arrays from outside are checked and converted to float64 here and nowhere else."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields

import numpy as np
from numpy.typing import ArrayLike, NDArray

from poise.errors import InvalidOptionError

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]
Weighted = Callable[[Floats], Floats]  # how often each image counts [R, N] -> a metric's values [R]

YES, NO = 1, -1  # outcomes of a label
SUM_TOLERANCE = 5e-3  # rows computed in half precision still pass; logits and scores do not


@dataclass(frozen=True)
class Sample:
    """Predictions for N images; what is not known is None, such as ``probs`` where only the top label is known.

    ``set_sizes`` and ``covered`` (does the set contain the label?) are of prediction sets, and ``answered`` says for
    which images an answer is given: those whose confidence reaches a threshold. With a tree, ``height`` says how many
    steps above the labels the predicted and the correct one meet, ``depth`` how many nodes the answer has from the root
    (0: no answer), and ``right`` whether it contains the label. Of labels that apply independently, ``has`` says which
    ones an image has, ``chances`` how probable each is, and ``outcomes`` what is said of it (`YES`, `NO`, or 0).

    >>> Sample.of([[0.2, 0.8], [0.5, 0.5]], [1, 1]).correct.tolist()
    [True, False]
    """

    confidence: Floats  #: [N]
    correct: Bools  #: [N]
    top5: Bools | None = None  #: [N]
    probs: Floats | None = None  #: [N, C]
    labels: Ints | None = None  #: [N]
    set_sizes: Ints | None = None  #: [N]
    covered: Bools | None = None  #: [N]
    answered: Bools | None = None  #: [N]
    height: Ints | None = None  #: [N]
    depth: Ints | None = None  #: [N]
    right: Bools | None = None  #: [N]
    has: Bools | None = None  #: [N, C]
    chances: Floats | None = None  #: [N, C]
    outcomes: Ints | None = None  #: [N, C]

    @classmethod
    def of(cls, probs: ArrayLike, labels: ArrayLike) -> Sample:
        """Return the sample of full probabilities; of tied classes the first is predicted.

        Args:
            probs: probabilities [N, C], each row with the sum 1.
            labels: correct classes [N].

        Example:
            >>> Sample.of([[0.9, 0.1], [0.4, 0.6]], [0, 0]).correct.tolist()
            [True, False]
        """
        table, truth = checked_probs(probs, labels)
        return cls(table.max(1), table.argmax(1) == truth, in_top(table, truth, 5), table, truth)

    @classmethod
    def of_top(cls, confidence: ArrayLike, correct: ArrayLike) -> Sample:
        """Return the sample of predictions of which only the top label is known.

        Args:
            confidence: probability of each prediction [N].
            correct: whether it is right [N].
        """
        return cls(*checked_top(confidence, correct))

    @classmethod
    def of_independent(cls, chances: ArrayLike, has: ArrayLike, outcomes: ArrayLike | None = None) -> Sample:
        """Return the sample of labels that apply independently of each other.

        Args:
            chances: probability of each label [N, C].
            has: whether each image has each label [N, C].
            outcomes: `YES`, `NO` or 0 [N, C].
        """
        table, truth = np.asarray(chances, dtype=np.float64), np.asarray(has)
        if table.ndim != 2 or 0 in table.shape or truth.shape != table.shape:
            raise InvalidOptionError(
                f"Probabilities of shape {table.shape} and labels of shape {truth.shape} were given.",
                hint="Give [images, labels] twice.",
            )
        checked_top(table.ravel(), truth.ravel())
        top = table.argmax(1)
        said = None if outcomes is None else np.asarray(outcomes, dtype=np.int64)
        correct = truth.astype(bool)[np.arange(len(table)), top]
        return cls(table.max(1), correct, has=truth.astype(bool), chances=table, outcomes=said)

    def __len__(self) -> int:
        return len(self.confidence)

    def take(self, rows: Ints) -> Sample:
        """Return the images at the positions ``rows``, which may repeat."""
        parts = (getattr(self, field.name) for field in fields(self))
        return Sample(*(None if part is None else part[rows] for part in parts))  # type: ignore[arg-type]


def checked_probs(probs: ArrayLike, labels: ArrayLike) -> tuple[Floats, Ints]:
    """Return ``probs`` [N, C] as float64 and ``labels`` [N] as int64, or raise an error that names the fault."""
    table = np.asarray(probs, dtype=np.float64)
    check_table(table)
    return np.minimum(table, 1.0), checked_labels(labels, *table.shape)


def check_table(table: NDArray[np.floating]) -> None:
    """Raise an error if ``table`` is not a table of probabilities [N, C] with at least one image and one class."""
    if table.ndim != 2 or 0 in table.shape:
        raise InvalidOptionError(f"Probabilities of shape {table.shape} were given.", hint="Give [images, classes].")
    low, high = table.min(), table.max()  # NaN if any entry is NaN
    if not np.isfinite([low, high]).all():
        raise InvalidOptionError("Some probabilities are not finite.", hint="Leave failed images out.")
    if low < 0 or high > 1 + SUM_TOLERANCE or np.abs(table.sum(1) - 1).max() > SUM_TOLERANCE:
        raise InvalidOptionError(
            "The rows are not probabilities: entries lie in [0, 1] and each row sums to 1.",
            hint="Apply a softmax to logits; divide percentages by 100.",
        )


def checked_labels(labels: ArrayLike, images: int, classes: int) -> Ints:
    """Return ``labels`` [N] as int64: one whole number from 0 to ``classes`` - 1 for each of N ``images``."""
    truth = np.asarray(labels)
    with np.errstate(invalid="ignore"):  # NaN is no whole number
        whole = truth.dtype.kind in "iu" or np.array_equal(truth, truth.astype(np.int64))
    if not whole:
        raise InvalidOptionError("Labels are class indices.", hint="Give whole numbers from 0.")
    if truth.shape != (images,):
        raise InvalidOptionError(
            f"{truth.size} labels were given for {images} images.", hint="Give one label per image."
        )
    if truth.size and (truth.min() < 0 or truth.max() >= classes):
        raise InvalidOptionError(
            f"Labels run from {truth.min()} to {truth.max()}.",
            hint=f"For {classes} classes they lie in 0..{classes - 1}.",
        )
    return truth.astype(np.int64)


def checked_top(confidence: ArrayLike, correct: ArrayLike) -> tuple[Floats, Bools]:
    """Return ``confidence`` [N] in [0, 1] as float64 and ``correct`` [N] as bool."""
    values, hits = np.asarray(confidence, dtype=np.float64), np.asarray(correct)
    if values.ndim != 1 or values.size == 0 or hits.shape != values.shape:
        raise InvalidOptionError(
            f"Confidences of shape {values.shape} and outcomes of shape {hits.shape} were given.",
            hint="Give two vectors of the same length, at least 1.",
        )
    if not np.isfinite(values).all() or values.min() < 0 or values.max() > 1:
        raise InvalidOptionError("Some confidences are not in [0, 1].", hint="Divide percentages by 100.")
    if not np.isin(hits, (0, 1)).all():
        raise InvalidOptionError("Outcomes other than true and false were given.", hint="Give prediction == label.")
    return values, hits.astype(bool)


def checked_count(name: str, value: int) -> int:
    """Return ``value`` if it is a whole number of at least 1."""
    if int(value) != value or value < 1:
        raise InvalidOptionError(f"{name} = {value} was given.", hint="Give a whole number of at least 1.")
    return int(value)


def in_top(probs: ArrayLike, labels: ArrayLike, k: int = 5) -> Bools:
    """Return [N] whether the label is among the ``k`` most probable classes; of tied classes the first ranks higher.

    With k classes or fewer this is true for every image.
    """
    k = checked_count("k", k)
    table, truth = checked_probs(probs, labels)
    label_probs = np.take_along_axis(table, truth[:, None], axis=1)  # [N, 1]
    earlier = np.arange(table.shape[1]) < truth[:, None]  # [N, C]
    rank = (table > label_probs).sum(1) + ((table == label_probs) & earlier).sum(1)
    return np.asarray(rank < k)
