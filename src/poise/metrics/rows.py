"""A metric is one row: how it is computed, and everything that a report says about it.

A row stands in the file that defines its metric. Tables, figures, the HTML page and the command line read the rows, so
a metric that is registered at run time appears in all of them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import numpy as np

from poise.errors import InvalidOptionError
from poise.metrics.checks import Bools, Floats
from poise.metrics.sample import Sample
from poise.registry import Registry

Weighted = Callable[[Floats], Floats]  # [R, N] counts -> [R] values
Unit = Literal["percent", "nats", "score"]


@dataclass(frozen=True, kw_only=True)
class Metric:
    """A number that summarises the predictions for N images.

    Args:
        name: what users type.
        title: the heading in tables and figures.
        about: one sentence for readers of a report.
        value: the metric of a sample, as a fraction where ``unit`` is "percent".
        weighted: the same metric as a function of how often each image counts, for the bootstrap: it takes a sample and
            returns a function from counts [R, N] to values [R]. Without it ``value`` is called on every resample,
            which gives the same numbers more slowly.
        needs: "top" (confidence and correctness), "top5" or "probs" (all probabilities and the labels).
        unit: "percent" is multiplied by 100 where it is shown.
        higher_is_better: the direction.
        digits: decimals in tables.
    """

    name: str
    title: str
    about: str
    value: Callable[[Sample], float]
    weighted: Callable[[Sample], Weighted] | None = None
    needs: Literal["top", "top5", "probs"] = "top"
    unit: Unit = "percent"
    higher_is_better: bool = False
    digits: int = 2

    def available(self, sample: Sample) -> bool:
        """Whether the sample has what the metric needs."""
        given = {"top": sample.confidence, "top5": sample.top5, "probs": sample.probs}
        return given[self.needs] is not None

    def on_counts(self, sample: Sample) -> Weighted:
        """The metric as a function of how often each image of ``sample`` counts: [R, N] -> [R]."""
        if not self.available(sample):
            known = ", ".join(available(sample))
            raise InvalidOptionError(
                f"The metric '{self.name}' was asked for, but only the top label is known.",
                hint=f"Available here: {known}. Keep all probabilities for the others.",
            )
        if self.weighted is not None:
            return self.weighted(sample)
        images = np.arange(len(sample))
        return lambda counts: np.array(
            [self.value(sample.take(np.repeat(images, row.astype(np.int64)))) for row in counts]
        )


_registry = Registry[Metric]("metric")


def register(metric: Metric) -> Metric:
    """Make a metric known to tables, figures, the page and the command line.

    >>> from poise import metrics
    >>> row = metrics.Metric(name="wrong", title="Wrong", about="Share of wrong predictions.",
    ...                      value=lambda sample: 1 - float(sample.correct.mean()))
    >>> metrics.register(row).value(metrics.Sample.of_top([0.9, 0.8], [True, False]))
    0.5
    >>> metrics.unregister("wrong")
    """
    return _registry.add(metric.name)(metric)


def unregister(name: str) -> None:
    """Forget a metric."""
    _registry.remove(name)


def get(name: str) -> Metric:
    """The metric called ``name``, or an error with the nearest name."""
    return _registry.get(name)


def names() -> list[str]:
    """All metrics, in the order in which tables show them."""
    return _registry.names()


def available(sample: Sample) -> list[str]:
    """The metrics that can be computed from what the sample has."""
    return [name for name in names() if get(name).available(sample)]


def mean_of(each: Floats | Bools) -> Weighted:
    """The weighted form of a mean over images: accuracy, top-5, NLL, Brier."""
    column = np.asarray(each, dtype=np.float64)
    return lambda counts: np.asarray(counts @ column / len(column))
