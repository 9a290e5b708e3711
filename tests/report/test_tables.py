from __future__ import annotations

import csv
import io
import re
from pathlib import Path

import numpy as np
import pytest
from report import made

from poise.errors import InvalidDatasetError, UnknownNameError
from poise.metrics import ece
from poise.report.runs import load
from poise.report.scores import scoreboard
from poise.report.tables import OURS, PUBLISHED, printed, table_text, tabulate
from poise.storage import safe_cell


def lines_of(runs: Path, **options: object) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(table_text(runs, format="csv", resamples=50, **options))))


def test_values_are_means_over_seeds(runs: Path) -> None:
    group = next(load(runs).chosen(dataset="eurosat", method="tpt"))
    by_hand = 100 * np.mean([ece(rows["confidence"], rows["correct"]) for rows in group.seeds.values()])
    (row,) = (
        row for row in lines_of(runs)
        if (row["origin"], row["method"], row["metric"], row["dataset"]) == (OURS, "tpt", "ece", "eurosat")
    )  # fmt: skip
    assert float(row["value"]) == pytest.approx(by_hand)
    assert float(row["low"]) <= float(row["value"]) <= float(row["high"])


def test_average_column_and_published_beside_ours(runs: Path) -> None:
    (table,) = tabulate(scoreboard(load(runs), metrics=("accuracy", "ece"), resamples=20), like="table1")
    assert table.columns == ("Calt", "SAT", "Avg.")
    assert [line.method for line in table.lines if line.metric == "ece" and line.origin == OURS] == [
        "zero-shot", "tpt", "c-tpt", "o-tpt", "kld+cats",
    ]  # fmt: skip
    for line in table.lines:
        values = [cell.value for cell in line.cells]
        assert values[2] == pytest.approx(np.mean(values[:2]))
    (paper,) = (
        each for each in table.lines
        if each.origin == PUBLISHED and each.method == "kld+cats" and each.metric == "ece"
    )  # fmt: skip
    assert [cell.value for cell in paper.cells[:2]] == [1.60, 9.56]
    notes = " ".join(table.notes)
    for said in ("Model pocket", "Calt 80", "seeds 1, 2", "95 % intervals", "Not run of table1", "CLIP ViT-B/16"):
        assert said in notes


def test_best_and_second_are_marked_once_per_column(runs: Path) -> None:
    (table,) = tabulate(scoreboard(load(runs), metrics=("accuracy", "ece"), resamples=20))
    for metric, better in (("accuracy", max), ("ece", min)):
        rows = [line for line in table.lines if line.metric == metric and line.origin == OURS]
        for column in range(3):
            values = [float(printed(line.cells[column].value or 0, metric)) for line in rows]
            best = [
                float(printed(line.cells[column].value or 0, metric)) for line in rows if line.cells[column].rank == 1
            ]
            assert set(best) == {better(values)}
            assert any(line.cells[column].rank == 2 for line in rows)


def test_formats(runs: Path) -> None:
    plain = table_text(runs, resamples=20)
    assert "* best, + second" in plain
    assert "\x1b[" not in plain
    assert "\x1b[1m" in table_text(runs, resamples=20, colour=True)
    markdown = table_text(runs, like="table5", format="md", resamples=20)
    assert re.search(r"\| kld\+cats \| ECE \| .*\*\*[\d.]+\*\*", markdown)
    assert "<u>" in markdown
    latex = table_text(runs, format="latex", resamples=20, intervals=True)
    assert latex.count("\\begin{tabular}") == latex.count("\\end{tabular}") == 1
    assert "\\textbf{" in latex
    assert "95 \\% intervals" in latex
    widths = {len(line.split(" & ")) for line in latex.splitlines() if line.endswith("\\\\")}
    assert widths == {5}


def test_other_metrics_and_intervals(runs: Path) -> None:
    text = table_text(runs, metrics=("nll", "aurc"), resamples=20, intervals=True)
    assert "NLL" in text
    assert re.search(r"\d\.\d{3} \[\d\.\d{3}, \d\.\d{3}\]", text)


def test_a_gap_is_a_dash_and_has_no_average(tmp_path: Path) -> None:
    made.write_run(tmp_path, run="one", datasets=("caltech101",), methods=("tpt", "kld"))
    made.write_run(tmp_path, run="two", datasets=("eurosat",), methods=("tpt",))
    (table,) = tabulate(scoreboard(load(tmp_path), metrics=("ece",), resamples=20), metrics=("ece",))
    (line,) = (line for line in table.lines if line.method == "kld")
    assert [cell.value is None for cell in line.cells] == [False, True, True]
    assert "—" in table_text(tmp_path, metrics=("ece",), resamples=20)


def test_shift_table_averages_the_shifts_only(tmp_path: Path) -> None:
    made.write_run(tmp_path, datasets=("imagenet", "imagenet-a"), methods=("zero-shot", "tpt"))
    (table,) = tabulate(scoreboard(load(tmp_path), metrics=("accuracy", "ece"), resamples=20), like="table4")
    assert table.columns == ("I", "I-A", "OOD Avg.")
    for line in table.lines:
        assert line.cells[2].value == pytest.approx(line.cells[1].value)


def test_frameworks_and_starts_have_their_own_tables(tmp_path: Path) -> None:
    made.write_run(tmp_path, run="plain", methods=("tpt",))
    made.write_run(tmp_path, run="dyna", methods=("tpt",), config={"framework": "dynaprompt"})
    made.write_run(tmp_path, run="coop", methods=("tpt",), config={"init": "coop.safetensors"})
    board = scoreboard(load(tmp_path), metrics=("accuracy", "ece"), resamples=20)
    for like, label in (("table1", "TPT"), ("table2", "CoOp+TPT"), ("table3", "DynaPrompt (Replication)")):
        (table,) = tabulate(board, like=like)
        assert {line.label for line in table.lines if line.origin == PUBLISHED} == {label}
    assert len(tabulate(board)) == 3


def test_refusals(runs: Path) -> None:
    with pytest.raises(UnknownNameError, match="latex"):
        table_text(runs, format="latx")
    with pytest.raises(UnknownNameError, match="table1"):
        table_text(runs, like="table9")
    with pytest.raises(UnknownNameError, match="ece"):
        table_text(runs, metrics=("eec",))
    with pytest.raises(InvalidDatasetError, match="No run fits table4"):
        table_text(runs, like="table4", resamples=20)


@pytest.mark.parametrize("text", ["=1+1", "+1", "-1", "@sum", "\tx", "\rx"])
def test_cells_that_a_spreadsheet_would_run_are_quoted(text: str) -> None:
    assert safe_cell(text) == f"'{text}"
    assert safe_cell(-1.5) == -1.5
    assert safe_cell("kld+cats") == "kld+cats"


def test_hostile_names_stay_text_in_csv(tmp_path: Path) -> None:
    made.write_run(tmp_path, datasets=("=HYPERLINK(1)",), methods=("tpt",), model="@model")
    rows = lines_of(tmp_path)
    assert {row["dataset"] for row in rows} == {"'=HYPERLINK(1)", ""}
    assert {row["model"] for row in rows} == {"'@model"}
