"""The paper's analyses as numbers: confidence, entropy change, prediction discrepancy, text dispersion, ablation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from poise.report import published
from poise.report.published import ABLATION
from poise.report.runs import Group, Records, Setting
from poise.report.scores import Scoreboard, scoreboard, shown


@dataclass(frozen=True)
class Split:
    """A quantity on correct and on wrong predictions; NaN where there are none."""

    correct: float
    wrong: float
    correct_error: float  # standard errors of the two means
    wrong_error: float
    correct_n: int
    wrong_n: int


@dataclass(frozen=True)
class Analysis:
    """All analyses of one group, over all of its seeds."""

    group: Group
    confidence: Split  # Figure 4
    entropy_change: Split  # Figure 5: ΔH = H after tuning - H before, in nats
    discrepancy: float  # Figure 6: the share of images where p_aug and the plain view predict different classes
    atfd: float  # Figure 3: mean distance of the class texts to their centre, tuned
    init_atfd: float  # the same before tuning
    changed: float  # the share of images whose prediction tuning changed
    repaired: float  # the share that tuning made right
    broken: float  # the share that tuning made wrong


def analyse(group: Group) -> Analysis:
    """The analyses of one method on one dataset."""
    rows = group.pooled
    correct, started = rows["correct"].astype(bool), rows["init_prediction"] == rows["label"]
    return Analysis(
        group,
        split(rows["confidence"], correct),
        split(rows["entropy"] - rows["init_entropy"], correct),
        float((rows["target_prediction"] != rows["prediction"]).mean()),
        float(rows["atfd"].mean()),
        float(rows["init_atfd"].mean()),
        float((rows["prediction"] != rows["init_prediction"]).mean()),
        float((correct & ~started).mean()),
        float((~correct & started).mean()),
    )


def split(values: np.ndarray, correct: np.ndarray) -> Split:
    """Means and standard errors of ``values`` [N] on both sides."""
    right, wrong = _mean(values[correct]), _mean(values[~correct])
    return Split(right[0], wrong[0], right[1], wrong[1], int(correct.sum()), int((~correct).sum()))


def _mean(values: np.ndarray) -> tuple[float, float]:
    if len(values) == 0:
        return float("nan"), float("nan")
    spread = values.std(ddof=1) / np.sqrt(len(values)) if len(values) > 1 else float("nan")
    return float(values.mean()), float(spread)


def analyses(records: Records) -> list[Analysis]:
    """Of every group, in the records' order."""
    return [analyse(group) for group in records.groups]


@dataclass(frozen=True)
class Ablated:
    """One corner of the ablation grid (Table 5), in percent."""

    method: str
    temperature: bool
    divergence: bool
    accuracy: float
    ece: float


def ablation(board: Scoreboard, setting: Setting, datasets: Sequence[str] | None = None) -> list[Ablated]:
    """{entropy, divergence} x {no temperature, CATS}, averaged over ``datasets`` (default: all that have all four)."""
    if datasets is None:
        found = board.records.datasets
        datasets = [name for name in found if all(board.find(setting, name, method) for method in ABLATION)]
    corners = []
    for method in ABLATION:
        accuracy = board.average(setting, datasets, method, "accuracy")
        ece = board.average(setting, datasets, method, "ece")
        if accuracy is not None and ece is not None:
            values = shown("accuracy", accuracy.value), shown("ece", ece.value)
            corners.append(Ablated(method, method.endswith("+cats"), method.startswith("kld"), *values))
    return corners


def analysis_text(records: Records) -> str:
    """All analyses as Markdown: the table, the ablation where its four methods were run, the paper's own findings."""
    parts = [analysis_table(records)]
    board = scoreboard(records, metrics=("accuracy", "ece"), resamples=1)
    for setting in records.settings:
        if corners := ablation(board, setting):
            rows = [f"| {each.method} | {each.accuracy:.2f} | {each.ece:.2f} |" for each in corners]
            title = f"Ablation, {records.label(setting)}, average over the datasets"
            parts.append("\n".join([f"| {title} | Acc. | ECE |", "|---|---:|---:|", *rows, ""]))
    told = [
        f"- {each.method}: {each.quantity} {each.value:g}{f', {each.dataset}' if each.dataset else ''} ({each.source})"
        for each in published.FINDINGS
    ]
    return "\n".join([*parts, f"The paper's own, with {published.MODEL}:", *told, ""])


def analysis_table(records: Records) -> str:
    """All analyses as a Markdown table."""
    head = ["Dataset", "Method", "conf. correct", "conf. wrong", "ΔH correct", "ΔH wrong", "discrepancy %",
            "ATFD before", "ATFD after", "repaired %", "broken %"]  # fmt: skip
    lines = ["| " + " | ".join(head) + " |", "|---|---|" + "---:|" * (len(head) - 2)]
    several = len(records.settings) > 1
    for each in analyses(records):
        name = f"{each.group.dataset} ({records.label(each.group.setting)})" if several else each.group.dataset
        numbers = [
            f"{each.confidence.correct:.3f}", f"{each.confidence.wrong:.3f}", f"{each.entropy_change.correct:+.3f}",
            f"{each.entropy_change.wrong:+.3f}", f"{100 * each.discrepancy:.1f}", f"{each.init_atfd:.3f}",
            f"{each.atfd:.3f}", f"{100 * each.repaired:.1f}", f"{100 * each.broken:.1f}",
        ]  # fmt: skip
        lines.append("| " + " | ".join([name.replace("|", "\\|"), each.group.method, *numbers]) + " |")
    return "\n".join(lines) + "\n"
