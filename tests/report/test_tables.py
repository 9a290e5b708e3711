from __future__ import annotations

import csv
import io
import json
import re
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from poise.cli.app import app
from poise.errors import InvalidDatasetError, UnknownNameError
from poise.metrics import ece, ece_floor
from poise.report.records.runs import load
from poise.report.records.scores import scoreboard
from poise.report.tables.formats import formats, render
from poise.report.tables.results import OURS, PUBLISHED, result_tables
from poise.text import printable, safe_cell
from tests.report import made


def table_text(runs: Path, *, format: str = "terminal", colour: bool = False, **options: object) -> str:
    return render(result_tables(runs, **options), format, colour=colour)


def lines_of(runs: Path, **options: object) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(table_text(runs, format="csv", resamples=50, **options))))


def test_values_are_means_over_seeds(runs: Path) -> None:
    group = next(load(runs).chosen(dataset="eurosat", method="tpt"))
    by_hand = 100 * np.mean([ece(rows["confidence"], rows["correct"]) for rows in group.seeds.values()])
    (row,) = (
        row
        for row in lines_of(runs)
        if (row["origin"], row["method"], row["metric"], row["dataset"]) == (OURS, "tpt", "ece", "eurosat")
    )
    assert float(row["value"]) == pytest.approx(by_hand)
    assert float(row["low"]) <= float(row["value"]) <= float(row["high"])


def test_average_column_and_published_beside_ours(runs: Path) -> None:
    board = scoreboard(load(runs), metrics=("accuracy", "ece"), resamples=20)
    (table,) = result_tables(board, like="table1", published_too=True)
    assert table.columns == ("Method", "Metric", "Calt", "SAT", "Avg.")
    assert [line.cells[0].text for line in table.lines if not line.quiet][::2] == [
        "zero-shot",
        "tpt",
        "c-tpt",
        "o-tpt",
        "kld+cats",
    ]
    rows: dict[tuple[str, ...], list[float]] = {}
    for row in table.records:
        rows.setdefault((row["origin"], row["method"], row["metric"]), []).append(row["value"])
    assert len(rows) == 20
    for values in rows.values():
        assert values[2] == pytest.approx(np.mean(values[:2]))
    assert rows[PUBLISHED, "kld+cats", "ece"][:2] == [1.60, 9.56]
    notes = " ".join(table.notes)
    for said in ("Model pocket", "Calt 80", "seeds 1, 2", "95 % confidence", "Not run of table1", "CLIP ViT-B/16"):
        assert said in notes
    assert "Run, but not in table1: tpt+cats, kld." in table.notes
    assert "  published: KLD+CaTS (Choi et al.)" in {line.cells[0].text for line in table.lines}


def test_numbers_of_another_model_are_shown_on_request_only(runs: Path, tmp_path: Path) -> None:
    for like in (None, "table1"):
        (table,) = result_tables(runs, like=like, resamples=20)
        assert not any("published" in line.cells[0].text for line in table.lines)
        assert not any("CLIP ViT-B/16" in note or "published" in note for note in table.notes)
    done = CliRunner().invoke(app, ["bench", "table", str(runs), "--published", "--format", "md"])
    assert "published: KLD+CaTS (Choi et al.)" in done.output
    made.write_run(tmp_path, model="ViT-B-16/openai")
    (table,) = result_tables(tmp_path, resamples=20)
    assert any("published: TPT" in line.cells[0].text for line in table.lines)


def test_settings_that_are_not_the_defaults_are_printed(tmp_path: Path) -> None:
    changed = {"views": 8, "augmix": "off", "options": {"tpt": {"lr": 0.01}}, "dtype": "float32"}
    made.write_run(tmp_path / "changed", config=changed)
    (table,) = result_tables(tmp_path / "changed", resamples=20)
    assert "Settings that are not the defaults: augmix=off, tpt.lr=0.01, views=8." in table.notes
    made.write_run(tmp_path / "usual", config={"views": 64, "augmix": "auto", "framework": "tpt", "init": "template"})
    (table,) = result_tables(tmp_path / "usual", resamples=20)
    assert not any("defaults" in note for note in table.notes)


def test_the_best_and_all_that_are_not_significantly_worse_are_marked(runs: Path) -> None:
    board = scoreboard(load(runs), metrics=("accuracy", "ece"), resamples=200)
    (table,) = result_tables(board)
    for metric, better in (("accuracy", max), ("ece", min)):
        for column in ("Calt", "SAT", "Avg."):
            rows = [
                row for row in table.records if (row["origin"], row["metric"], row["column"]) == (OURS, metric, column)
            ]
            datasets = {"Calt": ["caltech101"], "SAT": ["eurosat"]}.get(column, ["caltech101", "eurosat"])
            scores = {
                row["method"]: board.average(load(runs).settings[0], datasets, row["method"], metric) for row in rows
            }
            leader = better(scores.values(), key=lambda score: score.value)
            marked = {row["method"] for row in rows if row["best"]}
            expected = {name for name, score in scores.items() if not (score - leader).clear}
            assert marked == (expected if len(expected) < len(scores) else set())
    text = render([table])
    assert text.count("†") == sum(row["best"] for row in table.records) + 1  # and once in the legend


