"""Single panels: each function draws one quantity on one matplotlib axes, in colour-blind-safe colours."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes

from poise.metrics import Bins, RiskCoverage
from poise.report.analyses import Split
from poise.report.scores import Score, shown

# Okabe and Ito's palette
BLACK, ORANGE, SKY, GREEN, YELLOW, BLUE, VERMILION, PURPLE = (
    "#000000", "#E69F00", "#56B4E9", "#009E73", "#F0E442", "#0072B2", "#D55E00", "#CC79A7",
)  # fmt: skip
GREY, PALE = "#8A8A8A", "#E4E4E4"
COLOURS = {
    "zero-shot": BLACK, "tpt": VERMILION, "c-tpt": ORANGE, "o-tpt": PURPLE, "tpt+cats": SKY, "kld": GREEN,
    "kld+cats": BLUE,
}  # fmt: skip
DASHES = {"zero-shot": ":", "tpt": "-", "c-tpt": "--", "o-tpt": "-.", "tpt+cats": "--", "kld": "-.", "kld+cats": "-"}
_LEGEND: dict[str, Any] = {"frameon": True, "facecolor": "white", "framealpha": 0.85, "edgecolor": "none"}


def colour(method: str) -> str:
    """The method's colour in all figures; methods outside the paper are grey."""
    return COLOURS.get(method, GREY)


def reliability(axes: Axes, bins: Bins, ece: Score, method: str, n: str) -> None:
    """Accuracy bars, the gap to the mean confidence hatched, empty bins greyed; ECE and n are in the title."""
    width = bins.upper - bins.lower
    filled = bins.count > 0
    middle = (bins.lower + bins.upper) / 2
    accuracy, confidence = bins.accuracy[filled], bins.confidence[filled]
    axes.bar(middle[~filled], 1.0, width[~filled], color=PALE, alpha=0.55, linewidth=0, zorder=0)
    axes.bar(middle[filled], accuracy, width[filled], color=BLUE, edgecolor="white", linewidth=0.5, zorder=2)
    axes.bar(
        middle[filled], confidence - accuracy, width[filled], bottom=accuracy, color="none", edgecolor=VERMILION,
        hatch="////", linewidth=0.7, zorder=3,
    )  # fmt: skip
    axes.plot([0, 1], [0, 1], color=GREY, linestyle="--", linewidth=1, zorder=4)
    found = ece.interval
    value, low, high = (shown("ece", each) for each in (found.value, found.low, found.high))
    axes.set_title(f"{method}\nECE {value:.2f} % [{low:.2f}, {high:.2f}], n = {n}", fontsize=8)
    axes.set(xlim=(0, 1), ylim=(0, 1))
    axes.set_aspect("equal")


def counts(axes: Axes, bins: Bins) -> None:
    """The share of predictions in each bin, with lines at mean confidence and at accuracy."""
    total = bins.count.sum()
    middle, width = (bins.lower + bins.upper) / 2, bins.upper - bins.lower
    axes.bar(middle, bins.count / total, width, color=SKY, edgecolor="white", linewidth=0.5)
    hits, sure = np.nansum(bins.count * bins.accuracy) / total, np.nansum(bins.count * bins.confidence) / total
    axes.axvline(hits, color=BLACK, linewidth=1.2, label=f"accuracy {hits:.2f}")
    axes.axvline(sure, color=VERMILION, linewidth=1.2, linestyle="--", label=f"mean confidence {sure:.2f}")
    axes.legend(fontsize=6, loc="upper left", **_LEGEND, ncols=2)
    axes.set(xlim=(0, 1), ylim=(0, 1.45 * bins.count.max() / total))


def confidence_histogram(axes: Axes, confidence: np.ndarray, correct: np.ndarray) -> None:
    """Confidence of correct and of wrong predictions, each with its mean; both are shares of all predictions."""
    edges = np.linspace(0, 1, 21).tolist()
    for hits, shade, name in ((correct, BLUE, "correct"), (~correct, VERMILION, "wrong")):
        values = confidence[hits]
        if len(values) == 0:
            continue
        mean, weight = values.mean(), np.full(len(values), 1 / len(confidence))
        label = f"{name}: mean {mean:.3f}, n {len(values)}"
        axes.hist(values, edges, weights=weight, color=shade, alpha=0.55, label=label)
        axes.axvline(mean, color=shade, linestyle="--", linewidth=1.3)
    axes.set(xlim=(0, 1), ylim=(0, 1.35 * axes.get_ylim()[1]))
    axes.legend(fontsize=7, **_LEGEND, loc="upper left")


def paired_bars(axes: Axes, splits: Mapping[str, Split]) -> None:
    """A quantity on correct and wrong predictions side by side, method by method, with two standard errors."""
    at = np.arange(len(splits))
    right, wrong = [each.correct for each in splits.values()], [each.wrong for each in splits.values()]
    axes.bar(at - 0.2, right, 0.38, color=BLUE, label="correct",
             yerr=[2 * each.correct_error for each in splits.values()], error_kw={"linewidth": 0.8})  # fmt: skip
    axes.bar(at + 0.2, wrong, 0.38, color=VERMILION, label="wrong", hatch="///", edgecolor="white", linewidth=0.5,
             yerr=[2 * each.wrong_error for each in splits.values()], error_kw={"linewidth": 0.8})  # fmt: skip
    axes.axhline(0, color=BLACK, linewidth=0.8)
    axes.set_xticks(at, list(splits), rotation=35, ha="right")
    axes.legend(fontsize=7, **_LEGEND)


def shares(axes: Axes, values: Mapping[str, float]) -> None:
    """One horizontal bar a method, the percentage written at its end."""
    names = list(values)[::-1]
    axes.barh(names, [100 * values[name] for name in names], color=[colour(name) for name in names], height=0.65)
    for at, name in enumerate(names):
        axes.text(100 * values[name], at, f" {100 * values[name]:.1f} %", va="center", fontsize=8)
    axes.set_xlim(0, max(1.0, 118 * max(values.values())))


def risk_coverage(axes: Axes, curves: Mapping[str, RiskCoverage], areas: Mapping[str, float]) -> None:
    """One curve a method: the error rate when only the most confident share is answered; areas are AURCs."""
    for name, curve in curves.items():
        label = f"{name} (AURC {100 * areas[name]:.2f} %)"
        thin = np.unique(
            np.linspace(0, len(curve.risk) - 1, 400).astype(int)
        )  # more points than pixels only cost bytes
        axes.plot(
            curve.coverage[thin], curve.risk[thin], color=colour(name), linestyle=DASHES.get(name, "-"), label=label
        )
    axes.set(xlim=(0, 1), ylim=(0, None))
    axes.legend(fontsize=7, **_LEGEND)


def embedding(axes: Axes, before: np.ndarray, after: np.ndarray, method: str, labels: Sequence[str]) -> None:
    """Class texts [C, 2] before and after tuning, joined by lines; names where there are few."""
    for start, end in zip(before, after, strict=True):
        axes.plot([start[0], end[0]], [start[1], end[1]], color=PALE, linewidth=0.8, zorder=1)
    axes.scatter(before[:, 0], before[:, 1], s=16, facecolors="none", edgecolors=GREY, label="before", zorder=2)
    axes.scatter(after[:, 0], after[:, 1], s=18, color=colour(method), label="after", zorder=3)
    if len(labels) <= 12:
        for name, (x, y) in zip(labels, after, strict=True):
            axes.annotate(name, (x, y), fontsize=6, xytext=(3, 3), textcoords="offset points")
    axes.set(xticks=[], yticks=[])
    axes.legend(fontsize=7, **_LEGEND, loc="best")
