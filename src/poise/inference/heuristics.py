"""What can be said about an answer without a labelled image. Each of these numbers is heuristic (docs/unknown.md)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from torch import Tensor

from poise.errors import InvalidLabelsError, InvalidOptionError

UNKNOWN = "unknown"  # the label of images that are rejected
_TINY = 1e-300  # probabilities of 0 are raised to this
_LARGEST = 2.0  # the largest difference between two cosines


def match(logits: np.ndarray, scale: float, bias: float = 0.0) -> float:
    """Return how much better the image matches its best label than the labels on average, in units of the cosine.

    This is log(C * MCM), where MCM is the largest of the C probabilities that a softmax gives at temperature 1 on the
    cosines (maximum concept matching, Ming et al., 2022). Under the same labels both order images alike, but ``match``
    does not shrink as labels are added. It lies between 0 (all labels match equally, or there is only one) and 2.

    Args:
        logits: of the plain view [C]: scale * cosine + bias; or their log-softmax.
        scale: the model's factor from cosine to logit.
        bias: the model's bias, which cancels out; it is subtracted because a large one costs digits.

    >>> round(match(np.array([30.0, 20.0, 20.0]), 100.0, 0.0), 4)
    0.0655
    """
    cosines = (np.asarray(logits, dtype=np.float64) - bias) / scale
    best = cosines.max()
    return float(-np.log(np.exp(cosines - best).mean()))


def match_of(init_probs: np.ndarray, scale: float) -> float:
    """Return `match` of the probabilities [C] under the initial prompt."""
    return match(np.log(np.maximum(init_probs, _TINY)), scale)


def tensor_matches(init_probs: Tensor, scale: float) -> Tensor:
    """Return `match_of` for each row of [B, C], on its device."""
    cosines = init_probs.clamp_min(_TINY).log() / scale
    return -(cosines - cosines.amax(-1, keepdim=True)).exp().mean(-1).log()


def check_reject(reject: object, labels: Sequence[str]) -> float | None:
    """Return ``reject`` as a float; raise an error if these labels, or this number, can't be used with it."""
    if reject is None:
        return None
    if isinstance(reject, bool) or not isinstance(reject, int | float) or not 0 < reject < _LARGEST:
        hint = f"Use a number above 0 and below {_LARGEST:g}, such as a low quantile of `match` on your own images."
        raise InvalidOptionError(f"reject is {reject!r}.", hint=f"{hint} No number suits all labels and models.")
    taken = [label for label in labels if label.strip().casefold() == UNKNOWN]
    if taken:
        hint = f"With `reject`, '{UNKNOWN}' is the label of images that match none of the labels: rename the class."
        raise InvalidLabelsError(f"{taken[0]!r} is one of the labels.", hint=hint)
    if len(labels) == 1:
        hint = "The match is relative to the other labels: give more, or leave `reject` out."
        raise InvalidLabelsError(f"{labels[0]!r} is the only label.", hint=hint)
    return float(reject)
