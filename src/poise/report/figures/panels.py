"""Single panels: each function draws one quantity on one matplotlib axes, in colour-blind-safe colours.

No panel has a legend: `poise.report.figures.plot.KeyEntry` says what the marks stand for, outside the axes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import product

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from poise import metrics as rows
from poise.metrics import Bins, Estimate, RiskCoverage
from poise.report.colours import (
    BETTER,
    BLACK,
    BLUE,
    GREY,
    MUTED,
    OVER,
    PALE,
    UNDER,
    VERMILION,
    WHITE,
    WORSE,
    look,
    marker,
)
from poise.report.records.calibrated import LEVELS
from poise.report.records.scores import shown
from poise.report.tables.analyses import Split

UNITS = {"percent": " (%)", "nats": " (nats)", "score": ""}
FEW = 12  # points that get a name or number of their own


def reliability(
    axes: Axes, below: Axes, bins: Bins, *, observed: str = "accuracy", predicted: str = "confidence"
) -> None:
    """Accuracy of each bin and its gap to the mean confidence, coloured by direction and faded by count.

    ``observed`` and ``predicted`` name the two where the bins hold something else.
    """
    filled = bins.count > 0
    width, middle, total = bins.upper - bins.lower, (bins.lower + bins.upper) / 2, bins.count.sum()
    strength = 0.4 + 0.6 * np.sqrt(bins.count / bins.count.max())
    lower = np.minimum(bins.accuracy, bins.confidence)
    over = bins.confidence > bins.accuracy
    parts = (
        (filled, MUTED, "", 0.0 * lower, lower),
        (filled & over, OVER, "////", lower, bins.confidence - lower),
        (filled & ~over, UNDER, "", lower, bins.accuracy - lower),
    )
    for chosen, shade, hatch, bottom, height in parts:
        colours = [(shade, float(alpha)) for alpha in strength[chosen]]
        axes.bar(
            middle[chosen],
            height[chosen],
            width[chosen],
            bottom=bottom[chosen],
            color=colours,
            hatch=hatch,
            edgecolor=WHITE,
            linewidth=0.5,
            zorder=2,
        )
    axes.plot([0, 1], [0, 1], color=BLACK, linestyle="--", linewidth=0.9, zorder=4)
    axes.set(xlim=(0, 1), ylim=(0, 1), ylabel=observed)
    axes.tick_params(labelbottom=False)
    hits, sure = (np.nansum(bins.count * values) / total for values in (bins.accuracy, bins.confidence))
    below.bar(middle, bins.count / total, width, color=MUTED, edgecolor=WHITE, linewidth=0.5)
    below.axvline(hits, color=BLACK, linewidth=1.4)
    below.axvline(sure, color=OVER if sure > hits else UNDER, linewidth=1.4, linestyle="--")
    below.set(xlim=(0, 1), xlabel=f"{predicted} (mean {sure:.2f}, {observed} {hits:.2f})", ylabel="share")


def confidence_histogram(axes: Axes, confidence: np.ndarray, correct: np.ndarray) -> None:
    """Confidence of correct (up) and of wrong predictions (down), each with its mean; shares of all predictions."""
    edges, ends = np.linspace(0, 1, 21), []
    for hits, shade, sign in ((correct, BLUE, 1), (~correct, VERMILION, -1)):
        shares = np.histogram(confidence[hits], edges)[0] / len(confidence)
        axes.bar(edges[:-1], sign * shares, 0.05, align="edge", color=shade, edgecolor=WHITE, linewidth=0.4)
        ends.append(sign * max(1.1 * shares.max(), 0.02))
        if hits.any():
            axes.plot([confidence[hits].mean()] * 2, [0, ends[-1]], color=BLACK, linestyle="--", linewidth=1.4)
    axes.axhline(0, color=BLACK, linewidth=0.8)
    axes.set(xlim=(0, 1), ylim=(ends[1], ends[0]), xlabel="confidence", ylabel="share")
    axes.yaxis.set_major_formatter(lambda value, _: f"{abs(value):.3g}")


def paired_intervals(axes: Axes, splits: Mapping[str, Split]) -> None:
    """A quantity on correct and wrong predictions, method by method, with two standard errors on each side."""
    names = list(splits)[::-1]
    for (at, name), (shift, side, colour, mark) in product(
        enumerate(names), ((0.14, "correct", BLUE, "o"), (-0.14, "wrong", VERMILION, "s"))
    ):
        value, error = getattr(splits[name], side), 2 * getattr(splits[name], f"{side}_error")
        axes.errorbar(value, at + shift, xerr=error, fmt=mark, color=colour, markersize=4.5, linewidth=1.6)
    axes.axvline(0, color=BLACK, linewidth=0.9)
    axes.set_xlabel("ΔH (nats); left of 0: sharper after tuning")
    _method_axis(axes, names)


def shares(axes: Axes, values: Mapping[str, float]) -> None:
    """One horizontal bar per method, the percentage written at its end."""
    names = list(values)[::-1]
    axes.barh(
        range(len(names)),
        [100 * values[name] for name in names],
        color=[look(name).colour for name in names],
        height=0.62,
    )
    for at, name in enumerate(names):
        text, place = f"{100 * values[name]:.1f}", (100 * values[name], at)
        axes.annotate(text, place, xytext=(4, 0), textcoords="offset points", va="center", fontsize=9)
    _method_axis(axes, names)
    axes.set_xlim(0, max(1.0, 118 * max(values.values())))
    axes.set_xlabel("p_aug and plain view differ (%)")


def coverage(axes: Axes, curves: Mapping[str, np.ndarray], spread: np.ndarray) -> None:
    """Coverage minus the coverage that was asked for, one line per method, over the band of two standard deviations."""
    axes.fill_between(100 * LEVELS, -196 * spread, 196 * spread, color=PALE, linewidth=0)
    axes.axhline(0, color=GREY, linewidth=1)
    for name, values in curves.items():
        gap = 100 * (values - LEVELS)
        axes.plot(100 * LEVELS, gap, color=look(name).colour, linestyle=look(name).dash)
    axes.set(xlim=(50, 99), xlabel="coverage asked for (%)", ylabel="coverage minus that (points)")


def certified(axes: Axes, curves: Mapping[str, tuple[RiskCoverage, float, float]], promised: float) -> None:
    """One risk-coverage curve per method, with the point of its certified threshold, and the error promised."""
    axes.axhline(promised, color=GREY, linestyle="--", linewidth=1)
    for name, (curve, share, error) in curves.items():
        _curve(axes, name, curve)
        if share:
            axes.plot(share, error, "D", color=look(name).colour, markersize=6, markeredgecolor=WHITE, zorder=5)
    axes.set(xlim=(0, 1), ylim=(0, None), xlabel="share answered", ylabel="risk (share of wrong answers)")


def _curve(axes: Axes, name: str, curve: RiskCoverage) -> None:
    thin = np.unique(np.linspace(0, len(curve.risk) - 1, 200).astype(int))  # more points only cost bytes
    axes.plot(curve.coverage[thin], curve.risk[thin], color=look(name).colour, linestyle=look(name).dash)


def risk_coverage(axes: Axes, curves: Mapping[str, RiskCoverage]) -> None:
    """One curve per method: the error rate when only the most confident share is answered."""
    for name, curve in curves.items():
        _curve(axes, name, curve)
    axes.set(xlim=(0, 1), ylim=(0, None), xlabel="coverage", ylabel="risk (share of wrong answers)")


def embedding(axes: Axes, before: np.ndarray, after: np.ndarray, method: str) -> None:
    """Class texts [C, 2] before and after tuning, joined by lines; few classes are numbered."""
    for start, end in zip(before, after, strict=True):
        axes.plot([start[0], end[0]], [start[1], end[1]], color=GREY, linewidth=0.8, zorder=1)
    few = len(after) <= FEW
    axes.scatter(before[:, 0], before[:, 1], s=18, facecolors="none", edgecolors=GREY, linewidths=1.1, zorder=2)
    axes.scatter(after[:, 0], after[:, 1], s=130 if few else 18, color=look(method).colour, zorder=3)
    if few:
        for number, (x, y) in enumerate(after, 1):
            axes.text(x, y, str(number), fontsize=9, ha="center", va="center_baseline", color=WHITE, zorder=4)
    axes.set(xticks=[], yticks=[])
    axes.spines[:].set_visible(False)
    axes.margins(0.1)


def estimates(axes: Axes, metric: str, scores: Mapping[str, Estimate], floor: str = "") -> None:
    """One dot per method with its 95 % confidence interval over images; the ``floor`` is written at the axis."""
    names = list(scores)[::-1]
    for at, name in enumerate(names):
        value, sides = _sides(metric, scores[name])
        axes.errorbar(value, at, xerr=sides, fmt=marker(name), color=look(name).colour, markersize=5.5, linewidth=1.8)
    row = rows.get(metric)
    below = ", ".join(filter(None, (f"{row.direction} is better" if row.direction else "", floor)))
    axes.set_xlabel(f"{row.title}{UNITS[row.unit]}" + (f"\n{below}" if below else ""))
    _method_axis(axes, names)


def differences(axes: Axes, metric: str, scores: Mapping[str, Estimate], against: str) -> None:
    """One dot per method: its difference from ``against`` with a 95 % confidence interval, coloured by direction."""
    names, row = list(scores)[::-1], rows.get(metric)
    for at, name in enumerate(names):
        value, low, high = (shown(metric, number) for number in (scores[name].value, *scores[name].bounds))
        shade = direction_colour(metric, scores[name])
        sides, face = [[max(0.0, value - low)], [max(0.0, high - value)]], shade if scores[name].clear else WHITE
        axes.errorbar(value, at, xerr=sides, fmt="o", color=shade, mfc=face, markersize=5.5, linewidth=1.8)
    axes.axvline(0, color=BLACK, linewidth=0.9, zorder=1)
    side = "" if row.higher_is_better is None else "right is better" if row.higher_is_better else "left is better"
    unit = " (points)" if row.unit == "percent" else UNITS[row.unit]
    axes.set_xlabel("\n".join(filter(None, (f"{row.title} minus {against}{unit}", side))))
    _method_axis(axes, names)


def direction_colour(metric: str, difference: Estimate) -> str:
    """Return the colour of a difference: better, worse, or grey where its confidence interval includes 0."""
    higher = rows.get(metric).higher_is_better
    if higher is None or not difference.clear:
        return GREY
    return BETTER if (difference.value > 0) == higher else WORSE


def tradeoff(
    axes: Axes,
    points: Mapping[str, tuple[Estimate, Estimate]],
    floor: str,
    marks: Mapping[str, str] | None = None,
    limits: Sequence[tuple[float, float]] = (),
) -> None:
    """Accuracy against ECE, one point per method, with 95 % confidence intervals; up and to the left is better.

    ``limits`` of both axes are given where several such figures are to be compared.
    """
    faint = 0.6 if len(points) <= FEW else 0.25
    for name, (ece, accuracy) in points.items():
        x, x_sides = _sides("ece", ece)
        y, y_sides = _sides("accuracy", accuracy)
        colour = look(name).colour
        axes.errorbar(x, y, xerr=x_sides, yerr=y_sides, fmt="none", ecolor=colour, elinewidth=1.1, alpha=faint)
        axes.plot(x, y, (marks or {}).get(name, "o"), color=colour, markersize=8, markeredgecolor=WHITE, zorder=4)
    axes.set(xlabel=f"ECE (%), left is better; {floor}", ylabel="accuracy (%), up is better")
    if limits:
        axes.set(xlim=limits[0], ylim=limits[1])


def _method_axis(axes: Axes, names: Sequence[str]) -> None:
    """Write the methods at the vertical axis, the first of ``names`` lowest, over a faint grid of the horizontal."""
    axes.set_yticks(range(len(names)), [name.replace(" | ", "\n| ") if len(name) > 16 else name for name in names])
    axes.set_ylim(-0.6, len(names) - 0.4)
    axes.xaxis.set_major_locator(MaxNLocator(3 if max(map(len, names)) > 12 else 4))  # few: labels do not touch
    axes.grid(axis="x", color=PALE, linewidth=0.7)
    axes.set_axisbelow(True)
    axes.spines["left"].set_visible(False)
    axes.tick_params(axis="y", length=0)


def _sides(metric: str, score: Estimate) -> tuple[float, list[list[float]]]:
    """Return a value in the printed unit, and its distances to both ends of the 95 % confidence interval."""
    value, low, high = (shown(metric, number) for number in score.interval)
    return value, [[value - low], [high - value]]