def test_nothing_is_marked_where_images_differ(tmp_path: Path) -> None:
    made.write_run(tmp_path, run="one", datasets=("dtd",), methods=("tpt",), images=80)
    made.write_run(tmp_path, run="two", datasets=("dtd",), methods=("kld",), images=60)
    (table,) = result_tables(tmp_path, resamples=20)
    assert not any(row["best"] for row in table.records)


def test_standard_deviations_over_seeds(runs: Path) -> None:
    group = next(load(runs).chosen(dataset="eurosat", method="tpt"))
    by_hand = 100 * np.std([ece(rows["confidence"], rows["correct"]) for rows in group.seeds.values()], ddof=1)
    (row,) = (
        row
        for row in lines_of(runs)
        if (row["origin"], row["method"], row["metric"], row["dataset"]) == (OURS, "tpt", "ece", "eurosat")
    )
    assert float(row["std"]) == pytest.approx(by_hand)
    assert f"± {by_hand:.2f}" in table_text(runs, resamples=20, std=True)
    assert "±" not in table_text(runs, resamples=20, std=False).split("Model pocket")[0]
    means = [
        np.mean(
            [
                ece(found.seeds[seed]["confidence"], found.seeds[seed]["correct"])
                for found in load(runs).chosen(method="tpt")
            ]
        )
        for seed in (1, 2)
    ]
    (average,) = (
        row
        for row in lines_of(runs)
        if (row["origin"], row["method"], row["metric"], row["dataset"]) == (OURS, "tpt", "ece", "")
    )
    assert float(average["std"]) == pytest.approx(100 * np.std(means, ddof=1))


def test_every_ece_has_its_floor_beside_it(runs: Path) -> None:
    group = next(load(runs).chosen(dataset="eurosat", method="tpt"))
    by_hand = 100 * np.mean([ece_floor(rows["confidence"]) for rows in group.seeds.values()])
    for row in lines_of(runs):
        assert bool(row["floor"]) == ((row["origin"], row["metric"]) == (OURS, "ece"))
    (found,) = (
        row
        for row in lines_of(runs)
        if (row["origin"], row["method"], row["metric"], row["column"]) == (OURS, "tpt", "ece", "SAT")
    )
    assert float(found["floor"]) == pytest.approx(by_hand)
    (table,) = result_tables(runs, resamples=20, intervals=True)
    floors = [cell for line in table.lines for cell in line.cells if "(floor" in cell.extra]
    assert len(floors) == 3 * len(made.METHODS)
    assert f"(floor {by_hand:.2f})" in render([table], "md")
    assert "ECE: the floor is what perfectly calibrated answers" in " ".join(table.notes)


def test_a_compact_table_has_one_line_of_floors(runs: Path) -> None:
    rows = [row for row in lines_of(runs) if (row["metric"], row["column"]) == ("ece", "SAT")]
    for format in ("terminal", "md", "latex", "html"):
        assert table_text(runs, resamples=20, format=format).count(">floor<" if format == "html" else "floor") >= 1
    (table,) = result_tables(runs, resamples=20)
    line = table.lines[-1]
    assert [cell.text for cell in line.cells[:2]] == ["floor", "ECE"]
    assert line.cells[3].text == f"{max(float(row['floor']) for row in rows if row['floor']):.2f}"
    assert "(ECE) after the difference of the floors is subtracted" in table.notes[-1]
    assert "floor" not in table_text(runs, resamples=20, metrics=("accuracy", "nll"))


def test_floors_are_not_ranked(runs: Path) -> None:
    (table,) = result_tables(runs, resamples=20, metrics=("ece_floor",))
    assert not any(row["best"] for row in table.records)


def test_formats(runs: Path) -> None:
    plain = table_text(runs, resamples=20)
    assert "\x1b[" not in plain
    assert "\x1b[1m" in table_text(runs, resamples=20, colour=True)
    markdown = table_text(runs, like="table5", format="md", resamples=20)
    assert re.search(r"\| kld\+cats \| ECE \| .*\*\*[\d.]+\*\*", markdown)
    latex = table_text(runs, format="latex", resamples=20, intervals=True)
    assert latex.count("\\begin{tabular}") == latex.count("\\end{tabular}") == 1
    assert "\\textbf{" in latex
    assert "95 \\% confidence intervals" in latex
    widths = {len(line.split(" & ")) for line in latex.splitlines() if line.endswith("\\\\")}
    assert widths == {5}
    (found,) = json.loads(table_text(runs, format="json", resamples=20))
    assert {row["method"] for row in found["rows"]} == set(made.METHODS)
    assert table_text(runs, format="html", resamples=20).count("<table>") == 1
    assert set(formats) == {"terminal", "md", "latex", "csv", "json", "html"}


