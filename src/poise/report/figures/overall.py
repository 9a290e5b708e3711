"""Figures of all methods over all datasets: calibration against accuracy, differences, and every metric."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from functools import partial

from poise import metrics as rows
from poise.metrics import Estimate
from poise.report.colours import BETTER, GREY, WORSE, look
from poise.report.figures import panels as drawing
from poise.report.figures.kinds import kind, make, method_height, over, overviews
from poise.report.figures.plot import MARKERS, KeyEntry, Panel, Plot
from poise.report.records.groups import Setting
from poise.report.records.scores import Scoreboard, floor_text, printed, shown
from poise.report.tables.compare import same_images

FIRST = ("ece", "accuracy")  # shown first, calibration before accuracy
BASELINE = "zero-shot"


def calibration_first(metrics: Sequence[str]) -> list[str]:
    """Return the metrics with those of FIRST in front."""
    return sorted(metrics, key=lambda name: FIRST.index(name) if name in FIRST else len(FIRST))


@kind(
    "tradeoff",
    "Calibration error and accuracy",
    "Expected calibration error (ECE) against accuracy, mean over the datasets, with 95 % confidence intervals over "
    "images. Up and to the left is better.",
    FIRST,
)
def tradeoff_plots(board: Scoreboard) -> Iterator[Plot]:
    """Accuracy against ECE, averaged over the datasets."""
    found = [(each[0], each[1], _points(board, *each)) for each in overviews(board)]
    for setting, datasets, points in found:
        shared = [each for _, names, some in found if names == datasets for each in some.values()]
        floors = [board.floor(setting, datasets, name, "ece") for name in points]
        marks = _marks(points)
        shapes = {name: MARKERS[mark] for name, mark in marks.items()}
        draw = partial(
            drawing.tradeoff,
            points=points,
            floor=floor_text("ece", floors),
            marks=shapes,
            limits=_limits(shared) if len(found) > 1 else (),
        )
        alt = ", ".join(
            f"{name} {_said('ece', ece)} and {_said('accuracy', hits)}" for name, (ece, hits) in points.items()
        )
        key = [KeyEntry(name, look(name).colour, marks[name]) for name in points]
        yield make(
            board, "tradeoff", setting, [Panel("", draw, alt)], title=over(datasets), heights=(3.8,), key=tuple(key)
        )


def _points(
    board: Scoreboard, setting: Setting, datasets: Sequence[str], methods: Sequence[str]
) -> dict[str, tuple[Estimate, Estimate]]:
    """Return ECE and accuracy of each method that has both."""
    points = {}
    for name in methods:
        ece, accuracy = (board.average(setting, datasets, name, metric) for metric in FIRST)
        if ece and accuracy:
            points[name] = ece, accuracy
    return points


def _limits(points: Sequence[tuple[Estimate, Estimate]]) -> list[tuple[float, float]]:
    """Return the range of each axis that contains all intervals, for figures that are compared with each other."""
    limits = []
    for metric, scores in zip(FIRST, zip(*points, strict=True), strict=True):
        ends = [shown(metric, end) for score in scores for end in score.interval]
        margin = 0.06 * (max(ends) - min(ends)) or 1.0
        limits.append((min(ends) - margin, max(ends) + margin))
    return limits


def _marks(names: Iterable[str]) -> dict[str, str]:
    """Return a mark for each method, so that methods of one colour have different ones."""
    kinds, seen, marks = ("dot", "square", "triangle", "diamond", "wedge"), Counter[str](), {}
    for name in names:
        colour = look(name).colour
        marks[name] = kinds[seen[colour] % len(kinds)]
        seen[colour] += 1
    return marks


@kind(
    "differences",
    f"Differences from {BASELINE}",
    f"Each method minus {BASELINE} on the same images, with the 95 % confidence interval of the paired difference: "
    "first the mean over the datasets, then each dataset.",
    FIRST,
)
def difference_plots(board: Scoreboard) -> Iterator[Plot]:
    """Paired differences of ECE and accuracy from the zero-shot answers."""
    key = (
        KeyEntry("better", BETTER, "dot"),
        KeyEntry("worse", WORSE, "dot"),
        KeyEntry("the interval includes 0", GREY, "ring"),
    )
    for setting, datasets, methods in overviews(board):
        if BASELINE not in methods or len(methods) < 2:
            continue
        for names in [datasets, *([name] for name in datasets if len(datasets) > 1)]:
            panels = []
            for metric in FIRST:
                found = _differences(board, setting, names, methods, metric)
                if found:
                    draw = partial(drawing.differences, metric=metric, scores=found, against=BASELINE)
                    panels.append(Panel("", draw, _alt_differences(metric, found)))
            dataset = names[0] if len(datasets) > 1 and len(names) == 1 else ""
            if panels:
                yield make(
                    board,
                    "differences",
                    setting,
                    panels,
                    title=over(names),
                    dataset=dataset,
                    key=key,
                    heights=(method_height(methods[1:]),),
                )


def _differences(
    board: Scoreboard, setting: Setting, datasets: Sequence[str], methods: Sequence[str], metric: str
) -> dict[str, Estimate]:
    """Return each method minus the baseline, where both have the same images."""
    base, found = board.average(setting, datasets, BASELINE, metric), {}
    for name in methods:
        score = board.average(setting, datasets, name, metric)
        same = all(same_images(board, data, (setting, name), (setting, BASELINE)) for data in datasets)
        if name != BASELINE and score and base and same:
            found[name] = score - base
    return found


def _alt_differences(metric: str, found: dict[str, Estimate]) -> str:
    parts = []
    for name, score in found.items():
        value, low, high = (printed(metric, number, "+") for number in (score.value, *score.bounds))
        parts.append(f"{name} {value} [{low}, {high}]")
    return f"{rows.get(metric).title} minus that of {BASELINE}: {', '.join(parts)}"


@kind("metrics", "All metrics", "Mean over the datasets, with 95 % confidence intervals over images.", None)
def metric_plots(board: Scoreboard) -> Iterator[Plot]:
    """Every metric of every method, averaged over the datasets."""
    for setting, datasets, methods in overviews(board):
        panels = []
        for metric in calibration_first(board.metrics):
            averages = {name: board.average(setting, datasets, name, metric) for name in methods}
            scores = {name: score for name, score in averages.items() if score is not None}
            if scores:
                floor = floor_text(metric, [board.floor(setting, datasets, name, metric) for name in methods])
                draw = partial(drawing.estimates, metric=metric, scores=scores, floor=floor)
                alt = ", ".join(f"{name} {_said(metric, score)}" for name, score in scores.items())
                panels.append(Panel("", draw, alt))
        yield make(board, "metrics", setting, panels, title=over(datasets), heights=(method_height(methods),))


def _said(metric: str, score: Estimate) -> str:
    row = rows.get(metric)
    return f"{row.title} {printed(metric, score.value)}{' %' * (row.unit == 'percent')}"
