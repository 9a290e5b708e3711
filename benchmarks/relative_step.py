"""The paper's methods against the size of their step: ``python benchmarks/relative_step.py --data DATA --out RUN``.

The published learning rate is absolute, and token vectors differ in size between models. Here each method takes steps
of 0.03 to 1 times the RMS of the initial context. All methods and steps share one run, that is, one pass of the image
tower. The run is resumed, or read if it is finished; then a table and a figure are made (``--figure FILE``).
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np

from poise import methods
from poise.evaluate.config import RunConfig, Settings
from poise.evaluate.run import run
from poise.metrics import Estimate
from poise.report.analyses import analyse
from poise.report.runs import Records, load
from poise.report.scores import Scoreboard, scoreboard

STEPS = (0.03, 0.06, 0.12, 0.25, 0.5, 1.0)
METHODS = ("tpt", "c-tpt", "o-tpt", "tpt+cats", "kld", "kld+cats")
BASE = "zero-shot"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", default="data")
    parser.add_argument("--out", default="runs")
    parser.add_argument("--dataset", default="caltech101,imagenet,eurosat")
    parser.add_argument("--model", default="pocket")
    parser.add_argument("--limit", type=int, default=1000)
    parser.add_argument("--seeds", default="1,2,3")
    parser.add_argument("--views", type=int, default=64)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--figure", type=Path)
    options = parser.parse_args()
    register()
    config = RunConfig(
        name="relative-step", model=options.model, datasets=tuple(options.dataset.split(",")),
        methods=(BASE, *(named(name, step) for name in METHODS for step in STEPS)), limit=options.limit,
        seeds=tuple(int(seed) for seed in options.seeds.split(",")), views=options.views, device=options.device,
        dtype=options.dtype,
    )  # fmt: skip
    summary = run(config, Settings(data=options.data, out=options.out))
    report(load(summary.folder), options.figure)


def named(method: str, step: float) -> str:
    return f"{method}@{step:g}rms"


def register() -> None:
    """Make each method with each step known under a name of its own."""
    for name in METHODS:
        for step in STEPS:
            base = methods.get(name, lr=f"{step:g}rms")
            methods.register(replace(base, name=named(name, step)))


def report(records: Records, figure: Path | None) -> None:
    (setting,) = records.settings
    board = scoreboard(records, metrics=("accuracy", "ece", "ece_floor"))
    print("| dataset | method | step / RMS | accuracy | ECE | floor | ΔH right | ΔH wrong | discrepancy |")
    print("|---|---|--:|--:|--:|--:|--:|--:|--:|")
    groups = {(group.dataset, group.method): group for group in records.groups}
    for dataset in [*records.datasets, None]:
        for name, step in [(BASE, None), *((name, step) for name in METHODS for step in STEPS)]:
            full = name if step is None else named(name, step)
            chosen = records.datasets if dataset is None else [dataset]
            scores = [board.average(setting, chosen, full, metric) for metric in ("accuracy", "ece", "ece_floor")]
            found = [analyse(groups[each, full]) for each in chosen]
            means = [np.mean([value(one) for one in found]) for value in ANALYSES]
            title = "mean" if dataset is None else dataset.rpartition("/")[2]
            texts = [title, name, "" if step is None else f"{step:g}", *map(with_interval, scores)]
            print(f"| {' | '.join(texts)} | {means[0]:+.3f} | {means[1]:+.3f} | {100 * means[2]:.1f} |")
    if figure:
        draw(records, board, groups, figure)


ANALYSES = (
    lambda found: found.entropy_change.correct,
    lambda found: found.entropy_change.wrong,
    lambda found: found.discrepancy,
)


def with_interval(score: Estimate | None) -> str:
    assert score is not None
    value, low, high = (100 * number for number in score.interval)
    return f"{value:.1f} [{low:.1f}, {high:.1f}]"


def draw(records: Records, board: Scoreboard, groups: dict, path: Path) -> None:
    """One row per dataset; columns: accuracy, ECE, entropy changes, discrepancy."""
    (setting,) = records.settings
    titles = ("Accuracy, %", "ECE, %", "Entropy change of right answers", "... of wrong answers", "Discrepancy, %")
    figure, axes = plt.subplots(len(records.datasets), 5, figsize=(17, 2.9 * len(records.datasets)), squeeze=False)
    for row, dataset in zip(axes, records.datasets, strict=True):
        for name in METHODS:
            about = methods.get(name).about
            fulls = [named(name, step) for step in STEPS]
            style = {"color": about.colour, "linestyle": about.dash, "label": name, "marker": ".", "markersize": 4}
            for axis, metric in zip(row[:2], ("accuracy", "ece"), strict=True):
                scores = [board.average(setting, [dataset], full, metric) for full in fulls]
                values = np.array([[100 * number for number in score.interval] for score in scores if score])
                axis.plot(STEPS, values[:, 0], **style)
                axis.fill_between(STEPS, values[:, 1], values[:, 2], color=about.colour, alpha=0.08, linewidth=0)
            found = [analyse(groups[dataset, full]) for full in fulls]
            for axis, value, factor in zip(row[2:], ANALYSES, (1, 1, 100), strict=True):
                axis.plot(STEPS, [factor * value(one) for one in found], **style)
        for axis, metric in zip(row[:2], ("accuracy", "ece"), strict=True):
            score = board.average(setting, [dataset], BASE, metric)
            assert score is not None
            axis.axhline(100 * score.value, color="black", linestyle=":", linewidth=1, label=BASE)
        for axis, title in zip(row, titles, strict=True):
            axis.set_xscale("log")
            axis.set_xticks(STEPS, [f"{step:g}" for step in STEPS])
            axis.minorticks_off()
            axis.grid(alpha=0.25)
            axis.set_title(f"{dataset.rpartition('/')[2]}: {title}" if axis is row[0] else title, fontsize=9)
    for axis in axes[-1]:
        axis.set_xlabel("learning rate / RMS of the initial context")
    handles, labels = axes[0][0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="upper center", ncols=len(labels), frameon=False)
    figure.tight_layout(rect=(0, 0, 1, 0.97))
    figure.savefig(path, dpi=110)


if __name__ == "__main__":
    main()
