"""Single panels: each function draws one quantity on one matplotlib axes, in colour-blind-safe colours."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.axes import Axes

from poise import metrics as rows
from poise.metrics import Bins, Estimate, RiskCoverage
from poise.report.analyses import Split
from poise.report.calibrated import LEVELS
from poise.report.looks import BLACK, BLUE, GREY, PALE, SKY, VERMILION, WHITE, look, marker
from poise.report.scores import printed, shown


def _legend(axes: Axes, columns: int = 1, *, below: bool = False) -> None:
    """Draw the legend outside the axes, where it covers nothing: above them, or ``below``."""
    legend = axes.legend(
        frameon=False, fontsize=7, ncols=columns, columnspacing=1.0, handlelength=1.6,
        loc="upper center" if below else "lower center", bbox_to_anchor=(0.5, 0.0 if below else 1.0),
    )  # fmt: skip
    if not below:
        axes.set_title(axes.get_title(), pad=8 + 12 * -(-len(legend.get_texts()) // columns))


def reliability(axes: Axes, below: Axes, bins: Bins) -> None:
    """Accuracy bars, the gap to the mean confidence hatched, empty bins greyed; the histogram of confidences below."""
    width, middle, filled = bins.upper - bins.lower, (bins.lower + bins.upper) / 2, bins.count > 0
    accuracy, confidence = bins.accuracy[filled], bins.confidence[filled]
    axes.bar(middle[~filled], 1.0, width[~filled], color=PALE, alpha=0.55, linewidth=0, zorder=0)
    axes.bar(middle[filled], accuracy, width[filled], color=BLUE, edgecolor=WHITE, linewidth=0.5, zorder=2)
    axes.bar(
        middle[filled], confidence - accuracy, width[filled], bottom=accuracy, color="none", edgecolor=VERMILION,
        hatch="////", linewidth=0.7, zorder=3,
    )  # fmt: skip
    axes.plot([0, 1], [0, 1], color=GREY, linestyle="--", linewidth=1, zorder=4)
    axes.set(xlim=(0, 1), ylim=(0, 1), ylabel="accuracy")
    total = bins.count.sum()
    below.bar(middle, bins.count / total, width, color=SKY, edgecolor=WHITE, linewidth=0.5)
    hits, sure = (np.nansum(bins.count * values) / total for values in (bins.accuracy, bins.confidence))
    below.axvline(hits, color=BLACK, linewidth=1.2, label=f"accuracy {hits:.2f}")
    below.axvline(sure, color=VERMILION, linewidth=1.2, linestyle="--", label=f"mean confidence {sure:.2f}")
    _legend(below, 2)
    below.set(xlim=(0, 1), xlabel="confidence", ylabel="share")


def confidence_histogram(axes: Axes, confidence: np.ndarray, correct: np.ndarray) -> None:
    """Confidence of correct and of wrong predictions, each with its mean; both are shares of all predictions."""
    edges = np.linspace(0, 1, 21).tolist()
    for hits, shade, name in ((correct, BLUE, "correct"), (~correct, VERMILION, "wrong")):
        values = confidence[hits]
        if len(values) == 0:
            continue
        label = f"{name}: mean {values.mean():.3f}, n {len(values)}"
        weights = np.full(len(values), 1 / len(confidence))
        axes.hist(values, edges, weights=weights, color=shade, alpha=0.55, label=label)
        axes.axvline(values.mean(), color=shade, linestyle="--", linewidth=1.3)
    axes.set(xlim=(0, 1), xlabel="confidence", ylabel="share of predictions")
    _legend(axes)


def paired_bars(axes: Axes, splits: Mapping[str, Split]) -> None:
    """A quantity on correct and wrong predictions side by side, method by method, with two standard errors."""
    at = np.arange(len(splits))
    for shift, side, colour, hatch in ((-0.2, "correct", BLUE, ""), (0.2, "wrong", VERMILION, "///")):
        values = [getattr(split, side) for split in splits.values()]
        errors = [2 * getattr(split, f"{side}_error") for split in splits.values()]
        axes.bar(at + shift, values, 0.38, yerr=errors, color=colour, hatch=hatch, label=side, edgecolor=WHITE,
                 linewidth=0.5, error_kw={"linewidth": 0.9, "ecolor": BLACK})  # fmt: skip
    axes.axhline(0, color=BLACK, linewidth=0.8)
    axes.set_xticks(at, list(splits), rotation=35, ha="right", rotation_mode="anchor")
    axes.set_ylabel("ΔH = H after - H before (nats)")
    _legend(axes, 2)


def shares(axes: Axes, values: Mapping[str, float]) -> None:
    """One horizontal bar per method, the percentage written at its end."""
    names = list(values)[::-1]
    axes.barh(names, [100 * values[name] for name in names], color=[look(name).colour for name in names], height=0.65)
    for at, name in enumerate(names):
        axes.text(100 * values[name], at, f" {100 * values[name]:.1f} %", va="center", fontsize=8)
    axes.set_xlim(0, max(1.0, 118 * max(values.values())))
    axes.set_xlabel("predictions of p_aug and plain view differ (%)")


def coverage(axes: Axes, curves: Mapping[str, np.ndarray], spread: np.ndarray) -> None:
    """Coverage minus the coverage that was asked for, one line per method, over the band of two standard deviations."""
    axes.fill_between(100 * LEVELS, -196 * spread, 196 * spread, color=PALE, linewidth=0)
    axes.axhline(0, color=GREY, linewidth=1)
    for name, values in curves.items():
        gap = 100 * (values - LEVELS)
        axes.plot(100 * LEVELS, gap, color=look(name).colour, linestyle=look(name).dash, label=name)
    axes.set(xlim=(50, 99), xlabel="coverage asked for (%)", ylabel="coverage minus that (points)")
    _legend(axes, 4)


def certified(axes: Axes, curves: Mapping[str, tuple[RiskCoverage, float, float]], promised: float) -> None:
    """One risk-coverage curve per method, with the point of its certified threshold, and the error promised."""
    axes.axhline(promised, color=GREY, linestyle="--", linewidth=1)
    for name, (curve, share, error) in curves.items():
        point = f"{100 * share:.0f} % answered, {100 * error:.1f} % wrong" if share else "none certified"
        _curve(axes, name, curve, f"{name}: {point}")
        if share:
            axes.plot(share, error, "D", color=look(name).colour, markersize=6, markeredgecolor=WHITE, zorder=5)
    axes.set(xlim=(0, 1), ylim=(0, None), xlabel="share answered", ylabel="risk (share of wrong answers)")
    _legend(axes, 2)


def _curve(axes: Axes, name: str, curve: RiskCoverage, label: str) -> None:
    thin = np.unique(np.linspace(0, len(curve.risk) - 1, 200).astype(int))  # more points only cost bytes
    at = curve.coverage[thin], curve.risk[thin]
    axes.plot(*at, color=look(name).colour, linestyle=look(name).dash, label=label)


def risk_coverage(axes: Axes, curves: Mapping[str, RiskCoverage], areas: Mapping[str, float]) -> None:
    """One curve per method: the error rate when only the most confident share is answered; areas are AURCs."""
    for name, curve in curves.items():
        _curve(axes, name, curve, f"{name} (AURC {printed('aurc', areas[name])} %)")
    axes.set(xlim=(0, 1), ylim=(0, None), xlabel="coverage", ylabel="risk (share of wrong answers)")
    _legend(axes, 2)


def embedding(axes: Axes, before: np.ndarray, after: np.ndarray, method: str, labels: Sequence[str]) -> None:
    """Class texts [C, 2] before and after tuning, joined by lines; names where there are few."""
    for start, end in zip(before, after, strict=True):
        axes.plot([start[0], end[0]], [start[1], end[1]], color=PALE, linewidth=0.8, zorder=1)
    axes.scatter(before[:, 0], before[:, 1], s=16, facecolors="none", edgecolors=GREY, label="before", zorder=2)
    axes.scatter(after[:, 0], after[:, 1], s=18, color=look(method).colour, label="after", zorder=3)
    if len(labels) <= 12:
        for name, (x, y) in zip(labels, after, strict=True):
            axes.annotate(name, (x, y), fontsize=6, xytext=(3, 3), textcoords="offset points")
    axes.set(xticks=[], yticks=[])
    axes.margins(0.12)
    _legend(axes, 2, below=True)


def estimates(axes: Axes, metric: str, scores: Mapping[str, Estimate], floor: str = "") -> None:
    """One dot per method with its 95 % confidence interval over images; the ``floor`` is written at the axis."""
    names = list(scores)[::-1]
    for at, name in enumerate(names):
        value, sides = _sides(metric, scores[name])
        axes.errorbar(value, at, xerr=sides, fmt=marker(name), color=look(name).colour, markersize=5, linewidth=1.5)
    row = rows.get(metric)
    axes.set_yticks(range(len(names)), names)
    axes.set_ylim(-0.6, len(names) - 0.4)
    below = ", ".join(filter(None, (f"{row.direction} is better" if row.direction else "", floor)))
    unit = {"percent": " (%)", "nats": " (nats)", "score": ""}[row.unit]
    axes.set_xlabel(f"{row.title}{unit}\n{below}")
    axes.grid(axis="x", color=PALE, linewidth=0.7)
    axes.set_axisbelow(True)


def tradeoff(axes: Axes, points: Mapping[str, tuple[Estimate, Estimate]], floor: str) -> None:
    """Accuracy against ECE, one point per method, with 95 % confidence intervals; up and to the left is better."""
    for name, (ece, accuracy) in points.items():
        x, x_sides = _sides("ece", ece)
        y, y_sides = _sides("accuracy", accuracy)
        axes.errorbar(x, y, xerr=x_sides, yerr=y_sides, fmt=marker(name), color=look(name).colour, elinewidth=0.8,
                      markersize=6, label=name)  # fmt: skip
    axes.set(xlabel=f"ECE (%), lower is better; {floor}", ylabel="accuracy (%), higher is better")
    _legend(axes, 4 if max(map(len, points), default=0) < 12 else 2)


def _sides(metric: str, score: Estimate) -> tuple[float, list[list[float]]]:
    """Return a value in the printed unit, and its distances to both ends of the 95 % confidence interval."""
    value, low, high = (shown(metric, number) for number in score.interval)
    return value, [[value - low], [high - value]]
