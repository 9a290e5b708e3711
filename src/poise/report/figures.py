"""The figures: what the paper shows in Figures 2 to 6 and two overviews, drawn from records as PNG and SVG files."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import matplotlib

from poise.data import catalog
from poise.errors import InvalidDatasetError, MissingDependencyError
from poise.metrics import equal_width, risk_coverage
from poise.registry import Registry
from poise.report import panels as drawing
from poise.report.analyses import analyse
from poise.report.calibrated import certified_curve, coverage_curve, coverage_spread
from poise.report.groups import Group, Setting
from poise.report.looks import base
from poise.report.plot import STYLE, Panel, Plot, rendered
from poise.report.runs import Records, load
from poise.report.scores import Scoreboard, floor_text, printed, scoreboard
from poise.report.tsne import TextFeatures, embed, text_features
from poise.storage import write_atomic

Plots = Callable[[Scoreboard], Iterator[Plot]]


@dataclass(frozen=True, kw_only=True)
class FigureKind:
    """A kind of figure: what it shows, how to read it, and which metrics it needs."""

    name: str
    title: str
    about: str
    plots: Plots
    metrics: tuple[str, ...] | None = ()  # None: all


kinds = Registry[FigureKind]("figure")


@dataclass(frozen=True)
class Drawn:
    """The files that were written, and a note on each kind of figure that was left out."""

    files: tuple[Path, ...]
    notes: tuple[str, ...]


def write_figures(
    runs: str | Path | Records, out: str | Path, *, only: Iterable[str] | None = None, resamples: int = 1000
) -> Drawn:
    """Draw figures into a folder, one PNG and one SVG file each.

    Args:
        runs: a run's folder, a folder of runs, or their records.
        out: the folder for the files.
        only: names of the kinds of figures; all by default.
        resamples: number of bootstrap resamples.
    """
    chosen = [kinds.get(name) for name in (kinds if only is None else only)]
    needed = {name for kind in chosen for name in kind.metrics or ()}
    everything = any(kind.metrics is None for kind in chosen)
    board = scoreboard(load(runs), metrics=None if everything else sorted(needed), resamples=resamples)
    Path(out).mkdir(parents=True, exist_ok=True)
    files: list[Path] = []
    notes: list[str] = []
    for kind in chosen:
        before = len(files)
        try:
            for plot in kind.plots(board):
                files += _save(plot, Path(out))
            if only is not None and len(files) == before:
                raise InvalidDatasetError(f"The runs have nothing for the figure '{kind.name}'.", hint=kind.about)
        except (MissingDependencyError, InvalidDatasetError) as reason:
            if only is not None:  # asked for by name
                raise
            notes.append(f"No {kind.name} figure: {reason}")
    return Drawn(tuple(files), tuple(notes))


def _save(plot: Plot, folder: Path) -> list[Path]:
    """Write two files without dates: the same records give the same figures."""
    png, svg = (folder / f"{plot.name}.{ending}" for ending in ("png", "svg"))
    with matplotlib.rc_context(STYLE):
        figure = plot.figure()
        write_atomic(png, rendered(figure, "png", metadata={"Software": None}))
        figure.set_layout_engine("none")  # the layout is computed; computing it again for the second file takes seconds
        write_atomic(svg, rendered(figure, "svg", metadata={"Date": None, "Creator": "poise"}))
    return [png, svg]


def _kind(name: str, title: str, about: str, metrics: tuple[str, ...] | None = ()) -> Callable[[Plots], Plots]:
    def store(plots: Plots) -> Plots:
        kinds.add(name)(FigureKind(name=name, title=title, about=about, plots=plots, metrics=metrics))
        return plots

    return store


@_kind("tradeoff", "Accuracy against calibration error",
       "Mean over the datasets, with 95 % confidence intervals over images. Up and to the left is "
       "better.", ("accuracy", "ece"))  # fmt: skip
def tradeoff_plots(board: Scoreboard) -> Iterator[Plot]:
    """Accuracy against ECE, averaged over the datasets."""
    for setting, datasets, methods in _overviews(board):
        points = {}
        for name in methods:
            ece, accuracy = (board.average(setting, datasets, name, metric) for metric in ("ece", "accuracy"))
            if ece and accuracy:
                points[name] = ece, accuracy
        floors = [board.floor(setting, datasets, name, "ece") for name in points]
        panel = Panel(_over(datasets), partial(drawing.tradeoff, points=points, floor=floor_text("ece", floors)))
        yield _plot(board, "tradeoff", setting, [panel], width=4.4, heights=(3.4,))


@_kind("metrics", "All metrics",
       "Mean over the datasets, with 95 % confidence intervals over images.", None)  # fmt: skip
def metric_plots(board: Scoreboard) -> Iterator[Plot]:
    """Every metric of every method, averaged over the datasets."""
    for setting, datasets, methods in _overviews(board):
        panels = []
        for metric in board.metrics:
            averages = {name: board.average(setting, datasets, name, metric) for name in methods}
            scores = {name: score for name, score in averages.items() if score is not None}
            if scores:
                floor = floor_text(metric, [board.floor(setting, datasets, name, metric) for name in methods])
                panels.append(Panel("", partial(drawing.estimates, metric=metric, scores=scores, floor=floor)))
        yield _plot(board, "metrics", setting, panels, title=_over(datasets), heights=(0.6 + 0.22 * len(methods),))


@_kind("reliability", "Reliability",
       "Bars: accuracy of the predictions in each confidence bin. Hatched: the gap to their mean confidence. Grey: no "
       "predictions. Below: the share of predictions in each bin. The paper's Figure 2.", ("ece",))  # fmt: skip
def reliability_plots(board: Scoreboard) -> Iterator[Plot]:
    """One reliability diagram per method, with the histogram of confidences below it."""
    for setting, dataset, groups in _groups(board):
        panels = []
        for group in groups:
            ece = board.entries[setting, dataset, group.method].scores["ece"]
            value, low, high = (printed("ece", number) for number in ece.interval)
            floor = floor_text("ece", [board.floor(setting, [dataset], group.method, "ece")])
            title = f"{group.method}\nECE {value} % [{low}, {high}]\n{floor}, n = {_size(group)}"
            bins = equal_width(group.pooled["confidence"], group.pooled["correct"])
            panels.append(Panel(title, partial(drawing.reliability, bins=bins)))
        yield _plot(board, "reliability", setting, panels, dataset=dataset, heights=(2.6, 0.9))


@_kind("confidence", "Confidence of correct and wrong predictions",
       "Shares of all predictions; dashed lines are the means. The paper's Figure 4.")  # fmt: skip
def confidence_plots(board: Scoreboard) -> Iterator[Plot]:
    """Confidence of correct and wrong predictions."""
    for setting, dataset, groups in _groups(board):
        panels = [
            Panel(group.method, partial(drawing.confidence_histogram, confidence=group.pooled["confidence"],
                                        correct=group.pooled["correct"].astype(bool)))
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
        panel = Panel(f"{dataset}, n = {_size(groups[0])}", partial(drawing.paired_bars, splits=splits))
        width = max(3.2, 1.3 + 0.6 * len(splits))
        yield _plot(board, "entropy", setting, [panel], dataset=dataset, width=width, heights=(3.0,))


@_kind("discrepancy", "Prediction discrepancy",
       "How often p_aug and the plain view predict different classes after tuning. The paper's Figure 6.")  # fmt: skip
def discrepancy_plots(board: Scoreboard) -> Iterator[Plot]:
    """How often p_aug and the plain view predict different classes."""
    for setting, dataset, groups in _groups(board, tuned=True):
        values = {group.method: analyse(group).discrepancy for group in groups}
        panel = Panel(f"{dataset}, n = {_size(groups[0])}", partial(drawing.shares, values=values))
        height = 0.9 + 0.32 * len(values)
        yield _plot(board, "discrepancy", setting, [panel], dataset=dataset, width=4.4, heights=(height,))


@_kind("risk", "Risk and coverage",
       "The share of wrong answers when only the most confident share of images is answered; all seeds together.",
       ("aurc",))  # fmt: skip
def risk_plots(board: Scoreboard) -> Iterator[Plot]:
    """Risk-coverage curves of all methods."""
    for setting, dataset, groups in _groups(board):
        curves = {group.method: risk_coverage(group.pooled["confidence"], group.pooled["correct"]) for group in groups}
        areas = {name: board.entries[setting, dataset, name].scores["aurc"].value for name in curves}
        panel = Panel(f"{dataset}, n = {_size(groups[0])}", partial(drawing.risk_coverage, curves=curves, areas=areas))
        yield _plot(board, "risk", setting, [panel], dataset=dataset, width=4.6, heights=(3.6,))


@_kind("coverage", "Coverage of prediction sets",
       "The share of images whose set contains the class, against the coverage that was asked for, mean over seeds, "
       "before an empty set gets the top label. Grey: where 95 % of the values lie if the promise is kept, given the "
       "numbers of calibration images and of other images. Needs a run with calibration images.")  # fmt: skip
def coverage_plots(board: Scoreboard) -> Iterator[Plot]:
    """Coverage against nominal coverage, one line per calibrated method."""
    for setting, dataset, groups in _groups(board, calibrated=True):
        curves = {base(group.method): coverage_curve(group) for group in groups}
        draw = partial(drawing.coverage, curves=curves, spread=coverage_spread(groups[0]))
        panel = Panel(f"{dataset}, n = {_size(groups[0])}", draw)
        yield _plot(board, "coverage", setting, [panel], dataset=dataset, width=4.6, heights=(3.6,))


@_kind("certified", "Certified thresholds",
       "The share of wrong answers when only the most confident share of images is answered, as in the figure of risk "
       "and coverage. Diamonds: the threshold that was certified on the calibration images. Dashed: the error rate "
       "that it promises. All seeds together. Needs a run with calibration images.")  # fmt: skip
def certified_plots(board: Scoreboard) -> Iterator[Plot]:
    """Risk-coverage curves with the certified points."""
    for setting, dataset, groups in _groups(board, calibrated=True):
        curves = {base(group.method): certified_curve(group) for group in groups}
        draw = partial(drawing.certified, curves=curves, promised=float(setting.values["max_error"]))
        panel = Panel(f"{dataset}, n = {_size(groups[0])}", draw)
        yield _plot(board, "certified", setting, [panel], dataset=dataset, width=4.6, heights=(3.6,))


@_kind("tsne", "Class texts before and after tuning",
       "One t-SNE of the class texts before (circles) and after (dots) tuning for one image. ATFD is their mean "
       "distance to the centre. The paper's Figure 3.")  # fmt: skip
def tsne_plots(board: Scoreboard) -> Iterator[Plot]:
    """Class texts before and after tuning for one image."""

    def draw(axes: Any, texts: TextFeatures, method: str) -> None:
        drawing.embedding(axes, *embed(texts.start, texts.tuned[method]), method, texts.labels)

    for texts in text_features(board.records):
        panels = [
            Panel(f"{name}: ATFD {texts.dispersion():.3f} → {texts.dispersion(name):.3f}",
                  partial(draw, texts=texts.thinned(), method=name))
            for name in texts.tuned if board.records.tunes(name)
        ]  # fmt: skip
        if panels:
            title = f"{texts.dataset}, {texts.run}: class texts before and after tuning for image {texts.image}"
            name = _file(f"tsne_{texts.run}_{texts.dataset}")
            yield Plot(name=name, title=title, panels=tuple(panels), dataset=texts.dataset)


def _overviews(board: Scoreboard) -> Iterator[tuple[Setting, list[str], list[str]]]:
    """Yield each setting with its datasets, and the methods that were run on all of them."""
    records = board.records
    for setting in records.settings:
        datasets = catalog.in_order(list(dict.fromkeys(group.dataset for group in records.chosen(setting=setting))))
        methods = [name for name in records.methods if all(board.images(setting, data, name) for data in datasets)]
        if methods:
            yield setting, datasets, methods


def _groups(
    board: Scoreboard, *, tuned: bool = False, calibrated: bool = False
) -> Iterator[tuple[Setting, str, list[Group]]]:
    """Yield each setting and dataset with its groups, or only those of methods that tune, or of calibrated ones."""
    records = board.records
    for setting in records.settings:
        for dataset in catalog.in_order(records.datasets):
            groups = records.chosen(setting=setting, dataset=dataset)
            shown = [
                group for group in groups
                if (not tuned or (records.tunes(group.method) and not group.calibration))
                and (not calibrated or group.calibration)
            ]  # fmt: skip
            if shown:
                yield setting, dataset, shown


def _over(datasets: Sequence[str]) -> str:
    return datasets[0] if len(datasets) == 1 else f"mean over {len(datasets)} datasets"


def _size(group: Group) -> str:
    return f"{group.n}" if len(group.seeds) == 1 else f"{group.n} x {len(group.seeds)}"


def _plot(
    board: Scoreboard, kind: str, setting: Setting, panels: Sequence[Panel], *, title: str = "", dataset: str = "",
    **size: Any,
) -> Plot:  # fmt: skip
    records = board.records
    number = f"_{records.settings.index(setting) + 1}" if len(records.settings) > 1 else ""
    name = _file("_".join(filter(None, (kind, dataset, setting.model))) + number)
    heading = ", ".join(filter(None, (dataset or title, records.label(setting))))
    return Plot(name=name, title=heading, panels=tuple(panels), setting=setting, dataset=dataset, **size)


def _file(text: str) -> str:
    return re.sub(r"[^A-Za-z0-9_.+-]+", "-", text).strip("-.")
