"""Calibration without images: from probabilities that any model gave, or from stored features."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import scipy  # imports scipy.special when it is first used
from numpy.typing import ArrayLike

from poise.calibration.applied import array_of
from poise.calibration.assess import Answers, assess
from poise.calibration.conditions import GIVEN, Conditions
from poise.calibration.feasible import check_number, several, warn_if_few
from poise.calibration.levels import failure
from poise.calibration.stored import Calibration
from poise.calibration.tree import Tree
from poise.errors import InvalidLabelsError, InvalidOptionError
from poise.metrics.sample import Floats, check_table, checked_labels
from poise.text import as_words

MAX_NUMBERS = 1 << 28  # images times labels: 2 GiB
METHOD = "given"


def calibrate_probabilities(
    probs: ArrayLike,
    truth: ArrayLike,
    *,
    labels: Sequence[str] | None = None,
    coverage: float | Sequence[float] = (),
    max_error: float | Sequence[float] = (),
    confidence: float = 0.95,
    parents: Mapping[str, str | None] | Sequence[str] = (),
) -> Calibration:
    """Calibrate the probabilities of any model; `Calibration.apply` then calibrates those of other images.

    Args:
        probs: probabilities [n, C] of n labelled images, drawn at random from those that are to be answered.
        truth: correct classes [n], as positions from 0.
        labels: names of the C classes; None for their positions.
        coverage: coverages of prediction sets that will be asked for; too few images are an error.
        max_error: shares of wrong answers that will be asked for; too few images are an error.
        confidence: probability with which certified thresholds hold.
        parents: a tree of the labels, as in `poise.Classifier`.

    Raises:
        InvalidOptionError: The arrays are no probabilities and classes.
        InvalidLabelsError: The labels are not C different names.
        InvalidCalibrationError: There are too few images.

    >>> probs, truth = [[0.9, 0.1], [0.2, 0.8], [0.6, 0.4]] * 10, [0, 1, 1] * 10
    >>> calibration = calibrate_probabilities(probs, truth, labels=["cat", "dog"])
    >>> calibration.apply([[0.6, 0.4]], coverage=0.9).sets.tolist()
    [[True, True]]
    """
    table = array_of("Probabilities", probs).astype(np.float64)
    check_table(table)
    names = _names(labels, table.shape[1])
    classes = checked_labels(array_of("Correct classes", truth), *table.shape)
    wanted: Any = {"coverage": several(coverage), "max_error": several(max_error), "confidence": confidence}
    check_number(len(table), methods=1, **wanted)
    warn_if_few(len(table))
    noise = np.random.Generator(np.random.Philox(0)).random(len(table))
    tree = Tree(names, parents) if parents else None
    paths = tree.paths if tree else ()
    conditions = Conditions(
        labels=names, parents=paths, model=GIVEN, template="", views=1, fingerprint=GIVEN, init_hash=""
    )
    keys = [f"row {at}" for at in range(len(table))]  # equal rows are different images
    answers = {METHOD: Answers({}, np.minimum(table, 1.0))}
    return assess(conditions, answers, classes, noise, keys, delta=failure(confidence), tree=tree)


def probabilities_of_logits(logits: ArrayLike) -> Floats:
    """Return the softmax [n, C] of logits [n, C].

    >>> probabilities_of_logits([[0.0, 1.0]]).round(3).tolist()
    [[0.269, 0.731]]
    """
    table = array_of("Logits", logits).astype(np.float64)
    if table.ndim != 2 or not np.isfinite(table).all():
        raise InvalidOptionError(
            f"Logits have the shape {table.shape}, or are not finite.", hint="Give [images, labels] of finite numbers."
        )
    return np.asarray(scipy.special.softmax(table, axis=1))


def probabilities_of_features(image: ArrayLike, text: ArrayLike, scale: float) -> Floats:
    """Return the zero-shot probabilities [n, C]: the softmax of ``scale`` times the cosines of the features.

    Args:
        image: features [n, D] of n images, of any length.
        text: features [C, D] of the labels' prompts, of any length.
        scale: the model's factor from cosine to logit, such as 100 for CLIP.

    >>> probabilities_of_features([[3.0, 4.0]], [[1.0, 0.0], [0.0, 2.0]], 10).round(3).tolist()
    [[0.119, 0.881]]
    """
    if isinstance(scale, bool) or not np.isfinite(scale) or scale <= 0:
        raise InvalidOptionError(f"The scale is {scale!r}.", hint="Give a positive number, such as 100 for CLIP.")
    images, texts = _units("Image features", image), _units("Text features", text)
    if images.shape[1] != texts.shape[1]:
        raise InvalidOptionError(
            f"Image features have {images.shape[1]} dimensions, and text features {texts.shape[1]}.",
            hint="Give features of one model: [images, dimensions] and [labels, dimensions].",
        )
    if len(images) * len(texts) > MAX_NUMBERS:
        raise InvalidOptionError(
            f"{len(images):,} images and {len(texts):,} labels give too many probabilities.",
            hint=f"Give at most {MAX_NUMBERS:,} in all.",
        )
    return probabilities_of_logits(scale * (images @ texts.T))


def _units(what: str, values: ArrayLike) -> Floats:
    """Return the rows of a table divided by their lengths."""
    table = array_of(what, values).astype(np.float64)
    if table.ndim != 2 or 0 in table.shape:
        raise InvalidOptionError(f"{what} have the shape {table.shape}.", hint="Give [rows, dimensions].")
    largest = np.abs(table).max(1, keepdims=True)  # so that squares neither overflow nor vanish
    if not np.isfinite(largest).all() or not largest.all():
        raise InvalidOptionError(
            f"{what} have rows that are zero or not finite.", hint="Leave images out that have no features."
        )
    table = table / largest
    return np.asarray(table / np.linalg.norm(table, axis=1, keepdims=True))


def _names(labels: Sequence[str] | None, classes: int) -> tuple[str, ...]:
    names = tuple(map(str, range(classes))) if labels is None else tuple(labels)
    if len(names) != classes or classes < 2:
        raise InvalidLabelsError(
            f"There are {len(names)} labels for {classes} columns of probabilities.",
            hint="Give one label per column, and at least two.",
        )
    if not all(isinstance(name, str) and name.strip() for name in names) or len(set(map(as_words, names))) < classes:
        raise InvalidLabelsError("Labels are empty or occur twice.", hint="Give a different name to each column.")
    return names
