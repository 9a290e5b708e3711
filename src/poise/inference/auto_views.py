"""Chooses the fewest views whose answers agree with those of 64 views, on images without labels.

Numbers of views are tested from high to low, and the first failure ends the sequence, so no correction for several
tests is needed. A number passes if two upper confidence bounds over images are small: of the share of images whose
label differs from that under 64 views (Clopper-Pearson), and of the mean absolute change of the confidence (Student's
t). With several methods, all must pass. The views of an image are nested, the first 8 of 64 are those of 8, so that the
sample is encoded once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import scipy  # imports scipy.special when it is first used
import torch
from torch import Tensor

from poise.calibration import upper_bound
from poise.defaults import PAPER_VIEWS
from poise.errors import InvalidOptionError
from poise.inference.predictor import Predictor
from poise.methods import Method
from poise.metrics.sample import Floats
from poise.results import Failure

if TYPE_CHECKING:
    from poise.inference.classifier import Classifier

FULL = PAPER_VIEWS
CANDIDATES = (32, 16, 8, 4)
FEWEST, MOST = 60, 100  # images of a sample: fewer can't show that 95 % of the labels agree; more cost time
DELTA = 0.05  # probability with which a bound is exceeded
LABELS = 0.05  # share of images whose label may differ
CONFIDENCE = 0.03  # mean absolute change of the confidence


@dataclass(frozen=True)
class Agreement:
    """How the answers under fewer views agree with those under 64; the worst over the methods.

    Attributes:
        views: the number of views.
        labels: share of images whose label differs, and its upper bound.
        confidence: mean absolute change of the confidence, and its upper bound.
    """

    views: int
    labels: tuple[float, float]
    confidence: tuple[float, float]

    @property
    def good(self) -> bool:
        """Whether both bounds are small enough."""
        return self.labels[1] <= LABELS and self.confidence[1] <= CONFIDENCE


@dataclass(frozen=True)
class ViewChoice:
    """The result of `choose_views`.

    Attributes:
        views: the number of views.
        images: size of the sample.
        tested: what was compared, from high to low.
    """

    views: int
    images: int
    tested: tuple[Agreement, ...]

    @property
    def reason(self) -> str:
        """What was found, in one sentence."""
        chosen = next((row for row in self.tested if row.views == self.views), None)
        if chosen is None:
            return f"{self.views} views, because fewer change the answers to these {self.images} images too much."
        saved = f"{100 * (1 - self.views / FULL):.0f} % of the image tower's work is saved"
        return (
            f"{self.views} views instead of {FULL}: {saved}. On {self.images} images, {100 * chosen.labels[0]:.1f} % "
            f"of the labels differ (at most {100 * chosen.labels[1]:.1f} %), and confidences change by "
            f"{chosen.confidence[0]:.3f} on average (at most {chosen.confidence[1]:.3f})."
        )


def choose_views(classifier: Classifier[Any], images: Sequence[Any]) -> ViewChoice:
    """Return the fewest views of 4, 8, 16, 32 and 64 whose answers agree with those of 64 views.

    Args:
        classifier: with any number of views.
        images: images like those to be classified, at least 60, without labels. At most 100 of them are used, evenly
            spaced.

    Raises:
        InvalidOptionError: There are too few images.
    """
    reading = [method for method in classifier.methods if method.reads_views]
    if not reading:
        return ViewChoice(1, 0, ())  # the plain view alone is used
    if classifier.groups:
        raise InvalidOptionError("views='auto' is not possible with groups of labels.", hint="Give a number of views.")
    if classifier.tuner.reads == "views":
        raise InvalidOptionError("views='auto' is not possible with image prompts.", hint="Give a number of views.")
    if len(images) < FEWEST:
        raise _too_few(len(images))
    chosen = [images[at] for at in np.linspace(0, len(images) - 1, min(MOST, len(images))).round().astype(int)]
    predictor = Predictor(classifier.encoder, classifier.tuner, replace(classifier.recipe, views=FULL))
    features = [row for row in predictor.features(chosen) if not isinstance(row, Failure)]
    if len(features) < FEWEST:
        raise _too_few(len(features))
    names, views = [method.name for method in reading], torch.stack(features)  # [N, 64, D]
    return decide({count: _answers(predictor, views[:, :count], names) for count in (FULL, *_allowed(reading))})


def _too_few(count: int) -> InvalidOptionError:
    return InvalidOptionError(
        f"views='auto' has {count} readable images to decide on.", hint=f"Give {FEWEST} or more, or a number of views."
    )


def _allowed(methods: Sequence[Method]) -> list[int]:
    """Return the numbers of views that all methods accept."""

    def fits(count: int) -> bool:
        try:
            for method in methods:
                method.check_views(count)
        except InvalidOptionError:
            return False
        return True

    return [count for count in CANDIDATES if fits(count)]


def _answers(predictor: Predictor, features: Tensor, names: Sequence[str]) -> Floats:
    """Return the probabilities [methods, N, C] of images with the features [N, V, D]; NaN if they are not finite."""
    rows = list(predictor.answer(features))
    classes = next((len(row[names[0]].probs) for row in rows if row is not None), 1)
    missing = np.full(classes, np.nan)
    return np.array([[missing if row is None else row[name].probs for row in rows] for name in names])


def decide(answers: dict[int, Floats]) -> ViewChoice:
    """Return the choice for probabilities [methods, N, C] by number of views, 64 first, then from high to low."""
    (full, reference), *fewer = answers.items()
    tested: list[Agreement] = []
    for count, probs in fewer:
        tested.append(_compare(count, probs, reference))
        if not tested[-1].good:
            break
    good = [row.views for row in tested if row.good]
    return ViewChoice(min(good, default=full), reference.shape[1], tuple(tested))


def _compare(count: int, probs: Floats, reference: Floats) -> Agreement:
    images = probs.shape[1]
    differs = (probs.argmax(-1) != reference.argmax(-1)).sum(1).max()  # of the worst method
    changes = np.abs(probs.max(-1) - reference.max(-1))  # [methods, N]
    means, errors = changes.mean(1), changes.std(1, ddof=1) / np.sqrt(images)
    bounds = means + scipy.special.stdtrit(images - 1, 1 - DELTA) * errors
    worst = int(bounds.argmax())
    return Agreement(
        count,
        (float(differs / images), float(upper_bound(differs, images, DELTA))),
        (float(means[worst]), float(bounds[worst])),
    )
