"""Figures of one dataset each: what the paper shows in Figures 2 to 6, risk, coverage and certified thresholds."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np

from poise.metrics import equal_width, risk_coverage
from poise.report.colours import BLACK, BLUE, GREY, MUTED, OVER, PALE, UNDER, VERMILION, base
from poise.report.figures import panels as drawing
from poise.report.figures.kinds import kind, line_key, make, method_height, places, size
from poise.report.figures.plot import KeyEntry, Panel, Plot
from poise.report.figures.tsne import TextFeatures, embed, text_features
from poise.report.records.calibrated import certified_curve, coverage_curve, coverage_spread
from poise.report.records.scores import Scoreboard, floor_text, printed
from poise.report.tables.analyses import analyse
from poise.text import file_name

_FREQUENCY, _PROBABILITY = "frequency", "probability"  # in place of accuracy and confidence, of single labels


def _reliability_key(observed: str = "accuracy", predicted: str = "confidence") -> tuple[KeyEntry, ...]:
    return (
        KeyEntry(f"over-confident: {observed} below {predicted}", OVER, "hatched"),
        KeyEntry(f"under-confident: {observed} above {predicted}", UNDER, "area"),
        KeyEntry("both", MUTED, "area"),
        KeyEntry(f"{observed} of all", BLACK),
        KeyEntry(f"mean {predicted}; also where both are equal", BLACK, "line", "--"),
    )


@kind(
    "reliability",
    "Reliability",
    "One bar per confidence bin: its accuracy and its mean confidence, with the gap coloured by its direction. Bins "
    "with few predictions are faint; no bar, no predictions. Below: the share of predictions in each bin. The "
    "paper's Figure 2.",
    ("ece",),
)
def reliability_plots(board: Scoreboard) -> Iterator[Plot]:
    """One reliability diagram per method, with the histogram of confidences below it."""
    for setting, dataset, groups in places(board):
        panels = []
        for group in groups:
            ece = board.entries[setting, dataset, group.method].scores["ece"]
            value, low, high = (printed("ece", number) for number in ece.interval)
            floor = floor_text("ece", [board.floor(setting, [dataset], group.method, "ece")])
            title = f"{group.method}\nECE {value} % [{low}, {high}]\n{floor}, n = {size(group)}"
            bins = equal_width(group.pooled["confidence"], group.pooled["correct"])
            sure, hits = (float(group.pooled[name].mean()) for name in ("confidence", "correct"))
            side = "over" if sure > hits else "under"
            alt = f"{side}-confident on average: mean confidence {sure:.2f}, accuracy {hits:.2f}"
            panels.append(Panel(title, partial(drawing.reliability, bins=bins), alt))
        yield make(board, "reliability", setting, panels, dataset=dataset, heights=(2.7, 0.9), key=_reliability_key())


@kind(
    "labels",
    "Reliability of independent labels",
    "Of labels that apply independently: how often labels apply (frequency), by their probability, all labels "
    "together. Needs a dataset whose images have several labels.",
    ("label_ece",),
)
def label_plots(board: Scoreboard) -> Iterator[Plot]:
    """One reliability diagram per method, of all labels together."""
    for setting, dataset, groups in places(board, independent=True):
        panels = []
        for group in groups:
            scores = board.entries[setting, dataset, group.method].scores
            samples = [sample for sample in group.samples() if sample.chances is not None and sample.has is not None]
            if "label_ece" not in scores or not samples:
                continue  # a model with a softmax has no probabilities of single labels before calibration
            floor = floor_text("label_ece", [board.floor(setting, [dataset], group.method, "label_ece")])
            title = f"{group.method}\nECE per label {printed('label_ece', scores['label_ece'].value)} %, {floor}"
            chances, has = (
                np.concatenate([getattr(each, name).ravel() for each in samples]) for name in ("chances", "has")
            )
            bins = equal_width(chances, has)
            draw = partial(drawing.reliability, bins=bins, observed=_FREQUENCY, predicted=_PROBABILITY)
            panels.append(Panel(title, draw, title))
        if panels:
            key = _reliability_key(_FREQUENCY, _PROBABILITY)
            yield make(board, "labels", setting, panels, dataset=dataset, heights=(2.7, 0.9), key=key)


@kind(
    "confidence",
    "Confidence of correct and wrong predictions",
    "Shares of all predictions: correct ones up, wrong ones down; dashed lines are the means. The paper's Figure 4.",
)
def confidence_plots(board: Scoreboard) -> Iterator[Plot]:
    """Confidence of correct and wrong predictions."""
    key = KeyEntry("correct", BLUE, "area"), KeyEntry("wrong", VERMILION, "area"), KeyEntry("mean", BLACK, "line", "--")
    for setting, dataset, groups in places(board):
        panels = []
        for group in groups:
            confidence, correct = group.pooled["confidence"], group.pooled["correct"].astype(bool)
            means = [
                f"{confidence[hits].mean():.2f} {word}"
                for word, hits in (("correct", correct), ("wrong", ~correct))
                if hits.any()
            ]
            draw = partial(drawing.confidence_histogram, confidence=confidence, correct=correct)
            alt = f"{correct.sum()} correct and {(~correct).sum()} wrong predictions"
            panels.append(Panel(f"{group.method}\nmean {', '.join(means)}", draw, alt))
        yield make(board, "confidence", setting, panels, dataset=dataset, heights=(2.3,), key=key)


@kind(
    "entropy",
    "Entropy change",
    "ΔH = H after tuning - H before, in nats, with two standard errors. Below 0 tuning sharpened the prediction. "
    "Correct means correct after tuning. The paper's Figure 5.",
)
def entropy_plots(board: Scoreboard) -> Iterator[Plot]:
    """The change of entropy on correct and wrong predictions."""
    key = KeyEntry("correct", BLUE, "dot"), KeyEntry("wrong", VERMILION, "square")
    for setting, dataset, groups in places(board, tuned=True):
        splits = {group.method: analyse(group).entropy_change for group in groups}
        alt = ", ".join(
            f"{name} {each.correct:+.3f} on correct and {each.wrong:+.3f} on wrong predictions"
            for name, each in splits.items()
        )
        panel = Panel(f"{dataset}, n = {size(groups[0])}", partial(drawing.paired_intervals, splits=splits), alt)
        yield make(board, "entropy", setting, [panel], dataset=dataset, heights=(1.3 * method_height(splits),), key=key)


@kind(
    "discrepancy",
    "Prediction discrepancy",
    "How often p_aug and the plain view predict different classes after tuning. The paper's Figure 6.",
)
def discrepancy_plots(board: Scoreboard) -> Iterator[Plot]:
    """How often p_aug and the plain view predict different classes."""
    for setting, dataset, groups in places(board, tuned=True):
        values = {group.method: analyse(group).discrepancy for group in groups}
        alt = ", ".join(f"{name} {100 * value:.1f} %" for name, value in values.items())
        panel = Panel(f"{dataset}, n = {size(groups[0])}", partial(drawing.shares, values=values), alt)
        yield make(board, "discrepancy", setting, [panel], dataset=dataset, heights=(method_height(values),))


@kind(
    "risk",
    "Risk and coverage",
    "The share of wrong answers when only the most confident share of images is answered; all seeds together.",
    ("aurc",),
)
def risk_plots(board: Scoreboard) -> Iterator[Plot]:
    """Risk-coverage curves of all methods."""
    for setting, dataset, groups in places(board):
        curves = {group.method: risk_coverage(group.pooled["confidence"], group.pooled["correct"]) for group in groups}
        areas = {name: printed("aurc", board.entries[setting, dataset, name].scores["aurc"].value) for name in curves}
        alt = "areas: " + ", ".join(f"{name} {area} %" for name, area in areas.items())
        panel = Panel(f"{dataset}, n = {size(groups[0])}", partial(drawing.risk_coverage, curves=curves), alt)
        key = line_key({name: f"{name} (AURC {area} %)" for name, area in areas.items()})
        yield make(board, "risk", setting, [panel], dataset=dataset, heights=(3.2,), key=key)


@kind(
    "coverage",
    "Coverage of prediction sets",
    "The share of images whose set contains the class, against the coverage that was asked for, mean over seeds, "
    "before an empty set gets the top label. Grey: where 95 % of the values lie if the promise is kept, given the "
    "numbers of calibration images and of other images. Needs a run with calibration images.",
)
def coverage_plots(board: Scoreboard) -> Iterator[Plot]:
    """Coverage against nominal coverage, one line per calibrated method."""
    for setting, dataset, groups in places(board, calibrated=True):
        curves = {base(group.method): coverage_curve(group) for group in groups}
        draw = partial(drawing.coverage, curves=curves, spread=coverage_spread(groups[0]))
        panel = Panel(f"{dataset}, n = {size(groups[0])}", draw)
        key = (*line_key({name: name for name in curves}), KeyEntry("95 % if the promise is kept", PALE, "area"))
        yield make(board, "coverage", setting, [panel], dataset=dataset, heights=(3.2,), key=key)


@kind(
    "certified",
    "Certified thresholds",
    "The share of wrong answers when only the most confident share of images is answered, as in the figure of risk "
    "and coverage. Diamonds: the threshold that was certified on the calibration images. Dashed: the error rate "
    "that it promises. All seeds together. Needs a run with calibration images.",
)
def certified_plots(board: Scoreboard) -> Iterator[Plot]:
    """Risk-coverage curves with the certified points."""
    for setting, dataset, groups in places(board, calibrated=True):
        curves = {base(group.method): certified_curve(group) for group in groups}
        promised = float(setting.values["max_error"])
        draw = partial(drawing.certified, curves=curves, promised=promised)
        labels = {
            name: f"{name}: {100 * share:.0f} % answered, {100 * error:.1f} % wrong"
            if share
            else f"{name}: none certified"
            for name, (_, share, error) in curves.items()
        }
        panel = Panel(f"{dataset}, n = {size(groups[0])}", draw, ", ".join(labels.values()))
        key = (*line_key(labels), KeyEntry(f"promised: at most {100 * promised:g} %", GREY, "line", "--"))
        yield make(board, "certified", setting, [panel], dataset=dataset, heights=(3.2,), key=key)


@kind(
    "tsne",
    "Class texts before and after tuning",
    "One t-SNE of the class texts before (circles) and after (dots) tuning for one image. ATFD is their mean "
    "distance to the centre. The paper's Figure 3.",
)
def tsne_plots(board: Scoreboard) -> Iterator[Plot]:
    """Class texts before and after tuning for one image."""

    def draw(axes: Any, places: tuple[np.ndarray, np.ndarray], method: str) -> None:
        drawing.embedding(axes, *places, method)

    for texts in text_features(board.records):
        shown = texts.thinned()
        panels = [_tsne_panel(texts, shown, name, draw) for name in texts.tuned if board.records.tunes(name)]
        if panels:
            title = f"{texts.dataset}, {texts.run}: class texts before and after tuning for image {texts.image}"
            labels = shown.labels if len(shown.labels) <= drawing.FEW else ()
            key = [KeyEntry("before", GREY, "ring"), KeyEntry("after, in the method's colour", BLACK, "dot")]
            key += [KeyEntry(f"{number} {label}") for number, label in enumerate(labels, 1)]
            name = file_name(f"tsne_{texts.run}_{texts.dataset}", unique=False)
            yield Plot(name=name, title=title, panels=tuple(panels), dataset=texts.dataset, key=tuple(key))


def _tsne_panel(texts: TextFeatures, shown: TextFeatures, name: str, draw: Any) -> Panel:
    title = f"{name}\nATFD {texts.dispersion():.3f} → {texts.dispersion(name):.3f}"
    return Panel(title, partial(draw, places=embed(shown.start, shown.tuned[name]), method=name))
