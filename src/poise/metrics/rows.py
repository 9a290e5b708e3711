"""One row per metric: how it is computed, and everything that a report says about it.

Tables, figures, the HTML page and the command line read the rows, so a metric that is registered at run time appears in
all of them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, TypeVar

import numpy as np
from numpy.typing import NDArray

from poise.errors import InvalidOptionError
from poise.metrics import calibration, decisions, floor, gap, independent, scoring, selective
from poise.metrics.sample import NO, YES, Bools, Floats, Ints, Sample, Weighted
from poise.registry import Registry

T = TypeVar("T")
_PARTS = {  # of a sample, by what a metric says that it needs
    "top": ("confidence", "correct"),
    "top5": ("top5",),
    "probs": ("probs", "labels"),
    "sets": ("set_sizes", "covered", "labels"),
    "answered": ("answered", "correct"),
    "answers": ("answered", "correct"),
    "tree": ("height",),
    "nodes": ("depth", "right"),
    "node answers": ("depth", "right"),
    "independent": ("chances", "has"),
    "outcomes": ("outcomes", "has"),
    "yes": ("outcomes", "has"),
    "labelled": ("outcomes", "has"),
}
_INDEPENDENT = ("independent", "outcomes", "yes", "labelled")  # these, and no others, are of independent labels
_VALUED: dict[str, Callable[[Sample], NDArray[Any] | None]] = {  # without any such entry, there is no value
    "answers": lambda sample: sample.answered,
    "node answers": lambda sample: sample.depth,
    "yes": lambda sample: None if sample.outcomes is None else sample.outcomes == YES,
    "labelled": lambda sample: sample.has,
    "independent": lambda sample: sample.has,
}
_NEEDS = {
    "top": "confidences",
    "top5": "the five most probable classes",
    "probs": "all probabilities and the labels",
    "sets": "prediction sets and the labels",
    "answered": "which images are answered",
    "answers": "at least one answered image",
    "tree": "a tree of the labels",
    "nodes": "answers with nodes of a tree",
    "node answers": "at least one answer with a node of a tree",
    "independent": "labels that apply independently, at least one of them to an image",
    "outcomes": "yes and no for labels that apply independently",
    "yes": "at least one yes for a label that applies independently",
    "labelled": "at least one image with a label that applies independently",
}


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
        needs: "top" (confidence and correctness), "top5", "probs" (all probabilities and the labels), "sets"
            (prediction sets and the labels), "answered" (which images are answered), "answers" (the same, and at least
            one image is answered), "tree", "nodes", "node answers" (answers with nodes of a tree, likewise), or, of
            labels that apply independently, "independent" (their probabilities), "outcomes" (yes and no), "yes" (at
            least one) or "labelled" (outcomes, and at least one image has a label).
        unit: "percent" is multiplied by 100 where it is shown.
        higher_is_better: the direction; None where neither is better, so that nothing is marked as best.
        digits: decimals in tables.
        floor: the name of the metric that reports print beside this one: the value that perfect predictions would
            have on average on as many images.
        p_value: of "the predictions are perfect in this respect", from a sample; reports print it beside the metric.
        trials: the number of images whose share the metric is; its interval for one seed, or for several with the same
            answers, is then Wilson's, which holds near 0 and 1 as well.
        signed: whether reports print a + before positive values.
    """

    name: str
    title: str
    about: str
    value: Callable[[Sample], float]
    weighted: Callable[[Sample], Weighted] | None = None
    needs: Literal[
        "top",
        "top5",
        "probs",
        "sets",
        "answered",
        "answers",
        "tree",
        "nodes",
        "node answers",
        "independent",
        "outcomes",
        "yes",
        "labelled",
    ] = "top"
    unit: Literal["percent", "nats", "score"] = "percent"
    higher_is_better: bool | None = False
    digits: int = 2
    floor: str = ""
    p_value: Callable[[Sample], float] | None = None
    trials: Callable[[Sample], int] | None = None
    signed: bool = False

    @property
    def direction(self) -> str:
        """Which values are better: "higher", "lower", or "" where neither is."""
        return {True: "higher", False: "lower", None: ""}[self.higher_is_better]

    def applies(self, sample: Sample) -> bool:
        """Return whether the sample has the parts that the metric reads; its value may be undefined all the same."""
        kind = (sample.has is not None) == (self.needs in _INDEPENDENT)
        return kind and all(getattr(sample, part) is not None for part in _PARTS[self.needs])

    def available(self, sample: Sample) -> bool:
        """Return whether the sample has what the metric needs."""
        return self.applies(sample) and (self.needs not in _VALUED or bool(np.any(_VALUED[self.needs](sample))))

    def on_counts(self, sample: Sample) -> Weighted:
        """Return the metric as a function of how often each image of ``sample`` counts: [R, N] -> [R]."""
        if not self.available(sample):
            raise InvalidOptionError(
                f"The metric '{self.name}' needs {_NEEDS[self.needs]}, which the sample does not contain.",
                hint=f"Available here: {', '.join(available(sample))}.",
            )
        if self.weighted is not None:
            return self.weighted(sample)
        images = np.arange(len(sample))
        return lambda counts: np.array(
            [self.value(sample.take(np.repeat(images, row.astype(np.int64)))) for row in counts]
        )


