"""The paper's analyses as numbers: confidence, entropy change, prediction discrepancy, text dispersion, ablation."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from poise.report import published
from poise.report.published import ABLATION
from poise.report.runs import Group, Records, Setting
from poise.report.scores import Scoreboard, scoreboard, shown
from poise.report.table import Line, Table


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


@dataclass(frozen=True)
class Ablated:
    """One corner of the ablation grid (Table 5), in percent."""

    method: str
    temperature: bool
    divergence: bool
    accuracy: float
    ece: float


def ablation(board: Scoreboard, setting: Setting) -> list[Ablated]:
    """{entropy, divergence} x {no temperature, CATS}, averaged over the datasets on which all four were run."""
    found = board.records.datasets
    datasets = [name for name in found if all(board.find(setting, name, method) for method in ABLATION)]
    corners = []
    for method in ABLATION:
        accuracy = board.average(setting, datasets, method, "accuracy")
        ece = board.average(setting, datasets, method, "ece")
        if accuracy is not None and ece is not None:
            values = shown("accuracy", accuracy.value), shown("ece", ece.value)
            corners.append(Ablated(method, *_parts(board.records.method_settings(method)), *values))
    return corners


def _parts(settings: Mapping[str, Any]) -> tuple[bool, bool]:
    """Whether a stored method has confidence-aware temperatures, and whether it minimises the divergence."""
    terms = {term["objective"] for term in settings.get("terms", ())} | {settings.get("loss")}  # "loss": older records
    return bool(settings.get("cats")), "divergence" in terms


def analysis_tables(records: Records) -> list[Table]:
    """The analyses of all groups, the ablation where its four methods were run, and the paper's own findings."""
    tables = [_analysis_table(records)]
    board = scoreboard(records, metrics=("accuracy", "ece"), resamples=1)
    for setting in records.settings:
        if corners := ablation(board, setting):
            tables.append(_ablation_table(f"Ablation: {records.label(setting)}", corners))
    findings = tuple(
        Line.of(each.method, each.dataset or "average", each.quantity, f"{each.value:g}") for each in published.FINDINGS
    )
    source = f"{published.PAPER}, with {published.MODEL}."
    columns = ("Method", "Dataset", "Quantity", "Value")
    return [
        *tables,
        Table("Findings of the paper", columns, findings, (source,), 3, tuple(map(asdict, published.FINDINGS))),
    ]


def _ablation_table(title: str, corners: Sequence[Ablated]) -> Table:
    paper = {(row.method, row.metric): row.average for row in published.rows("table5")}
    lines = tuple(
        Line.of(
            each.method, "KL divergence" if each.divergence else "entropy",
            "confidence-aware" if each.temperature else "none", f"{each.accuracy:.2f}", f"{each.ece:.2f}",
            f"{paper[each.method, 'accuracy']:.2f}", f"{paper[each.method, 'ece']:.2f}",
        )
        for each in corners
    )  # fmt: skip
    columns = ("Method", "Objective", "Temperature", "Acc.", "ECE", "published Acc.", "published ECE")
    note = f"Average over the datasets that have all four; published: over ten datasets, with {published.MODEL}."
    return Table(title, columns, lines, (note,), 3, tuple({"table": title, **asdict(each)} for each in corners))


_COLUMNS = {  # heading -> (what is read, how it is printed)
    "conf. correct": (lambda found: found.confidence.correct, ".3f"),
    "conf. wrong": (lambda found: found.confidence.wrong, ".3f"),
    "ΔH correct": (lambda found: found.entropy_change.correct, "+.3f"),
    "ΔH wrong": (lambda found: found.entropy_change.wrong, "+.3f"),
    "discrepancy %": (lambda found: 100 * found.discrepancy, ".1f"),
    "ATFD before": (lambda found: found.init_atfd, ".3f"),
    "ATFD after": (lambda found: found.atfd, ".3f"),
    "repaired %": (lambda found: 100 * found.repaired, ".1f"),
    "broken %": (lambda found: 100 * found.broken, ".1f"),
}  # fmt: skip
NOTES = (
    "conf.: mean confidence of correct and of wrong predictions. ΔH: entropy after tuning minus before, in nats; "
    "correct means correct after tuning.",
    "discrepancy: share of images whose p_aug and plain view predict different classes after tuning. ATFD: mean "
    "distance of the class texts to their centre. repaired, broken: images whose prediction became right or wrong.",
)


def _analysis_table(records: Records) -> Table:
    several = len(records.settings) > 1
    lines, rows = [], []
    for group in records.groups:
        found = analyse(group)
        label = records.label(group.setting)
        name = f"{group.dataset} ({label})" if several else group.dataset
        values = {heading: read(found) for heading, (read, _) in _COLUMNS.items()}
        texts = [f"{values[heading]:{form}}" for heading, (_, form) in _COLUMNS.items()]
        lines.append(Line.of(name, group.method, *texts, section=name))
        plain = {heading: value if math.isfinite(value) else None for heading, value in values.items()}
        rows.append({"setting": label, "dataset": group.dataset, "method": group.method, "n": group.n, **plain})
    columns = ("Dataset", "Method", *_COLUMNS)
    return Table("How predictions change", columns, tuple(lines), NOTES, records=tuple(rows))
