from __future__ import annotations

import hashlib
import json
import re
from pathlib import Path

import numpy as np
import pytest

from poise import methods
from poise.report.published import paper as published
from poise.report.published.paper import matching
from poise.report.published.peers import PEER_LAYOUTS, PEER_ROWS, TEN
from poise.report.tables.results import result_tables
from tests.report import made

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


@pytest.mark.parametrize(
    "row", [row for row in PEER_ROWS if row.values], ids=lambda row: f"{row.label}-{row.metric}-{row.table}"
)
def test_averages_of_peers_are_the_means_of_their_rows(row: published.PublishedRow) -> None:
    mean = np.mean(list(row.values.values()))
    source = row.label.removeprefix(f"{row.method}, ")
    if row.average is None:
        ten = np.mean([value for name, value in row.values.items() if name != "imagenet"])
        assert ten == pytest.approx(TEN[row.method, source, row.metric], abs=0.051)
    else:
        assert mean == pytest.approx(row.average, abs=0.0051)


def test_rows_of_peers_are_known_methods_with_a_source() -> None:
    assert len(PEER_ROWS) == 2 * 30
    for row in PEER_ROWS:
        assert methods.canonical(row.method) == row.method
        assert row.origin
        assert row.method in PEER_LAYOUTS[row.table].methods
        assert row.metric in ("accuracy", "ece")


def test_the_documented_table_of_peers_is_that_of_the_rows() -> None:
    text = Path("docs/peers.md").read_text("utf-8").split("## Published numbers")[1]
    lines = re.findall(
        r"^\| ([a-z][^\n]*?) \| (\S+)( \(10 datasets\))? / (\S+) \| (\S+) / (\S+) \|", text, re.MULTILINE
    )
    documented = set()
    for name, accuracy, ten, ece, *shifts in lines:
        method = name.replace("\\|", "|")
        for metric, eleven, shift in (("accuracy", accuracy, shifts[0]), ("ece", ece, shifts[1])):
            found = {"peers": eleven, "peers-shifts": shift}
            for table, number in found.items():
                if number == "-":
                    continue
                rows = matching(PEER_ROWS, table=table, method=method, metric=metric)
                averages = [row.average for row in rows]
                if ten and table == "peers":
                    averages = [mean for (one, _, of), mean in TEN.items() if (one, of) == (method, metric)]
                assert float(number) in averages, (method, metric, table)
                documented.add((table, method, metric, float(number)))
    printed = {(row.table, row.method, row.metric, row.average) for row in PEER_ROWS if row.average is not None}
    printed |= {("peers", method, metric, mean) for (method, _, metric), mean in TEN.items()}
    assert documented == printed


def test_the_table_of_peers_has_every_source_beside_ours(tmp_path: Path) -> None:
    made.write_run(tmp_path, datasets=("dtd",), methods=("zero-shot", "a-tpt"), seeds=(1,))
    (table,) = result_tables(tmp_path, like="peers", metrics=("ece",), resamples=10, published_too=True)
    texts = [[cell.text.strip() for cell in line.cells] for line in table.lines]
    assert ["published: a-tpt, re-run", "8.49", "8.49"] in texts
    assert ["published: a-tpt, readme", "4.76", "4.76"] in texts
    assert any("README of A-TPT" in note for note in table.notes)
    sources = {record["source"] for record in table.records if record["origin"] == "published"}
    assert len(sources) == 3