_registry = Registry[Metric]("metric", of=Metric)
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


def _covered(function: Callable[[Bools, Ints], T]) -> Callable[[Sample], T]:
    return lambda sample: function(_known(sample.covered), _known(sample.labels))


def _answered(function: Callable[[Bools, Bools], T]) -> Callable[[Sample], T]:
    return lambda sample: function(_known(sample.answered), sample.correct)


def _independent(function: Callable[[Any, Bools], Weighted], part: str = "chances") -> dict[str, Any]:
    """Return both forms of a metric of a table [N, C] and of which labels images have."""

    def weighted(sample: Sample) -> Weighted:
        return function(_known(getattr(sample, part)), _known(sample.has))

    return {"value": lambda sample: float(weighted(sample)(np.ones((1, len(sample))))[0]), "weighted": weighted}


def _node_error(sample: Sample) -> tuple[Bools, Bools]:
    return _known(sample.depth) > 0, _known(sample.right)


def _known(part: T | None) -> T:
    if part is None:
        raise InvalidOptionError(
            "The sample does not contain what the metric needs.",
            hint="Use Sample.of(probs, labels), or give the part by its name.",
        )
    return part


def _mean(part: Callable[[Sample], NDArray[Any] | None]) -> dict[str, Any]:
    """Return both forms of the mean of a part of the sample over images."""
    return {
        "value": lambda sample: float(_known(part(sample)).mean()),
        "weighted": lambda sample: scoring.weighted_mean(_known(part(sample))),
    }


