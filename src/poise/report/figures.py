"""Figures 2 to 6 of the paper from records alone, each as PNG and SVG."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from poise.errors import InvalidDatasetError, MissingDependencyError, UnknownNameError
from poise.metrics import RiskCoverage, risk_coverage
from poise.report import panels as drawing
from poise.report.analyses import analyse
from poise.report.runs import Group, Records, Setting, load
from poise.report.scores import Scoreboard, scoreboard
from poise.report.tsne import TextFeatures, embed, text_features

STYLE: dict[Any, Any] = {
    "font.size": 9, "axes.spines.top": False, "axes.spines.right": False, "axes.titlesize": 10, "figure.dpi": 110,
    "savefig.dpi": 160, "svg.hashsalt": "poise", "svg.fonttype": "none", "hatch.linewidth": 0.6,
    "figure.constrained_layout.use": True, "text.parse_math": False,
}  # fmt: skip


ACROSS = 4  # panels side by side


@dataclass(frozen=True)
class Drawn:
    """The files that were written, and what was left out and why."""

    files: tuple[Path, ...]
    notes: tuple[str, ...]


Named = tuple[str, Figure]


def write_figures(
    runs: str | Path | Records, out: str | Path, *, kinds: Iterable[str] | None = None, resamples: int = 1000
) -> Drawn:
    """Draw ``kinds`` (default: all of KINDS) into ``out``: one PNG and one SVG each."""
    for kind in kinds or ():
        if kind not in KINDS:
            raise UnknownNameError.of("figure", kind, KINDS)
    records = runs if isinstance(runs, Records) else load(runs)
    board = scoreboard(records, metrics=("ece", "aurc"), resamples=resamples)
    folder = Path(out)
    folder.mkdir(parents=True, exist_ok=True)
    files: list[Path] = []
    notes: list[str] = []
    for kind in KINDS if kinds is None else kinds:
        try:
            with matplotlib.rc_context(STYLE):
                for name, figure in KINDS[kind](board):
                    files += _save(figure, folder / name)
        except (MissingDependencyError, InvalidDatasetError) as reason:
            if kinds is not None:  # asked for by name
                raise
            notes.append(f"No {kind} figure: {reason}")
    return Drawn(tuple(files), tuple(notes))


def reliability_figures(board: Scoreboard) -> Iterator[Named]:
    """Figure 2: one reliability diagram a method, the histogram of confidences below it."""
    for setting, dataset, groups in _panels(board.records):
        figure, cells = _grid(len(groups), 2.7, (2.7, 0.9))
        for (upper, lower), group in zip(cells, groups, strict=True):
            found = board.entries[setting, dataset, group.method]
            drawing.reliability(upper, found.bins, found.scores["ece"], group.method, _size(group))
            drawing.counts(lower, found.bins)
            upper.set_ylabel("accuracy")
            lower.set(xlabel="confidence", ylabel="share")
        yield _titled(board, figure, "reliability", setting, dataset)


def confidence_figures(board: Scoreboard) -> Iterator[Named]:
    """Figure 4: confidence of correct and wrong predictions."""
    for setting, dataset, groups in _panels(board.records):
        figure, cells = _grid(len(groups), 2.9, (2.4,))
        for (axes,), group in zip(cells, groups, strict=True):
            drawing.confidence_histogram(axes, group.pooled["confidence"], group.pooled["correct"].astype(bool))
            axes.set(title=group.method, xlabel="confidence", ylabel="share of predictions")
        yield _titled(board, figure, "confidence", setting, dataset)


def entropy_figures(board: Scoreboard) -> Iterator[Named]:
    """Figure 5: the change of entropy on correct and wrong predictions."""
    for setting, dataset, groups in _panels(board.records):
        tuned = {group.method: analyse(group).entropy_change for group in groups if group.method != "zero-shot"}
        if tuned:
            figure, (axes,) = _row(1, 1.3 + 0.75 * len(tuned), 3.0)
            drawing.paired_bars(axes, tuned)
            axes.set_ylabel("ΔH = H after - H before (nats)")
            yield _titled(board, figure, "entropy", setting, dataset, _size(groups[0]))


def discrepancy_figures(board: Scoreboard) -> Iterator[Named]:
    """Figure 6: how often p_aug and the plain view predict different classes."""
    for setting, dataset, groups in _panels(board.records):
        tuned = {group.method: analyse(group).discrepancy for group in groups if group.method != "zero-shot"}
        if tuned:
            figure, (axes,) = _row(1, 4.4, 0.9 + 0.32 * len(tuned))
            drawing.shares(axes, tuned)
            axes.set_xlabel("predictions of p_aug and plain view differ (%)")
            yield _titled(board, figure, "discrepancy", setting, dataset, _size(groups[0]))


def risk_figures(board: Scoreboard) -> Iterator[Named]:
    """Risk-coverage curves of all methods; every seed's images together."""
    for setting, dataset, groups in _panels(board.records):
        curves = {group.method: _curve(group) for group in groups}
        figure, (axes,) = _row(1, 4.6, 3.4)
        areas = {name: board.entries[setting, dataset, name].scores["aurc"].value for name in curves}
        drawing.risk_coverage(axes, curves, areas)
        axes.set(xlabel="coverage", ylabel="risk (share of wrong answers)")
        yield _titled(board, figure, "risk", setting, dataset, _size(groups[0]))


