from __future__ import annotations

import hashlib
import json

import numpy as np
import pytest

from poise.report import published

# The paper's own averages that are not the rounded mean of the row they end: (table, method, init, metric) -> mean
MISPRINTS = {
    ("table1", "zero-shot", "template", "ece"): 4.664,
    ("table2", "o-tpt", "coop", "accuracy"): 63.298,
    ("table4", "kld+cats", "template", "ece"): 3.588,
}


def test_every_row_is_complete() -> None:
    assert len(published.ROWS) == 50
    for row in published.ROWS:
        layout = published.LAYOUTS[row.table]
        assert row.method in layout.methods
        assert row.init in layout.inits
        assert row.framework == layout.framework
        assert tuple(row.values) == (layout.datasets if row.table != "table5" else ())
        assert f"Table {row.table[-1]}" in row.source


@pytest.mark.parametrize(
    "row", [row for row in published.ROWS if row.values], ids=lambda row: f"{row.label}-{row.metric}"
)
def test_averages_are_the_means_of_their_rows(row: published.PublishedRow) -> None:
    mean = np.mean([row.values[name] for name in published.LAYOUTS[row.table].averaged])
    misprint = MISPRINTS.get((row.table, row.method, row.init, row.metric))
    if misprint is not None:
        assert mean == pytest.approx(misprint, abs=1e-3)
    else:
        assert mean == pytest.approx(row.average, abs=0.0051)


# Of all cells of a table, computed when they were last compared with the paper's LaTeX, cell by cell.
CHECKSUMS = {
    "table1": (110, "0c2e4c1b2cf4b6b2"),
    "table2": (154, "22539d590a6c6b09"),
    "table3": (80, "9b6936dc21b7782e"),
    "table4": (60, "650526e69c8f9575"),
    "table5": (8, "61863194525c927b"),
}


@pytest.mark.parametrize("table", published.LAYOUTS)
def test_no_cell_has_changed_since_it_was_compared_with_the_paper(table: str) -> None:
    cells = [[row.method, row.init, row.metric, *row.values.values(), row.average] for row in published.rows(table)]
    digest = hashlib.sha256(json.dumps(cells).encode()).hexdigest()[:16]
    assert (sum(len(row) - 3 for row in cells), digest) == CHECKSUMS[table]


def test_known_numbers() -> None:
    (row,) = published.rows("table1", method="kld+cats", metric="ece")
    assert row.values["dtd"] == 5.68
    assert row.average == 3.65
    (row,) = published.rows("table4", method="tpt", metric="accuracy")
    assert row.values["imagenet-a"] == 52.6
    assert {finding.analysis for finding in published.FINDINGS} == {"confidence", "entropy", "discrepancy", "atfd"}
