"""Confidences of unlabelled images, for the plan of which to label."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import numpy as np

from poise.errors import InvalidOptionError
from poise.inference.answers import of_image
from poise.inference.calibrating import Watched, unwatched
from poise.metrics.sample import Floats
from poise.results import Failure

if TYPE_CHECKING:
    from poise.inference.classifier import Classifier


def confidences(
    classifier: Classifier[Any], images: Iterable[Any], total: int = 0, *, watched: Watched = unwatched
) -> tuple[list[int], Floats]:
    """Return positions of the images with an answer, without copies, and their confidences before calibration.

    Args:
        classifier: with one method.
        images: sources; none of them is kept.
        total: their number; 0 if it is not known.
        watched: shows progress.
    """
    if len(classifier.methods) != 1:
        raise InvalidOptionError(
            f"{len(classifier.methods)} methods were given.",
            hint="Give one: a cut-off is of the confidences of one method.",
        )
    seen: set[str] = set()
    kept, values = [], []
    for at, outcome in enumerate(watched(classifier.predictions(images), total)):
        if not isinstance(outcome, Failure) and (answer := of_image(outcome)).key not in seen:
            seen.add(answer.key)
            kept.append(at)
            values.append(float(answer.probs.max()))
    return kept, np.array(values)