@pytest.mark.parametrize("format", ["terminal", "md", "html", "latex"])
def test_hostile_names_are_escaped_in_tables(tmp_path: Path, format: str) -> None:
    made.write_run(tmp_path, datasets=("[/red]\x1b[31m<b>|&",), methods=("tpt",))
    text = table_text(tmp_path, format=format, resamples=5, colour=True)
    assert "\x1b[31m" not in text
    assert "[/red]" in text
    if format == "html":
        assert "<b>|" not in text
    if format == "md":
        assert "<b>\\|&" in text
    assert printable("a\tb") == "a\\tb"


def test_characters_that_change_the_order_of_text_are_escaped() -> None:
    assert printable("gpj.\u202egod\u2066\u200f") == "gpj.\\u202egod\\u2066\\u200f"
    escaped = printable("\xad\U000e0041\x85\x7f\n\u2028")
    assert escaped == "\\u00ad\\udb40\\udc41\\u0085\\u007f\\n\\u2028"
    assert json.loads(f'"{escaped}"') == "\xad\U000e0041\x85\x7f\n\u2028"
    for plain in ("naïve 猫 é", "न\u200dह", "👩\u200d🚀"):
        assert printable(plain) == plain


def test_other_metrics_and_intervals(runs: Path) -> None:
    text = table_text(runs, metrics=("nll", "aurc"), resamples=20, intervals=True)
    assert "NLL" in text
    assert re.search(r"\d\.\d{3} \[\d\.\d{3}, \d\.\d{3}\]", text)


def test_a_gap_is_a_dash_and_has_no_average(tmp_path: Path) -> None:
    made.write_run(tmp_path, run="one", datasets=("caltech101",), methods=("tpt", "kld"))
    made.write_run(tmp_path, run="two", datasets=("eurosat",), methods=("tpt",))
    (table,) = result_tables(scoreboard(load(tmp_path), metrics=("ece",), resamples=20), metrics=("ece",))
    (line,) = (line for line in table.lines if line.section == "kld")
    assert [cell.text == "—" for cell in line.cells] == [False, False, True, True]
    assert "—" in table_text(tmp_path, metrics=("ece",), resamples=20)


def test_shift_table_averages_the_shifts_only(tmp_path: Path) -> None:
    made.write_run(tmp_path, datasets=("imagenet", "imagenet-a"), methods=("zero-shot", "tpt"))
    (table,) = result_tables(scoreboard(load(tmp_path), metrics=("accuracy", "ece"), resamples=20), like="table4")
    assert table.columns == ("Method", "Metric", "I", "I-A", "OOD Avg.")
    for line in table.lines:
        assert line.cells[4].text == line.cells[3].text


def test_frameworks_and_inits_have_separate_tables(tmp_path: Path) -> None:
    made.write_run(tmp_path, run="plain", methods=("tpt",))
    made.write_run(tmp_path, run="dyna", methods=("tpt",), config={"framework": "dynaprompt"})
    made.write_run(tmp_path, run="coop", methods=("tpt",), config={"init": "x.safetensors"}, init_kind="coop")
    board = scoreboard(load(tmp_path), metrics=("accuracy", "ece"), resamples=20)
    for like, label in (("table1", "TPT"), ("table2", "CoOp+TPT"), ("table3", "DynaPrompt (Replication)")):
        (table,) = result_tables(board, like=like, published_too=True)
        assert {line.cells[0].text for line in table.lines if line.quiet} == {f"  published: {label}", "floor"}
    assert len(result_tables(board)) == 3


def test_refusals(runs: Path) -> None:
    with pytest.raises(UnknownNameError, match="latex"):
        table_text(runs, format="latx")
    with pytest.raises(UnknownNameError, match="table1"):
        table_text(runs, like="table9")
    with pytest.raises(UnknownNameError, match="ece"):
        table_text(runs, metrics=("eec",))
    with pytest.raises(InvalidDatasetError, match="No run fits table4"):
        table_text(runs, like="table4", resamples=20)


@pytest.mark.parametrize("text", ["=1+1", "+1", "-1", "@sum"])
def test_cells_that_a_spreadsheet_would_run_are_quoted(text: str) -> None:
    assert safe_cell(text) == f"'{text}"
    assert safe_cell("\t=1") == "\\t=1"
    assert safe_cell(-1.5) == -1.5
    assert safe_cell("kld+cats") == "kld+cats"


def test_hostile_names_stay_text_in_csv(tmp_path: Path) -> None:
    made.write_run(tmp_path, datasets=("=HYPERLINK(1)",), methods=("tpt",), model="@model")
    rows = lines_of(tmp_path)
    assert {row["dataset"] for row in rows} == {"'=HYPERLINK(1)", ""}
    assert {row["model"] for row in rows} == {"'@model"}
