"""All metrics of one prediction set in one call, each with its bootstrap interval."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from poise.errors import InvalidOptionError, UnknownNameError
from poise.metrics import bootstrap
from poise.metrics.accuracy import in_top
from poise.metrics.binning import Bins, equal_width
from poise.metrics.bootstrap import Interval, Weighted
from poise.metrics.checks import Bools, Floats, Ints, checked_probs, checked_top
from poise.metrics.scoring import brier_each, nll_each

NAMES = ("accuracy", "top5", "ece", "sce", "aece", "mce", "nll", "brier", "aurc")
NEED_PROBS = frozenset({"sce", "nll", "brier"})


@dataclass(frozen=True)
class Sample:
    """What the metrics read; ``probs`` and ``labels`` are missing where only the top label was kept."""

    confidence: Floats  # [N]
    correct: Bools  # [N]
    top5: Bools | None = None  # [N]
    probs: Floats | None = None  # [N, C]
    labels: Ints | None = None  # [N]

    @classmethod
    def of(cls, probs: ArrayLike, labels: ArrayLike) -> Sample:
        """The sample of full probabilities [N, C]."""
        table, truth = checked_probs(probs, labels)
        return cls(table.max(1), table.argmax(1) == truth, in_top(table, truth, 5), table, truth)

    @classmethod
    def of_top(cls, confidence: ArrayLike, correct: ArrayLike, top5: Bools | None = None) -> Sample:
        """The sample of top-label confidences alone."""
        values, hits = checked_top(confidence, correct)
        return cls(values, hits, top5)

    def __len__(self) -> int:
        return len(self.confidence)

    def available(self) -> tuple[str, ...]:
        """The metrics that can be computed from what is there."""
        missing = set(NEED_PROBS) if self.probs is None else set()
        if self.top5 is None:
            missing.add("top5")
        return tuple(name for name in NAMES if name not in missing)

    def weighted(self, name: str, bins: int = 20) -> Weighted:
        """The metric ``name`` as a function of how often each image counts."""
        if name not in NAMES:
            raise UnknownNameError.of("metric", name, NAMES)
        if name not in self.available():
            raise InvalidOptionError(f"The metric '{name}' was asked for, but only the top label is known.",
                                hint=f"Available here: {', '.join(self.available())}.")  # fmt: skip
        if name in ("ece", "aece", "mce"):
            make = {"ece": bootstrap.ece_of, "aece": bootstrap.adaptive_ece_of, "mce": bootstrap.mce_of}[name]
            return make(self.confidence, self.correct, bins)
        if name == "aurc":
            return bootstrap.aurc_of(self.confidence, self.correct)
        if name == "accuracy":
            return bootstrap.mean_of(self.correct)
        if name == "top5" and self.top5 is not None:
            return bootstrap.mean_of(self.top5)
        return self._of_probs(name, bins)

    def _of_probs(self, name: str, bins: int) -> Weighted:
        if self.probs is None or self.labels is None:
            raise InvalidOptionError(
                f"The metric '{name}' needs all probabilities and the labels.", hint="Use Sample.of."
            )
        if name == "sce":
            return bootstrap.sce_of(self.probs, self.labels, bins)
        each = nll_each if name == "nll" else brier_each
        return bootstrap.mean_of(each(self.probs, self.labels))


@dataclass(frozen=True)
class Summary:
    """Metrics as fractions (NLL in nats), with intervals and the bins behind the ECE."""

    n: int
    metrics: dict[str, Interval]
    bins: Bins

    def __getitem__(self, name: str) -> Interval:
        return self.metrics[name]


def summarise(
    sample: Sample, *, names: Iterable[str] | None = None, bins: int = 20, resamples: int = 1000, seed: int = 0
) -> Summary:
    """``names`` (default: all that are available) with 95 % intervals."""
    metrics = mean_over_seeds([sample], names=names, bins=bins, resamples=resamples, seed=seed)
    return Summary(len(sample), metrics, equal_width(sample.confidence, sample.correct, bins))


def mean_over_seeds(
    samples: Sequence[Sample],
    *,
    names: Iterable[str] | None = None,
    bins: int = 20,
    resamples: int = 1000,
    seed: int = 0,
) -> dict[str, Interval]:
    """The mean of each metric over ``samples`` with its interval; see :func:`draws_over_seeds`."""
    drawn = draws_over_seeds(samples, names=names, bins=bins, resamples=resamples, seed=seed)
    return {name: bootstrap.interval(value, replicates) for name, (value, replicates) in drawn.items()}


def draws_over_seeds(
    samples: Sequence[Sample],
    *,
    names: Iterable[str] | None = None,
    bins: int = 20,
    resamples: int = 1000,
    seed: int = 0,
) -> dict[str, tuple[float, Floats]]:
    """The mean of each metric over ``samples``, and the same mean on each resample [R].

    The samples hold the same images in the same order under several seeds. Each resample draws the same images in every
    sample, so its spread is that of the mean.
    """
    if len({len(sample) for sample in samples}) != 1:
        raise InvalidOptionError(
            "Samples of different lengths were given.", hint="Give the same images for every seed."
        )
    chosen = tuple(names) if names is not None else samples[0].available()
    count = len(samples[0])
    values = {name: 0.0 for name in chosen}
    spread = {name: np.zeros(resamples) for name in chosen}
    for sample in samples:
        weighted = {name: sample.weighted(name, bins) for name in chosen}
        drawn = bootstrap.replicate(weighted, count, resamples, seed)
        for name in chosen:
            values[name] += float(weighted[name](np.ones((1, count)))[0]) / len(samples)
            spread[name] += drawn[name] / len(samples)
    return {name: (values[name], spread[name]) for name in chosen}
