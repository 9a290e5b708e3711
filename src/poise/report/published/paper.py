"""The paper's numbers: Tables 1 to 5, in percent as printed, and the values given in its analyses.

Source: Choi, Jang, Lee and Kim, "Rethinking the Test-Time Prompt Tuning Objective from the Perspective of Calibration".
All with CLIP ViT-B/16, means of three seeds (standard deviation of Table 1: accuracy 0.11, ECE 0.15).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from poise.data import catalog

PAPER = "Choi et al., Rethinking the Test-Time Prompt Tuning Objective from the Perspective of Calibration"
MODEL = "CLIP ViT-B/16"
SAME_MODEL = ("ViT-B-16/openai", "ViT-B-16-quickgelu/openai", "transformers:openai/clip-vit-base-patch16")
NO_DATASET = "not named in the paper"  # the dataset of some findings

FINE_GRAINED = tuple(row.name for row in catalog.FINE_GRAINED)
WITHOUT_SUN = tuple(name for name in FINE_GRAINED if name != "sun397")
IMAGENET = tuple(row.name for row in catalog.IMAGENET)
SHIFTS = tuple(row.name for row in catalog.IMAGENET if row.shift)


@dataclass(frozen=True)
class TableLayout:
    """The rows and columns of one of the paper's tables."""

    name: str
    title: str
    datasets: tuple[str, ...]
    averaged: tuple[str, ...]  # the datasets behind its last column
    average: str  # the heading of that column
    methods: tuple[str, ...]
    framework: str = "tpt"
    inits: tuple[str, ...] = ("template",)


@dataclass(frozen=True)
class PublishedRow:
    """One printed row."""

    table: str
    label: str  # the method as the paper writes it
    method: str  # the same method under poise's name
    metric: str
    values: dict[str, float]  # dataset -> percent
    average: float | None  # None: not printed
    framework: str = "tpt"
    init: str = "template"
    origin: str = ""  # where it is printed, if not in the paper

    @property
    def title(self) -> str:
        """The method as our tables name it: "Ours" is the paper's own."""
        return f"{self.label.replace('Ours', 'KLD+CaTS')} (Choi et al.)" if "Ours" in self.label else self.label

    @property
    def source(self) -> str:
        """The paper, table and row that the numbers are printed in."""
        return self.origin or f"{PAPER}, Table {self.table.removeprefix('table')}, row {self.label}"


_FIVE = ("zero-shot", "tpt", "c-tpt", "o-tpt", "kld+cats")
ABLATION = ("tpt", "tpt+cats", "kld", "kld+cats")
LAYOUTS = {
    layout.name: layout
    for layout in (
        TableLayout("table1", "Fine-grained classification", FINE_GRAINED, FINE_GRAINED, "Avg.", _FIVE),
        TableLayout(
            "table2",
            "Prompts fitted by CoOp and MaPLe",
            FINE_GRAINED,
            FINE_GRAINED,
            "Avg.",
            ("tpt", "c-tpt", "o-tpt", "kld+cats"),
            inits=("coop", "maple"),
        ),
        TableLayout(
            "table3",
            "The DynaPrompt framework",
            WITHOUT_SUN,
            WITHOUT_SUN,
            "Avg.",
            ("tpt", "c-tpt", "o-tpt", "kld+cats"),
            framework="dynaprompt",
        ),
        TableLayout("table4", "Natural distribution shifts", IMAGENET, SHIFTS, "OOD Avg.", _FIVE),
        TableLayout(
            "table5", "Ablation: temperature scaling, KL divergence", FINE_GRAINED, FINE_GRAINED, "Avg.", ABLATION
        ),
    )
}

