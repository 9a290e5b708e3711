"""A classifier with scikit-learn's interface: for its tools, and for others that accept estimators, such as MAPIE."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np

from poise.backbones import load_model
from poise.defaults import DEFAULT_METHOD, DEFAULT_MODEL, DEFAULT_VIEWS
from poise.errors import InvalidLabelsError, InvalidOptionError, MissingDependencyError
from poise.inference.classifier import Classifier

try:
    from sklearn.base import BaseEstimator, ClassifierMixin
    from sklearn.utils.validation import check_is_fitted
except ImportError:  # pragma: no cover - the tests have it
    raise MissingDependencyError.of("poise.sklearn", "scikit-learn", "sklearn") from None


class ZeroShotClassifier(ClassifierMixin, BaseEstimator):  # type: ignore[misc]  # scikit-learn has no types
    """A zero-shot classifier of images as an estimator.

    ``X`` is a list of images as `poise.Classifier` reads them (paths, PIL images, arrays [H, W, 3]), an array of paths
    [N] or [N, 1], or an array of images [N, H, W, 3]. ``y`` has class names.

    Args:
        labels: class names; None takes the names in ``y``.
        model: a name from `poise.list_models`.
        method: a name from `poise.list_methods`.
        views: views per image.
        template: prompt with ``{}`` for the label.
        calibrate: `fit` calibrates probabilities with its images, about 100 or more; otherwise it learns names only.
        device: where to compute.
        seed: seed of the random views.

    Attributes:
        classes_: the class names, sorted; the columns of `predict_proba`.
        classifier_: the `poise.Classifier`.

    Example:
        >>> images = np.zeros((2, 32, 32, 3), np.uint8)
        >>> estimator = ZeroShotClassifier(["cat", "dog"], model="tiny", views=2, device="cpu").fit(images)
        >>> estimator.predict_proba(images).shape, estimator.classes_.tolist()
        ((2, 2), ['cat', 'dog'])
    """

    def __init__(
        self,
        labels: Sequence[str] | None = None,
        *,
        model: str = DEFAULT_MODEL,
        method: str = DEFAULT_METHOD,
        views: int = DEFAULT_VIEWS,
        template: str | None = None,
        calibrate: bool = False,
        device: str = "auto",
        seed: int = 0,
    ) -> None:
        self.labels = labels
        self.model = model
        self.method = method
        self.views = views
        self.template = template
        self.calibrate = calibrate
        self.device = device
        self.seed = seed

    def fit(self, X: Any, y: Any = None) -> ZeroShotClassifier:
        """Learn the class names; with ``calibrate``, also calibrate probabilities with labelled images."""
        names = self.labels if self.labels is not None else y
        if names is None:
            raise InvalidLabelsError("Neither labels nor y were given.", hint="Give class names as labels, or y.")
        self.classes_ = np.unique([str(name) for name in np.asarray(names, dtype=object).ravel()])
        encoder = load_model(self.model, device=self.device)
        given: dict[str, Any] = {
            "views": self.views,
            "template": self.template,
            "device": self.device,
            "seed": self.seed,
        }
        make = partial(Classifier, self.classes_.tolist(), encoder, self.method, **given)
        made = make()
        if self.calibrate:
            if y is None:
                raise InvalidOptionError("calibrate=True needs y.", hint="Give the class names of the images.")
            found = made.calibrate(_images(X), [str(name) for name in np.asarray(y, dtype=object).ravel()])
            made = make(calibration=found)
        self.classifier_ = made
        return self

    def predict_proba(self, X: Any) -> np.ndarray:
        """Return the probabilities [N, C], columns in the order of ``classes_``."""
        check_is_fitted(self)
        return np.asarray(self.classifier_.predict_proba(_images(X)), dtype=np.float64)

    def predict(self, X: Any) -> np.ndarray:
        """Return the most probable class of each image."""
        probabilities = self.predict_proba(X)
        return np.asarray(self.classes_[probabilities.argmax(1)])

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.two_d_array, tags.input_tags.string = False, True
        tags.no_validation = True  # images are read by poise, which says what is wrong with them
        tags.target_tags.required = False
        return tags


def _images(images: Any) -> list[Any]:
    """Return a list of images from what scikit-learn passes on, which may be an array of paths with one column."""
    if isinstance(images, np.ndarray) and images.dtype.kind in "OUS":
        return [str(one) if isinstance(one, str | np.str_) else one for one in images.ravel()]
    if isinstance(images, np.ndarray) and images.ndim != 4:
        raise InvalidOptionError(
            f"An array of shape {images.shape} was given.", hint="Accepted: paths [N] or [N, 1], images [N, H, W, 3]."
        )
    return list(images)