def tsne_figures(board: Scoreboard) -> Iterator[Named]:
    """Figure 3: t-SNE of the class texts before and after tuning for one image."""
    for texts in text_features(board.records):
        methods = [name for name in texts.tuned if name != "zero-shot"]
        if not methods:
            continue
        figure, cells = _grid(len(methods), 2.9, (2.7,))
        for (axes,), method in zip(cells, methods, strict=True):
            _embedding(axes, texts, method)
        figure.suptitle(f"{texts.dataset}, {texts.run}: class texts before and after tuning for image {texts.image}")
        yield _file(f"tsne_{texts.run}_{texts.dataset}"), figure


KINDS: dict[str, Callable[[Scoreboard], Iterator[Named]]] = {
    "reliability": reliability_figures,
    "confidence": confidence_figures,
    "entropy": entropy_figures,
    "discrepancy": discrepancy_figures,
    "risk": risk_figures,
    "tsne": tsne_figures,
}


def _embedding(axes: Axes, texts: TextFeatures, method: str) -> None:
    shown = texts.thinned()
    before, after = embed(shown.start, shown.tuned[method])
    drawing.embedding(axes, before, after, method, shown.labels)
    axes.set_title(f"{method}: ATFD {texts.dispersion():.3f} → {texts.dispersion(method):.3f}")


def _panels(records: Records) -> Iterator[tuple[Setting, str, list[Group]]]:
    for setting in records.settings:
        for dataset in records.datasets:
            groups = list(records.chosen(setting=setting, dataset=dataset))
            if groups:
                yield setting, dataset, groups


def _curve(group: Group) -> RiskCoverage:
    return risk_coverage(group.pooled["confidence"], group.pooled["correct"])


def _size(group: Group) -> str:
    return f"{group.n}" if len(group.seeds) == 1 else f"{group.n} x {len(group.seeds)}"


def _figure(width: float, height: float) -> Figure:
    figure = Figure(figsize=(width, height))
    FigureCanvasAgg(figure)
    return figure


def _row(columns: int, width: float, height: float) -> tuple[Figure, list[Axes]]:
    figure = _figure(columns * width + 0.6, height + 0.4)
    return figure, list(np.ravel(figure.subplots(1, columns, squeeze=False)))


def _grid(panels: int, width: float, heights: tuple[float, ...]) -> tuple[Figure, list[list[Axes]]]:
    """A figure of ``panels`` cells, four in a row; each cell is a stack of axes of the given heights."""
    columns = min(panels, ACROSS)
    rows = -(-panels // columns)
    figure = _figure(columns * width + 0.4, rows * (sum(heights) + 0.5) + 0.4)
    table = figure.subplots(rows * len(heights), columns, squeeze=False, height_ratios=heights * rows)
    cells = [[table[row * len(heights) + part][column] for part in range(len(heights))]
             for row in range(rows) for column in range(columns)]  # fmt: skip
    for unused in cells[panels:]:
        for axes in unused:
            axes.set_axis_off()
    return figure, cells[:panels]


def _titled(board: Scoreboard, figure: Figure, kind: str, setting: Setting, dataset: str, size: str = "") -> Named:
    records = board.records
    number = f"_{records.settings.index(setting) + 1}" if len(records.settings) > 1 else ""
    figure.suptitle(f"{dataset}, {records.label(setting)}" + (f", n = {size}" if size else ""))
    return _file(f"{kind}_{dataset}_{setting.model}{number}"), figure


def _file(text: str) -> str:
    return re.sub(r"[^A-Za-z0-9_.+-]+", "-", text).strip("-.")


def _save(figure: Figure, path: Path) -> list[Path]:
    """Two files without dates in them: the same records give the same figures."""
    files = [path.with_name(f"{path.name}.png"), path.with_name(f"{path.name}.svg")]
    figure.savefig(files[0], metadata={"Software": None})
    figure.set_layout_engine("none")  # the panels are placed; placing them again for the second file takes seconds
    figure.savefig(files[1], metadata={"Date": None, "Creator": "poise"})
    return files