# table, label, method, framework, init, then accuracy and ECE: the datasets in the table's order and the average
_PRINTED = """
table1 | CLIP-ViT-B/16 | zero-shot | tpt | template
23.9 92.9 65.3 44.3 41.3 67.3 83.6 88.0 62.5 65.0 63.41
5.11 5.50 4.25 8.50 7.40 3.00 2.39 4.37 2.53 3.59 4.67
table1 | TPT | tpt | tpt | template
23.4 93.8 66.3 46.7 42.4 69.0 84.7 87.1 65.5 67.3 64.62
16.8 4.51 5.16 21.2 21.5 13.5 3.98 5.77 11.3 13.0 11.67
table1 | C-TPT | c-tpt | tpt | template
24.0 93.6 65.8 46.0 43.2 69.8 83.7 88.2 64.8 65.7 64.48
4.36 4.24 1.59 11.9 13.2 5.04 3.43 1.90 5.04 2.54 5.32
table1 | O-TPT | o-tpt | tpt | template
23.64 93.95 64.53 45.68 42.84 70.07 84.13 87.95 64.23 64.16 64.12
3.68 3.80 1.78 7.88 12.98 3.87 1.46 1.90 4.93 2.34 4.46
table1 | Ours | kld+cats | tpt | template
23.64 94.56 67.44 47.10 43.09 70.65 85.17 89.96 66.94 68.51 65.71
3.94 1.60 2.67 5.68 9.56 2.17 1.76 2.09 3.61 3.46 3.65
table2 | CoOp+TPT | tpt | tpt | coop
20.0 94.0 65.6 44.5 40.6 68.7 83.8 89.1 65.6 67.2 63.91
29.6 3.65 6.63 34.8 31.3 19.9 9.66 7.40 20.8 19.9 18.36
table2 | CoOp+C-TPT | c-tpt | tpt | coop
19.2 93.9 63.1 45.0 40.7 69.0 83.7 89.3 65.1 66.6 63.56
21.5 1.66 2.45 21.0 13.2 10.2 4.49 2.12 11.8 12.0 10.04
table2 | CoOp+O-TPT | o-tpt | tpt | coop
18.69 93.71 64.12 45.45 40.17 68.57 83.55 89.07 64.01 65.64 63.29
16.82 0.92 2.85 16.02 13.76 6.81 3.59 1.92 7.23 9.16 7.91
table2 | CoOp+Ours | kld+cats | tpt | coop
18.69 93.79 63.47 44.15 44.11 70.04 83.97 89.51 64.91 67.25 63.99
4.19 2.08 7.66 9.12 9.08 3.36 1.77 2.40 3.33 3.33 4.63
table2 | MaPLe+TPT | tpt | tpt | maple
24.36 94.42 66.50 50.05 47.32 70.72 85.01 87.78 64.87 66.48 65.75
10.58 2.38 4.14 11.80 9.42 11.63 1.78 1.79 8.47 7.41 6.94
table2 | MaPLe+O-TPT | o-tpt | tpt | maple
24.00 92.29 65.38 49.11 44.58 71.53 84.35 89.97 63.49 65.82 65.05
6.41 3.49 3.61 4.90 7.92 4.35 1.49 3.97 2.78 2.22 4.11
table2 | MaPLe+Ours | kld+cats | tpt | maple
22.55 93.45 66.11 48.45 48.34 72.24 85.00 90.71 65.68 67.93 66.05
2.12 2.90 4.55 5.58 5.32 2.03 3.53 1.25 1.55 3.93 3.28
table3 | DynaPrompt (Replication) | tpt | dynaprompt | template
22.68 94.16 66.88 47.87 35.91 69.67 84.92 87.71 68.17 64.22
18.67 3.05 5.08 23.19 33.76 12.73 6.75 5.62 13.72 13.62
table3 | DynaPrompt+C-TPT | c-tpt | dynaprompt | template
23.34 93.83 66.04 46.99 36.57 70.08 83.58 88.61 65.74 63.86
10.21 2.51 2.17 15.87 16.94 4.35 2.21 2.43 5.33 6.89
table3 | DynaPrompt+O-TPT | o-tpt | dynaprompt | template
22.41 93.67 65.58 45.80 36.32 68.74 83.39 88.55 65.69 63.35
9.60 2.74 2.13 14.31 17.73 3.60 2.03 2.78 3.43 6.48
table3 | DynaPrompt+Ours | kld+cats | dynaprompt | template
22.59 93.43 67.16 46.99 45.32 71.12 85.31 89.55 68.09 65.51
4.12 2.75 4.81 5.71 9.10 2.22 2.03 3.40 2.19 4.04
table4 | CLIP | zero-shot | tpt | template
66.7 47.8 60.8 74.0 46.1 57.18
2.12 8.61 3.01 3.58 4.95 5.04
table4 | TPT | tpt | tpt | template
69.0 52.6 63.0 76.7 47.5 59.95
10.6 16.4 11.1 4.36 16.1 11.99
table4 | C-TPT | c-tpt | tpt | template
68.5 51.6 62.7 76.0 47.9 59.55
3.15 8.16 6.23 1.54 7.35 5.82
table4 | O-TPT | o-tpt | tpt | template
67.3 49.9 61.7 72.6 47.1 57.82
1.97 7.22 3.97 1.46 6.87 4.88
table4 | Ours | kld+cats | tpt | template
68.19 51.88 63.00 77.50 46.18 59.64
3.42 5.37 4.38 3.30 1.30 3.55
table5 | no temperature scaling, no KLD | tpt | tpt | template
64.52
9.80
table5 | temperature scaling, no KLD | tpt+cats | tpt | template
64.77
8.70
table5 | KLD, no temperature scaling | kld | tpt | template
64.97
6.18
table5 | temperature scaling and KLD | kld+cats | tpt | template
65.71
3.65
"""


