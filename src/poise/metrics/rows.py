"""One row per metric: how it is computed, and everything that a report says about it.

Tables, figures, the HTML page and the command line read the rows, so a metric that is registered at run time appears in
all of them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, TypeVar

import numpy as np

from poise.errors import InvalidOptionError
from poise.metrics import calibration, scoring, selective
from poise.metrics.sample import Bools, Floats, Ints, Sample, Weighted
from poise.registry import Registry

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class Metric:
    """A number that summarises the predictions for N images.

    Args:
        name: what users type.
        title: heading in tables and figures.
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
    unit: Literal["percent", "nats", "score"] = "percent"
    higher_is_better: bool = False
    digits: int = 2

    def available(self, sample: Sample) -> bool:
        """Return whether the sample has what the metric needs."""
        return {"top": sample.confidence, "top5": sample.top5, "probs": sample.probs}[self.needs] is not None

    def on_counts(self, sample: Sample) -> Weighted:
        """Return the metric as a function of how often each image of ``sample`` counts: [R, N] -> [R]."""
        if not self.available(sample):
            raise InvalidOptionError(
                f"The metric '{self.name}' needs more than the top label, and the sample contains only that.",
                hint=f"Available here: {', '.join(available(sample))}. Keep all probabilities for the others.",
            )
        if self.weighted is not None:
            return self.weighted(sample)
        images = np.arange(len(sample))
        return lambda counts: np.array(
            [self.value(sample.take(np.repeat(images, row.astype(np.int64)))) for row in counts]
        )


_registry = Registry[Metric]("metric")
get, unregister = _registry.get, _registry.remove
names = _registry.names  # in the order in which tables show them


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


def available(sample: Sample) -> list[str]:
    """Return the names of the metrics that can be computed from the sample."""
    return [name for name in names() if get(name).available(sample)]


def _top(function: Callable[[Floats, Bools], T]) -> Callable[[Sample], T]:
    return lambda sample: function(sample.confidence, sample.correct)


def _probs(function: Callable[[Floats, Ints], T]) -> Callable[[Sample], T]:
    return lambda sample: function(_known(sample.probs), _known(sample.labels))


def _known(part: T | None) -> T:
    if part is None:
        raise InvalidOptionError("The sample contains only the top label.", hint="Use Sample.of(probs, labels).")
    return part


for _metric in (
    Metric(name="accuracy", title="Acc.", about="Share of images whose most probable class is correct.",
           higher_is_better=True, value=lambda sample: float(sample.correct.mean()),
           weighted=lambda sample: scoring.weighted_mean(sample.correct)),
    Metric(name="top5", title="Top-5", about="Share of images whose class is among the five most probable.",
           needs="top5", higher_is_better=True, value=lambda sample: float(_known(sample.top5).mean()),
           weighted=lambda sample: scoring.weighted_mean(_known(sample.top5))),
    Metric(name="ece", title="ECE", about="Expected calibration error over 20 equal-width bins (lower, upper].",
           value=_top(calibration.ece), weighted=_top(calibration.weighted_ece)),
    Metric(name="sce", title="SCE", about="Class-wise calibration error over 20 bins, mean over classes.",
           needs="probs", value=_probs(calibration.sce), weighted=_probs(calibration.weighted_sce)),
    Metric(name="aece", title="AECE", about="Calibration error over 20 bins of equal mass.",
           value=_top(calibration.adaptive_ece), weighted=_top(calibration.weighted_adaptive_ece)),
    Metric(name="mce", title="MCE", about="Largest gap between accuracy and mean confidence in a bin.",
           value=_top(calibration.mce), weighted=_top(calibration.weighted_mce)),
    Metric(name="nll", title="NLL", about="Negative log-likelihood in nats.", needs="probs", unit="nats", digits=3,
           value=_probs(scoring.nll),
           weighted=_probs(lambda probs, labels: scoring.weighted_mean(scoring.nll_per_image(probs, labels)))),
    Metric(name="brier", title="Brier", about="Multi-class Brier score, 0 to 2.", needs="probs", unit="score", digits=3,
           value=_probs(scoring.brier),
           weighted=_probs(lambda probs, labels: scoring.weighted_mean(scoring.brier_per_image(probs, labels)))),
    Metric(name="aurc", title="AURC", about="Area under the risk-coverage curve.",
           value=_top(selective.aurc), weighted=_top(selective.weighted_aurc)),
):  # fmt: skip
    register(_metric)
