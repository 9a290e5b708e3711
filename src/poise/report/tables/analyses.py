"""The paper's analyses as numbers: confidence, entropy change, prediction discrepancy, text dispersion, ablation."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from poise.report.published import paper as published
from poise.report.records.groups import Group, Setting
from poise.report.records.runs import Records
from poise.report.records.scores import Scoreboard, scoreboard, shown
from poise.report.tables.table import Line, Table


@dataclass(frozen=True)
class Split:
    """Means of a quantity over correct and wrong predictions with their standard errors; NaN where undefined."""

    correct: float
    wrong: float
    correct_error: float
    wrong_error: float


def split(values: np.ndarray, correct: np.ndarray) -> Split:
    """Return the means and standard errors of ``values`` [N] over correct and wrong predictions."""
    sides = values[correct], values[~correct]
    means = [side.mean() if len(side) else math.nan for side in sides]
    errors = [side.std(ddof=1) / math.sqrt(len(side)) if len(side) > 1 else math.nan for side in sides]
    return Split(*map(float, (*means, *errors)))


@dataclass(frozen=True, kw_only=True)
class Analysis:
    """All analyses of one method on one dataset, over all seeds."""

    confidence: Split  # Figure 4
    entropy_change: Split  # Figure 5: ΔH = H after tuning - H before, in nats
    discrepancy: float  # Figure 6: the share of images where p_aug and the plain view predict different classes
    atfd: float  # Figure 3: mean distance of the class texts to their centre after tuning
    init_atfd: float  # the same before tuning
    repaired: float  # the share of images whose prediction tuning made correct
    broken: float  # the share of images whose prediction tuning made wrong


def analyse(group: Group) -> Analysis:
    """Compute the analyses of one method on one dataset."""
    rows = group.pooled
    correct, correct_before = rows["correct"].astype(bool), rows["init_prediction"] == rows["label"]
    return Analysis(
        confidence=split(rows["confidence"], correct),
        entropy_change=split(rows["entropy"] - rows["init_entropy"], correct),
        discrepancy=float((rows["target_prediction"] != rows["prediction"]).mean()),
        atfd=float(rows["atfd"].mean()),
        init_atfd=float(rows["init_atfd"].mean()),
        repaired=float((correct & ~correct_before).mean()),
        broken=float((~correct & correct_before).mean()),
    )


def ablation(board: Scoreboard, setting: Setting) -> list[dict[str, Any]]:
    """Return the grid of Table 5 in percent, averaged over the datasets on which all four methods were run."""
    datasets = [
        name
        for name in board.records.datasets
        if all(board.images(setting, name, method) for method in published.ABLATION)
    ]
    grid = []
    for method in published.ABLATION:
        scores = {metric: board.average(setting, datasets, method, metric) for metric in ("accuracy", "ece")}
        settings = board.records.method_settings(method)
        objectives = {term["objective"] for term in settings.get("terms", ())} | {settings.get("loss")}  # older records
        parts = {"temperature": bool(settings.get("cats")), "divergence": "divergence" in objectives}
        floor = board.floor(setting, datasets, method, "ece")
        if scores["accuracy"] and scores["ece"] and floor:
            values = {metric: shown(metric, score.value) for metric, score in scores.items() if score is not None}
            grid.append({"method": method, **parts, **values, "ece_floor": shown("ece", floor.value)})
    return grid


def analysis_tables(records: Records) -> list[Table]:
    """Return the analyses of all groups, the ablation of its four methods, and the paper's values for what was run."""
    # Calibration changes no prediction and follows the tuning; independent labels have no single prediction.
    shown = [group for group in records.groups if group.calibration is None and not group.independent]
    tables = [_analysis_table(records, shown)] if shown else []
    board = scoreboard(records, metrics=("accuracy", "ece"), resamples=1)
    for setting in records.settings:
        if grid := ablation(board, setting):
            tables.append(_ablation_table(f"Ablation: {records.label(setting)}", grid))
    run = {(group.method, group.dataset) for group in records.groups}
    unnamed = {(method, "") for method, dataset in run if dataset in published.FINE_GRAINED}
    findings = [row for row in published.FINDINGS if (row.method, row.dataset) in run | unnamed]
    if findings:
        lines = [
            Line.of(row.method, row.dataset or published.NO_DATASET, row.quantity, f"{row.value:g}") for row in findings
        ]
        note = f"Not computed from these runs, but printed in {published.PAPER}, with {published.MODEL}."
        columns = ("Method", "Dataset", "Quantity", "Published")
        tables.append(Table("Values in the paper", columns, tuple(lines), (note,), 3, tuple(map(asdict, findings))))
    return tables


def _ablation_table(title: str, grid: list[dict[str, Any]]) -> Table:
    paper = {(row.method, row.metric): row.average for row in published.rows("table5")}
    lines = []
    for row in grid:
        objective = "KL divergence" if row["divergence"] else "entropy"
        temperature = "confidence-aware" if row["temperature"] else "none"
        numbers = (
            row["accuracy"],
            row["ece"],
            row["ece_floor"],
            paper[row["method"], "accuracy"],
            paper[row["method"], "ece"],
        )
        lines.append(Line.of(row["method"], objective, temperature, *(f"{number:.2f}" for number in numbers)))
    columns = ("Method", "Objective", "Temperature", "Acc.", "ECE", "ECE floor", "published Acc.", "published ECE")
    note = f"Average over the datasets that have all four; published: over ten datasets, with {published.MODEL}."
    return Table(title, columns, tuple(lines), (note,), 3, tuple({"table": title, **row} for row in grid))


NOTES = (
    "conf.: mean confidence of correct and of wrong predictions. ΔH: entropy after tuning minus before, in nats; "
    "correct means correct after tuning.",
    "discrepancy: share of images whose p_aug and plain view predict different classes after tuning. ATFD: mean "
    "distance of the class texts to their centre. repaired, broken: share of images whose prediction became correct or "
    "wrong.",
)


def _analysis_table(records: Records, groups: Sequence[Group]) -> Table:
    lines, rows = [], []
    for group in groups:
        analysis, label = analyse(group), records.label(group.setting)
        columns = {
            "conf. correct": (analysis.confidence.correct, ".3f"),
            "conf. wrong": (analysis.confidence.wrong, ".3f"),
            "ΔH correct": (analysis.entropy_change.correct, "+.3f"),
            "ΔH wrong": (analysis.entropy_change.wrong, "+.3f"),
            "discrepancy %": (100 * analysis.discrepancy, ".1f"),
            "ATFD before": (analysis.init_atfd, ".3f"),
            "ATFD after": (analysis.atfd, ".3f"),
            "repaired %": (100 * analysis.repaired, ".1f"),
            "broken %": (100 * analysis.broken, ".1f"),
        }
        name = f"{group.dataset} ({label})" if len(records.settings) > 1 else group.dataset
        texts = [f"{value:{form}}" for value, form in columns.values()]
        lines.append(Line.of(name, group.method, *texts, section=name))
        values = {heading: value if math.isfinite(value) else None for heading, (value, _) in columns.items()}
        rows.append({"setting": label, "dataset": group.dataset, "method": group.method, "n": group.n, **values})
    headings = ("Dataset", "Method", *columns)
    less = tuple(headings.index(name) for name in ("ATFD before", "ATFD after", "repaired %", "broken %"))
    return Table("How predictions change", headings, tuple(lines), NOTES, records=tuple(rows), dispensable=less)