def _cells(line: str) -> list[str]:
    return [cell.strip() for cell in line.split("|")]


def _read() -> tuple[PublishedRow, ...]:
    lines = _PRINTED.strip().splitlines()
    rows = []
    for head, *numbers in zip(lines[::3], lines[1::3], lines[2::3], strict=True):
        table, label, method, framework, init = _cells(head)
        for metric, line in zip(("accuracy", "ece"), numbers, strict=True):
            *cells, average = map(float, line.split())
            datasets = LAYOUTS[table].datasets if cells else ()
            values = dict(zip(datasets, cells, strict=True))
            rows.append(PublishedRow(table, label, method, metric, values, average, framework, init))
    return tuple(rows)


ROWS = _read()


@dataclass(frozen=True)
class PublishedFinding:
    """A number of the paper's analyses (its section "More Studies")."""

    analysis: str
    method: str
    quantity: str
    value: float
    dataset: str
    source: str


# analysis, method, quantity, value, dataset (none: the paper names none), figure
_FINDINGS = """
confidence | tpt | mean confidence of wrong predictions | 0.609 | dtd | 4
confidence | kld+cats | mean confidence of correct predictions | 0.731 | dtd | 4
confidence | kld+cats | mean confidence of wrong predictions | 0.355 | dtd | 4
entropy | tpt | mean entropy change of correct predictions | -0.50 | | 5
entropy | tpt | mean entropy change of wrong predictions | -0.44 | | 5
entropy | kld+cats | mean entropy change of correct predictions | -0.25 | | 5
entropy | kld+cats | mean entropy change of wrong predictions | 0.14 | | 5
discrepancy | tpt | prediction discrepancy | 0.209 | | 6
discrepancy | kld+cats | prediction discrepancy | 0.042 | | 6
atfd | tpt | text-feature dispersion | 0.32 | dtd | 3
atfd | o-tpt | text-feature dispersion | 0.47 | dtd | 3
atfd | kld+cats | text-feature dispersion | 0.50 | dtd | 3
"""
FINDINGS = tuple(
    PublishedFinding(analysis, method, quantity, float(value), dataset, f"{PAPER}, Figure {figure}")
    for analysis, method, quantity, value, dataset, figure in map(_cells, _FINDINGS.strip().splitlines())
)


def rows(table: str | None = None, **same: str) -> list[PublishedRow]:
    """Return the printed rows of a table (default: all) with these fields: method, metric, framework, init."""
    return matching(ROWS, **(same if table is None else {**same, "table": table}))


def matching(found: Iterable[PublishedRow], **same: str) -> list[PublishedRow]:
    """Return the rows with these values in these fields."""
    return [row for row in found if all(getattr(row, field) == value for field, value in same.items())]
