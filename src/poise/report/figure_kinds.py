"""The kinds of figures, one function each: what the paper shows in Figures 2 to 6, and two overviews."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

from matplotlib.axes import Axes

from poise.data import catalog
from poise.metrics import risk_coverage
from poise.report import panels as drawing
from poise.report.analyses import analyse
from poise.report.plot import FigureKind, Panel, Plot, kinds
from poise.report.runs import Group, Setting
from poise.report.scores import Scoreboard, Scored, printed
from poise.report.tsne import TextFeatures, embed, text_features

NOT_TUNED = "zero-shot"  # what has no "after tuning"


def _kind(name: str, title: str, about: str, metrics: tuple[str, ...] | None = ()) -> Callable[..., Any]:
    def store(plots: Callable[[Scoreboard], Iterator[Plot]]) -> Callable[[Scoreboard], Iterator[Plot]]:
        kinds.add(name)(FigureKind(name=name, title=title, about=about, plots=plots, metrics=metrics))
        return plots

    return store


@_kind("tradeoff", "Accuracy against calibration error",
       "Mean over the datasets, with 95 % confidence intervals over images. Up and to the left is "
       "better.", ("accuracy", "ece"))  # fmt: skip
def tradeoff_plots(board: Scoreboard) -> Iterator[Plot]:
    """Accuracy against ECE, averaged over the datasets."""
    for setting, datasets, methods in _overviews(board):
        pairs = {name: [board.average(setting, datasets, name, metric) for metric in ("ece", "accuracy")]
                 for name in methods}  # fmt: skip
        panel = Panel(_over(datasets), partial(_first, drawing.tradeoff, pairs))
        yield _plot(board, "tradeoff", setting, [panel], width=4.4, heights=(3.4,))


@_kind("metrics", "All metrics",
       "Mean over the datasets, with 95 % confidence intervals over images.", None)  # fmt: skip
def metric_plots(board: Scoreboard) -> Iterator[Plot]:
    """Every metric of every method, averaged over the datasets."""
    for setting, datasets, methods in _overviews(board):
        panels = []
        for metric in board.metrics:
            found = {name: board.average(setting, datasets, name, metric) for name in methods}
            scores = {name: score for name, score in found.items() if score is not None}
            if scores:
                panels.append(Panel("", partial(_first, drawing.estimates, metric, scores)))
        yield _plot(board, "metrics", setting, panels, title=_over(datasets), heights=(0.6 + 0.22 * len(methods),))


@_kind("reliability", "Reliability",
       "Bars: accuracy of the predictions in each confidence bin. Hatched: the gap to their mean confidence. Grey: no "
       "predictions. Below: the share of predictions in each bin. The paper's Figure 2.", ("ece",))  # fmt: skip
def reliability_plots(board: Scoreboard) -> Iterator[Plot]:
    """One reliability diagram per method, the histogram of confidences below it."""

    def draw(found: Scored, cell: Sequence[Axes]) -> None:
        drawing.reliability(cell[0], found.bins)
        drawing.counts(cell[1], found.bins)

    for setting, dataset, groups in _groups(board):
        panels = []
        for group in groups:
            found = board.entries[setting, dataset, group.method]
            ece = found.scores["ece"].interval
            value, low, high = (printed("ece", each) for each in (ece.value, ece.low, ece.high))
            panels.append(
                Panel(f"{group.method}\nECE {value} % [{low}, {high}], n = {_size(group)}", partial(draw, found))
            )
        yield _plot(board, "reliability", setting, panels, dataset=dataset, heights=(2.6, 0.9))


@_kind("confidence", "Confidence of correct and wrong predictions",
       "Shares of all predictions; dashed lines are the means. The paper's Figure 4.")  # fmt: skip
def confidence_plots(board: Scoreboard) -> Iterator[Plot]:
    """Confidence of correct and wrong predictions."""
    for setting, dataset, groups in _groups(board):
        panels = [
            Panel(group.method, partial(_first, drawing.confidence_histogram, group.pooled["confidence"],
                                        group.pooled["correct"].astype(bool)))
            for group in groups
        ]  # fmt: skip
        yield _plot(board, "confidence", setting, panels, dataset=dataset, heights=(2.4,))


@_kind("entropy", "Entropy change",
       "ΔH = H after tuning - H before, in nats, with two standard errors. Below 0 tuning sharpened the prediction. "
       "Correct means correct after tuning. The paper's Figure 5.")  # fmt: skip
def entropy_plots(board: Scoreboard) -> Iterator[Plot]:
    """The change of entropy on correct and wrong predictions."""
    for setting, dataset, groups in _groups(board, tuned=True):
        splits = {group.method: analyse(group).entropy_change for group in groups}
        panel = Panel(f"{dataset}, n = {_size(groups[0])}", partial(_first, drawing.paired_bars, splits))
        width = 1.3 + 0.6 * len(splits)
        yield _plot(board, "entropy", setting, [panel], dataset=dataset, width=max(3.2, width), heights=(3.0,))


@_kind("discrepancy", "Prediction discrepancy",
       "How often p_aug and the plain view predict different classes after tuning. The paper's Figure 6.")  # fmt: skip
def discrepancy_plots(board: Scoreboard) -> Iterator[Plot]:
    """How often p_aug and the plain view predict different classes."""
    for setting, dataset, groups in _groups(board, tuned=True):
        values = {group.method: analyse(group).discrepancy for group in groups}
        panel = Panel(f"{dataset}, n = {_size(groups[0])}", partial(_first, drawing.shares, values))
        yield _plot(
            board, "discrepancy", setting, [panel], dataset=dataset, width=4.4, heights=(0.9 + 0.32 * len(values),)
        )


@_kind("risk", "Risk and coverage",
       "The share of wrong answers when only the most confident share of images is answered; all seeds together.",
       ("aurc",))  # fmt: skip
def risk_plots(board: Scoreboard) -> Iterator[Plot]:
    """Risk-coverage curves of all methods."""
    for setting, dataset, groups in _groups(board):
        curves = {group.method: risk_coverage(group.pooled["confidence"], group.pooled["correct"]) for group in groups}
        areas = {name: board.entries[setting, dataset, name].scores["aurc"].value for name in curves}
        panel = Panel(f"{dataset}, n = {_size(groups[0])}", partial(_first, drawing.risk_coverage, curves, areas))
        yield _plot(board, "risk", setting, [panel], dataset=dataset, width=4.6, heights=(3.6,))


@_kind("tsne", "Class texts before and after tuning",
       "One t-SNE of the class texts before (circles) and after (dots) tuning for one image. ATFD is their mean "
       "distance to the centre. The paper's Figure 3.")  # fmt: skip
def tsne_plots(board: Scoreboard) -> Iterator[Plot]:
    """Class texts before and after tuning for one image."""

    def draw(shown: TextFeatures, method: str, cell: Sequence[Axes]) -> None:
        drawing.embedding(cell[0], *embed(shown.start, shown.tuned[method]), method, shown.labels)

    for texts in text_features(board.records):
        panels = [
            Panel(
                f"{name}: ATFD {texts.dispersion():.3f} → {texts.dispersion(name):.3f}",
                partial(draw, texts.thinned(), name),
            )
            for name in texts.tuned
            if name != NOT_TUNED
        ]
        if panels:
            title = f"{texts.dataset}, {texts.run}: class texts before and after tuning for image {texts.image}"
            yield Plot(name=_file(f"tsne_{texts.run}_{texts.dataset}"), title=title, panels=tuple(panels),
                       dataset=texts.dataset)  # fmt: skip


def _first(draw: Callable[..., None], *given: Any) -> None:
    """Call ``draw`` on the first axes of a cell, which comes last."""
    *values, cell = given
    draw(cell[0], *values)


def _overviews(board: Scoreboard) -> Iterator[tuple[Setting, list[str], list[str]]]:
    """Each setting with its datasets, and the methods that were run on all of them."""
    records = board.records
    for setting in records.settings:
        datasets = catalog.in_order(list(dict.fromkeys(group.dataset for group in records.chosen(setting=setting))))
        methods = [name for name in records.methods if all(board.find(setting, each, name) for each in datasets)]
        if methods:
            yield setting, datasets, methods


def _groups(board: Scoreboard, *, tuned: bool = False) -> Iterator[tuple[Setting, str, list[Group]]]:
    records = board.records
    for setting in records.settings:
        for dataset in catalog.in_order(records.datasets):
            groups = list(records.chosen(setting=setting, dataset=dataset))
            groups = [group for group in groups if not (tuned and group.method == NOT_TUNED)]
            if groups:
                yield setting, dataset, groups


def _over(datasets: Sequence[str]) -> str:
    return datasets[0] if len(datasets) == 1 else f"mean over {len(datasets)} datasets"


def _size(group: Group) -> str:
    return f"{group.n}" if len(group.seeds) == 1 else f"{group.n} x {len(group.seeds)}"


def _plot(
    board: Scoreboard,
    kind: str,
    setting: Setting,
    panels: Sequence[Panel],
    *,
    title: str = "",
    dataset: str = "",
    **more: Any,
) -> Plot:
    records = board.records
    number = f"_{records.settings.index(setting) + 1}" if len(records.settings) > 1 else ""
    name = _file("_".join(filter(None, (kind, dataset, setting.model))) + number)
    heading = ", ".join(filter(None, (dataset or title, records.label(setting))))
    return Plot(name=name, title=heading, panels=tuple(panels), setting=setting, dataset=dataset, **more)


def _file(text: str) -> str:
    return re.sub(r"[^A-Za-z0-9_.+-]+", "-", text).strip("-.")
