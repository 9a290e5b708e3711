"""Metrics of predictions under one seed or several, with bootstrap intervals."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from poise.errors import InvalidOptionError
from poise.metrics import rows
from poise.metrics.bootstrap import Interval, bounds, interval, replicate
from poise.metrics.checks import Floats
from poise.metrics.sample import Sample

ROUNDING = 1e-8  # a difference below this is one of rounding


@dataclass(frozen=True)
class Estimate:
    """A metric under several seeds: its value under each, and the mean over seeds on each resample of the images."""

    by_seed: tuple[float, ...]
    draws: Floats  # [R]

    @property
    def value(self) -> float:
        """The mean over seeds."""
        return float(np.mean(self.by_seed))

    @property
    def interval(self) -> Interval:
        """The mean over seeds with its 95 % percentile interval over images."""
        return interval(self.value, self.draws)

    @property
    def bounds(self) -> tuple[float, float]:
        """The 95 % interval of a difference, which may be negative."""
        return bounds(self.value, self.draws)

    @property
    def clear(self) -> bool:
        """For a difference: whether its 95 % confidence interval excludes 0."""
        low, high = self.bounds
        return low > ROUNDING or high < -ROUNDING

    def __sub__(self, other: Estimate) -> Estimate:
        """The paired difference of two estimates over the same images and resamples."""
        return Estimate.combined((self, other), (1.0, -1.0))

    @classmethod
    def mean(cls, parts: Sequence[Estimate]) -> Estimate:
        """The mean over datasets, seed by seed where all have the same number of seeds."""
        return cls.combined(parts, [1 / len(parts)] * len(parts))

    @classmethod
    def combined(cls, parts: Sequence[Estimate], weights: Sequence[float]) -> Estimate:
        """The weighted sum of ``parts``, seed by seed and resample by resample."""
        same = len({len(part.by_seed) for part in parts}) == 1
        values = np.array([part.by_seed if same else (part.value,) for part in parts])
        return cls(
            tuple((np.array(weights) @ values).tolist()), np.array(weights) @ np.array([part.draws for part in parts])
        )

    @property
    def std(self) -> float | None:
        """The sample standard deviation over seeds; None where there is one seed."""
        return float(np.std(self.by_seed, ddof=1)) if len(self.by_seed) > 1 else None


def estimate(
    samples: Sequence[Sample], *, names: Iterable[str] | None = None, resamples: int = 1000, seed: int = 0
) -> dict[str, Estimate]:
    """Metrics with bootstrap intervals: each one under every seed, and its mean over seeds on each resample.

    Args:
        samples: the same images in the same order under several seeds, or one sample. Each resample draws the same
            images in every sample, so its spread is that of the mean.
        names: the metrics; all that are available by default.
        resamples: how many.
        seed: of the resamples; estimates with the same seed over the same images can be subtracted.

    >>> found = estimate([Sample.of_top([0.9, 0.6], [True, False])], names=["ece"])["ece"]
    >>> round(found.value, 3), found.interval.level
    (0.35, 0.95)
    """
    if len({len(sample) for sample in samples}) != 1:
        raise InvalidOptionError(
            "Samples of different lengths were given.", hint="Give the same images for every seed."
        )
    chosen = {name: rows.get(name) for name in (rows.available(samples[0]) if names is None else names)}
    draws = {name: np.zeros(resamples) for name in chosen}
    for sample in samples:
        on_counts = {name: metric.on_counts(sample) for name, metric in chosen.items()}
        for name, drawn in replicate(on_counts, len(sample), resamples, seed).items():
            draws[name] += drawn / len(samples)
    return {
        name: Estimate(tuple(metric.value(sample) for sample in samples), draws[name])
        for name, metric in chosen.items()
    }
