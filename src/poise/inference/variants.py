"""A classifier with other views or fewer methods, on the same model and without encoding labels twice."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from poise.tuning.episodic import EpisodicTuner

if TYPE_CHECKING:
    from poise.inference.classifier import Classifier


def with_views(classifier: Classifier[Any], views: int, seed: int | None = None) -> Classifier[Any]:
    """Return the classifier with other views and the same text features; it must have no calibration."""
    other = copy.copy(classifier)
    seed = classifier.options.seed if seed is None else seed
    other.options = replace(classifier.options, views=views, seed=seed)
    other._prepare(classifier.tuner)
    return other


def only(classifier: Classifier[Any], method: str) -> Classifier[Any]:
    """Return the classifier with one of its methods."""
    single = copy.copy(classifier)
    single.options = replace(classifier.options, method=(method,))
    single.methods = tuple(row for row in classifier.methods if row.name == method)
    single._prepare(classifier.tuner.only(method) if isinstance(classifier.tuner, EpisodicTuner) else None)
    return single