for _metric in (
    Metric(
        name="accuracy",
        title="Acc.",
        about="Share of images whose most probable class is correct.",
        higher_is_better=True,
        trials=len,
        **_mean(lambda sample: sample.correct),
    ),
    Metric(
        name="top5",
        title="Top-5",
        about="Share of images whose class is among the five most probable.",
        needs="top5",
        higher_is_better=True,
        trials=len,
        **_mean(lambda sample: sample.top5),
    ),
    Metric(
        name="ece",
        title="ECE",
        about="Expected calibration error over 20 equal-width bins (lower, upper].",
        value=_top(calibration.ece),
        weighted=_top(calibration.weighted_ece),
        floor="ece_floor",
    ),
    Metric(
        name="ece_floor",
        title="ECE floor",
        higher_is_better=None,
        about="What perfectly calibrated answers with the same confidences would have as ECE, on average.",
        value=lambda sample: floor.ece_floor(sample.confidence),
        weighted=lambda sample: floor.weighted_ece_floor(sample.confidence),
    ),
    Metric(
        name="gap",
        title="Conf. - acc.",
        higher_is_better=None,
        about="Mean confidence minus accuracy: above 0 where answers are over-confident.",
        value=_top(gap.confidence_gap),
        weighted=lambda sample: scoring.weighted_mean(sample.confidence - sample.correct),
        p_value=_top(gap.gap_p_value),
        signed=True,
    ),
    Metric(
        name="sce",
        title="SCE",
        about="Class-wise calibration error over 20 bins, mean over classes.",
        needs="probs",
        value=_probs(calibration.sce),
        weighted=_probs(calibration.weighted_sce),
    ),
    Metric(
        name="aece",
        title="AECE",
        about="Calibration error over 20 bins of equal mass.",
        value=_top(calibration.adaptive_ece),
        weighted=_top(calibration.weighted_adaptive_ece),
    ),
    Metric(
        name="mce",
        title="MCE",
        about="Largest gap between accuracy and mean confidence in a bin.",
        value=_top(calibration.mce),
        weighted=_top(calibration.weighted_mce),
    ),
    Metric(
        name="nll",
        title="NLL",
        about="Negative log-likelihood in nats.",
        needs="probs",
        unit="nats",
        digits=3,
        value=_probs(scoring.nll),
        weighted=_probs(lambda probs, labels: scoring.weighted_mean(scoring.nll_per_image(probs, labels))),
    ),
    Metric(
        name="brier",
        title="Brier",
        about="Multi-class Brier score, 0 to 2.",
        needs="probs",
        unit="score",
        digits=3,
        value=_probs(scoring.brier),
        weighted=_probs(lambda probs, labels: scoring.weighted_mean(scoring.brier_per_image(probs, labels))),
    ),
    Metric(
        name="aurc",
        title="AURC",
        about="Area under the risk-coverage curve.",
        value=_top(selective.aurc),
        weighted=_top(selective.weighted_aurc),
    ),
    Metric(
        name="auroc",
        title="AUROC",
        higher_is_better=True,
        about="How often a correct answer is more confident than a wrong one; 50 if all are correct or all wrong.",
        value=_top(selective.auroc),
        weighted=_top(selective.weighted_auroc),
    ),
    Metric(
        name="coverage",
        title="Coverage",
        about="Share of images whose prediction set contains the class.",
        needs="sets",
        higher_is_better=None,
        trials=len,
        **_mean(lambda sample: sample.covered),
    ),
    Metric(
        name="classwise_coverage",
        title="Class cov.",
        about="Coverage of each class, mean over classes.",
        needs="sets",
        higher_is_better=None,
        value=_covered(lambda covered, labels: float(decisions.classwise_coverage(covered, labels).mean())),
        weighted=_covered(decisions.weighted_classwise_coverage),
    ),
    Metric(
        name="worst_coverage",
        title="Worst cov.",
        needs="sets",
        higher_is_better=True,
        about="Coverage of the class with the lowest; with few images per class it is low by chance.",
        value=_covered(lambda covered, labels: float(decisions.classwise_coverage(covered, labels).min())),
        weighted=_covered(partial(decisions.weighted_classwise_coverage, worst=True)),
    ),
    Metric(
        name="set_size",
        title="Set size",
        about="Mean number of classes in a prediction set.",
        needs="sets",
        unit="score",
        **_mean(lambda sample: sample.set_sizes),
    ),
    Metric(
        name="answered",
        title="Answered",
        about="Share of images whose confidence reaches the threshold.",
        needs="answered",
        higher_is_better=True,
        trials=len,
        **_mean(lambda sample: sample.answered),
    ),
    Metric(
        name="answered_error",
        title="Ans. error",
        needs="answers",
        higher_is_better=None,
        about="Share of wrong predictions among the answered images; no value where none is answered.",
        trials=lambda sample: int(_known(sample.answered).sum()),
        value=_answered(decisions.answered_error),
        weighted=_answered(decisions.weighted_answered_error),
    ),
    Metric(
        name="height",
        title="Steps up",
        about="With a tree: steps from the labels up to where the predicted and the correct one meet, on average.",
        needs="tree",
        unit="score",
        **_mean(lambda sample: sample.height),
    ),
    Metric(
        name="node_answered",
        title="Ans. nodes",
        about="With a tree: share of images that are answered with a label or a node above it.",
        needs="nodes",
        higher_is_better=True,
        trials=len,
        **_mean(lambda sample: _known(sample.depth) > 0),
    ),
    Metric(
        name="node_error",
        title="Node error",
        about="Share of wrong ones among these answers: nodes that the label is not below.",
        needs="node answers",
        higher_is_better=None,
        trials=lambda sample: int((_known(sample.depth) > 0).sum()),
        value=lambda sample: decisions.answered_error(*_node_error(sample)),
        weighted=lambda sample: decisions.weighted_answered_error(*_node_error(sample)),
    ),
    Metric(
        name="depth",
        title="Depth",
        about="Mean number of nodes from the root to these answers.",
        needs="node answers",
        unit="score",
        higher_is_better=True,
        value=lambda sample: decisions.answered_mean(_known(sample.depth)),
        weighted=lambda sample: decisions.weighted_answered_mean(_known(sample.depth)),
    ),
    Metric(
        name="map",
        title="mAP",
        about="Of independent labels: mean average precision over the labels that some image has.",
        needs="independent",
        higher_is_better=True,
        **_independent(independent.weighted_map),
    ),
    Metric(
        name="label_ece",
        title="Label ECE",
        about="Of independent labels: ECE of each label's probability over 20 bins, mean over labels.",
        needs="independent",
        floor="label_ece_floor",
        **_independent(independent.weighted_label_ece),
    ),
    Metric(
        name="label_ece_floor",
        title="Label ECE floor",
        about="What perfect probabilities of the labels would have as label ECE, on average.",
        needs="independent",
        higher_is_better=None,
        **_independent(lambda chances, has: independent.weighted_label_floor(chances)),
    ),
    Metric(
        name="label_brier",
        title="Label Brier",
        about="Of independent labels: Brier score of each label, 0 to 1, mean over labels.",
        needs="independent",
        unit="score",
        digits=4,
        **_mean(lambda sample: ((_known(sample.chances) - _known(sample.has)) ** 2).mean(1)),
    ),
    Metric(
        name="yes",
        title="Yes",
        about="Of independent labels: share of labels and images that get a yes.",
        needs="outcomes",
        higher_is_better=None,
        **_mean(lambda sample: (_known(sample.outcomes) == YES).mean(1)),
    ),
    Metric(
        name="no",
        title="No",
        about="Of independent labels: share of labels and images that get a no; the rest is unsure.",
        needs="outcomes",
        higher_is_better=None,
        **_mean(lambda sample: (_known(sample.outcomes) == NO).mean(1)),
    ),
    Metric(
        name="precision",
        title="Precision",
        about="Share of right ones among the yes of all labels.",
        needs="yes",
        higher_is_better=None,
        **_independent(independent.weighted_precision, "outcomes"),
    ),
    Metric(
        name="recall",
        title="Recall",
        about="Of the labels that images have, the share that gets yes or unsure.",
        needs="labelled",
        higher_is_better=None,
        **_independent(independent.weighted_recall, "outcomes"),
    ),
):
    register(_metric)
