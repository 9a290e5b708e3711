"""The paper's methods against the size of their step: ``python benchmarks/relative_step.py --data DATA --out RUN``.

The published learning rate is absolute, and token vectors differ in size between models. Here each method takes steps
of 0.03 to 1 times the RMS of the initial context. All methods and steps share one run, that is, one pass of the image
tower. The run is resumed, or read if it is finished; then a table and a figure are made (``--figure FILE``).
"""

from __future__ import annotations

import argparse
import zlib
from dataclasses import replace
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
from PIL import Image

from poise import methods
from poise.evaluate.config import RunConfig, Settings
from poise.evaluate.run import run
from poise.metrics import Estimate
from poise.report.records.groups import Group
from poise.report.records.runs import Records, load
from poise.report.records.scores import Scoreboard, scoreboard
from poise.report.tables.analyses import analyse

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
    parser.add_argument("--name", default="relative-step", help="of the run; the table has all runs in --out")
    parser.add_argument("--figure", type=Path)
    options = parser.parse_args()
    register()
    config = RunConfig(
        name=options.name,
        model=options.model,
        datasets=tuple(options.dataset.split(",")),
        methods=(BASE, *(named(name, step) for name in METHODS for step in STEPS)),
        limit=options.limit,
        seeds=tuple(int(seed) for seed in options.seeds.split(",")),
        views=options.views,
        device=options.device,
        dtype=options.dtype,
    )
    run(config, Settings(data=options.data, out=options.out))
    report(load(options.out), options.figure)


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
    resampled = {key: resampled_analyses(group) for key, group in groups.items()}
    for dataset in [*records.datasets, None]:
        for name, step in [(BASE, None), *((name, step) for name in METHODS for step in STEPS)]:
            full = name if step is None else named(name, step)
            chosen = records.datasets if dataset is None else [dataset]
            scores = [board.average(setting, chosen, full, metric) for metric in ("accuracy", "ece")]
            floor = board.average(setting, chosen, full, "ece_floor")
            found = np.mean([[value(analyse(groups[each, full])) for value in ANALYSES] for each in chosen], axis=0)
            draws = np.mean([resampled[each, full] for each in chosen], axis=0)
            low, high = np.quantile(draws, [0.025, 0.975], axis=0)
            title = "mean" if dataset is None else dataset.rpartition("/")[2]
            texts = [title, name, "" if step is None else f"{step:g}", *map(with_interval, scores)]
            texts += [f"{100 * floor.value:.1f}" if floor else ""]
            texts += [f"{found[at]:+.3f} [{low[at]:+.3f}, {high[at]:+.3f}]" if step else "" for at in (0, 1)]
            texts += [f"{100 * found[2]:.1f} [{100 * low[2]:.1f}, {100 * high[2]:.1f}]"]
            print(f"| {' | '.join(texts)} |")
    if figure:
        draw(records, board, groups, figure)


ANALYSES = (
    lambda found: found.entropy_change.correct,
    lambda found: found.entropy_change.wrong,
    lambda found: found.discrepancy,
)
RESAMPLES = 1000


def resampled_analyses(group: Group) -> np.ndarray:
    """Return the `ANALYSES` of resampled images [RESAMPLES, 3]; the seeds of an image stay together."""
    rows, images = group.pooled, len(group.ids)
    change, correct, differs = (
        values.reshape(-1, images)
        for values in (
            rows["entropy"] - rows["init_entropy"],
            rows["correct"].astype(bool),
            rows["target_prediction"] != rows["prediction"],
        )
    )
    # Sums over the seeds of each image: what a resample adds up.
    sums = np.stack([(change * correct).sum(0), correct.sum(0), (change * ~correct).sum(0), (~correct).sum(0)])
    random = np.random.default_rng(zlib.crc32(group.dataset.encode()))
    chosen = random.integers(images, size=(RESAMPLES, images))
    right, rights, wrong, wrongs = sums[:, chosen].sum(-1)
    return np.stack([right / rights, wrong / wrongs, differs.mean(0)[chosen].mean(-1)], axis=1)


def with_interval(score: Estimate | None) -> str:
    assert score is not None
    value, low, high = (100 * number for number in score.interval)
    return f"{value:.1f} [{low:.1f}, {high:.1f}]"


def draw(records: Records, board: Scoreboard, groups: dict, path: Path) -> None:
    """One row per dataset; columns: accuracy and ECE relative to zero-shot, entropy changes, discrepancy."""
    titles = (
        "accuracy minus zero-shot, points",
        "ECE minus zero-shot, points",
        "entropy change, right answers",
        "entropy change, wrong answers",
        "discrepancy, %",
    )
    shape = {"figsize": (16, 2.6 * len(records.datasets) + 0.8), "sharex": True, "squeeze": False}
    figure, axes = plt.subplots(len(records.datasets), len(titles), **shape)
    for row, dataset in zip(axes, records.datasets, strict=True):
        for place, name in enumerate(METHODS):
            _draw_method(row, board, groups, dataset, name, SPREAD ** (place - (len(METHODS) - 1) / 2))
        for axis in row[:4]:
            axis.axhline(0, color="black", linestyle=":", linewidth=1, label=BASE)
        row[4].axhline(100 * analyse(groups[dataset, BASE]).discrepancy, color="black", linestyle=":", linewidth=1)
        for axis in row:
            axis.set_xscale("log")
            axis.set_xticks(STEPS, [f"{step:g}" for step in STEPS])
            axis.minorticks_off()
            axis.grid(alpha=0.25)
        row[0].set_ylabel(dataset.rpartition("/")[2], fontsize=13, fontweight="bold")
    for axis, title in zip(axes[0], titles, strict=True):
        axis.set_title(title, fontsize=10.5)
    figure.supxlabel("learning rate / RMS of the initial context", fontsize=11)
    handles, labels = axes[0][0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="upper center", ncols=len(labels), frameon=False, fontsize=12)
    figure.tight_layout(rect=(0, 0, 1, 0.96))
    figure.align_ylabels(axes[:, 0])
    figure.savefig(path, dpi=90)
    with Image.open(path) as image:  # 128 colours are enough, and a quarter of the bytes
        image.convert("RGB").quantize(128, dither=Image.Dither.NONE).save(path, optimize=True)


SPREAD = 1.06  # the factor between the places of two methods, so that their intervals do not hide each other


def _draw_method(row: np.ndarray, board: Scoreboard, groups: dict, dataset: str, name: str, shift: float) -> None:
    """Draw one method on one dataset; intervals are those of paired differences."""
    (setting,) = board.records.settings
    about, fulls = methods.get(name).about, [named(name, step) for step in STEPS]
    style = {
        "color": about.colour,
        "linestyle": about.dash,
        "label": name,
        "marker": ".",
        "markersize": 5,
        "linewidth": 2.2 if name == "kld+cats" else 1.4,
    }
    places = np.array(STEPS) * shift
    for axis, metric in zip(row[:2], ("accuracy", "ece"), strict=True):
        scores = [board.average(setting, [dataset], full, metric) for full in (BASE, *fulls)]
        pairs = [score - scores[0] for score in scores[1:] if score and scores[0]]
        values = 100 * np.array([pair.interval for pair in pairs])
        axis.plot(places, values[:, 0], **style)
        axis.vlines(places, values[:, 1], values[:, 2], color=about.colour, linewidth=1, alpha=0.6)
    found = [analyse(groups[dataset, full]) for full in fulls]
    for axis, value, factor in zip(row[2:], ANALYSES, (1, 1, 100), strict=True):
        axis.plot(STEPS, [factor * value(one) for one in found], **style)


if __name__ == "__main__":
    main()
