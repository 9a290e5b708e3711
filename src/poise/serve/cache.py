"""Keeps the classifiers that were used last, so that a label set is encoded once for many requests."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from poise.inference.classifier import Classifier
from poise.inference.variants import with_views
from poise.serve.jobs import PlannedJob
from poise.serve.limits import Limits


class ClassifierCache:
    """Classifiers by job, bounded in number and in labels; thread-safe. Those that differ in views only share texts.

    Args:
        build: makes the classifier of a job. It only tokenises the labels: their text features are computed when the
            classifier is first used, and kept with it.
        limits: how much is kept.
    """

    def __init__(self, build: Callable[[PlannedJob], Classifier[Any]], limits: Limits) -> None:
        self._build, self._limits = build, limits
        self._kept: OrderedDict[PlannedJob, Classifier[Any]] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, job: PlannedJob) -> Classifier[Any]:
        """Return the classifier of a job; an error of its options is raised."""
        key = replace(job, details=False)  # which are chosen when images are classified
        with self._lock:
            if key in self._kept:
                self._kept.move_to_end(key)
                return self._kept[key]
            twin = next((self._kept[kept] for kept in self._kept if _texts(kept) == _texts(key)), None)
        views, seed = key.options.views, key.options.seed
        made = with_views(twin, views, seed) if twin and not key.calibrated else self._build(key)
        with self._lock:
            self._kept[key] = made
            while len(self._kept) > 1 and self._is_over():
                self._kept.popitem(last=False)
        return made

    def __len__(self) -> int:
        return len(self._kept)

    def _is_over(self) -> bool:
        labels = sum(len(texts.options.labels) for texts in {_texts(job) for job in self._kept})
        return len(self._kept) > self._limits.label_sets or labels > self._limits.cached_labels


def _texts(job: PlannedJob) -> PlannedJob:
    """Return what the text features of a job depend on: all but the views."""
    return replace(job, options=replace(job.options, views=1, seed=0))
