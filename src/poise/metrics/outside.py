"""How well a score tells images of known classes from out-of-distribution ones: AUROC and FPR95.

A score is higher for images that are more likely known. Equal scores are accepted or rejected together.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from poise.errors import InvalidOptionError
from poise.metrics.sample import Bools, Floats
from poise.metrics.selective import weighted_auroc

ACCEPTED = 0.95  # of the known images


def outside_auroc(score: ArrayLike, known: ArrayLike) -> float:
    """Return the probability that a known image has a higher score than another; equal scores count half.

    >>> outside_auroc([0.9, 0.8, 0.7, 0.7], [True, False, True, False])
    0.625
    """
    values, inside = _checked(score, known)
    return float(weighted_auroc(values, inside)(np.ones((1, len(values))))[0])


def fpr95(score: ArrayLike, known: ArrayLike) -> float:
    """Return the share of out-of-distribution images that are accepted if at least 95 % of the known ones are.

    >>> fpr95([0.9, 0.8, 0.7, 0.6], [True, False, True, False])
    0.5
    """
    values, inside = _checked(score, known)
    ranked = np.sort(values[inside])[::-1]
    threshold = ranked[int(np.ceil(ACCEPTED * len(ranked))) - 1]
    return float((values[~inside] >= threshold).mean())


def _checked(score: ArrayLike, known: ArrayLike) -> tuple[Floats, Bools]:
    values, inside = np.asarray(score, dtype=np.float64), np.asarray(known, dtype=bool)
    if values.shape != inside.shape or values.ndim != 1 or not np.isfinite(values).all():
        raise InvalidOptionError("Scores and images do not fit.", hint="Give one finite score for each image.")
    if inside.all() or not inside.any():
        raise InvalidOptionError("All images are known, or none is.", hint="Both kinds are needed.")
    return values, inside
