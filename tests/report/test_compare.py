"""Paired differences between methods."""

from __future__ import annotations

import dataclasses
import json
import re
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from poise.cli.app import app
from poise.errors import InvalidOptionError, UnknownNameError
from poise.files import checksum
from poise.report.records.runs import load
from poise.report.records.scores import scoreboard
from poise.report.tables.compare import comparison, differences, setting_differences
from poise.report.tables.formats import render
from poise.report.tables.results import result_tables
from tests.report.made import write_run


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("runs")
    write_run(place)
    return place


def test_differences_are_those_of_the_scores(runs: Path) -> None:
    found = differences(runs, "kld+cats", ["tpt"], ["accuracy", "ece"], resamples=200)
    records = load(runs)
    board = scoreboard(records, metrics=["accuracy", "ece"], resamples=200)
    setting = records.settings[0]
    for each in found:
        names = records.datasets if each.dataset == "average" else [each.dataset]
        ours, theirs = (board.average(setting, names, name, each.metric) for name in ("kld+cats", "tpt"))
        assert each.score.value == pytest.approx(ours.value - theirs.value)
        low, high = each.score.bounds
        assert low <= each.score.value <= high
        apart = np.ptp(np.quantile(ours.draws, [0.025, 0.975])) + np.ptp(np.quantile(theirs.draws, [0.025, 0.975]))
        assert high - low < apart  # pairing takes out what both share


def test_differences_have_the_floors_of_both(runs: Path) -> None:
    table = comparison(runs, "kld+cats", ["tpt"], ["accuracy", "ece"], resamples=20)
    assert table.columns[-1] == "Floors"
    (legend,) = (note for note in table.notes if note.startswith("*"))
    assert "after the difference of the floors (if there are any) is subtracted" in legend
    board = scoreboard(load(runs), metrics=["ece"], resamples=20)
    for row in table.records:
        if row["metric"] == "accuracy":
            assert row["floor"] is row["floor_against"] is None
        elif row["dataset"] != "average":
            (setting,) = board.records.settings
            floors = [
                board.entries[setting, row["dataset"], name].scores["ece_floor"].value for name in ("kld+cats", "tpt")
            ]
            assert (row["floor"], row["floor_against"]) == pytest.approx([100 * floor for floor in floors])
    assert comparison(runs, "kld+cats", ["tpt"], ["accuracy"], resamples=20).columns[-1] != "Floors"


def test_a_method_against_itself_differs_by_nothing(runs: Path) -> None:
    for each in differences(runs, "tpt", ["tpt"], ["ece"], resamples=50):
        assert each.score.value == 0
        assert each.score.bounds == (0, 0)
        assert not each.score.clear


def test_text_and_command(runs: Path) -> None:
    text = render([comparison(runs, "kld+cats", ["zero-shot", "tpt"], ["ece"], resamples=50)], "md")
    assert "| zero-shot | ECE |" in text
    done = CliRunner().invoke(app, ["bench", "compare", str(runs), "--against", "tpt", "--format", "md"])
    assert done.exit_code == 0, done.output
    assert "| tpt | Acc. |" in done.stdout


@pytest.mark.parametrize("command", [["table"], ["compare"], ["analyse"]])
def test_every_table_command_has_formats_and_writes_files(runs: Path, tmp_path: Path, command: list[str]) -> None:
    for name in ("md", "json"):
        out = tmp_path / f"table.{name}"
        done = CliRunner().invoke(app, ["bench", *command, str(runs), "--format", name, "--out", str(out)])
        assert done.exit_code == 0, done.output
        assert "kld+cats" in out.read_text("utf-8")
    json.loads((tmp_path / "table.json").read_text("utf-8"))


def test_a_difference_of_rounding_is_not_marked(runs: Path) -> None:
    board = scoreboard(load(runs), metrics=["ece"], resamples=20)
    score = next(iter(board.entries.values())).scores["ece"]
    nearly = dataclasses.replace(score, by_seed=tuple(value + 1e-10 for value in score.by_seed))
    assert not (nearly - score).clear


def test_analyses_include_the_ablation_and_the_papers_findings(runs: Path) -> None:
    done = CliRunner().invoke(app, ["bench", "analyse", str(runs)])
    assert done.exit_code == 0, done.output
    assert "Ablation: pocket" in done.stdout
    assert re.search(r"kld\+cats +KL divergence +confidence-aware", done.stdout)
    assert re.search(r"kld\+cats +not named in the paper +prediction discrepancy +0\.042", done.stdout)


def test_an_unfinished_run_is_noted(tmp_path: Path) -> None:
    folder = write_run(tmp_path)
    head = json.loads((folder / "run.json").read_text())
    head["config"]["seeds"] = [1, 2]
    head["datasets"] = {"caltech101": {"images": 80}, "eurosat": {"images": 80}}
    (folder / "run.json").write_text(json.dumps(head))
    content = (folder / "caltech101" / "seed1" / "part-00000.parquet").read_bytes()
    line = {"unit": "caltech101/seed1/part-00000", "sha256": checksum(content), "images": 80, "errors": 0}
    (folder / "ledger.jsonl").write_text(json.dumps(line) + "\n")
    assert "is not finished: 80 of 320 images" in render(result_tables(tmp_path, resamples=20))


def test_unknown_methods_are_refused(runs: Path) -> None:
    with pytest.raises(UnknownNameError, match=r"do not have the method tptt\. They have: zero-shot, tpt, "):
        differences(runs, "kld+cats", ["tptt"], ["ece"])
    with pytest.raises(UnknownNameError, match=r"do not have the methods kldd and tptt\."):
        differences(runs, "kldd", ["tptt"], ["ece"])


def test_settings_are_compared_method_by_method(tmp_path: Path) -> None:
    write_run(tmp_path, run="slow", config={"dtype": "float32"})
    write_run(tmp_path, run="fast", config={"dtype": "float16"})
    found = setting_differences(tmp_path, "dtype=float32", ["accuracy"], resamples=50)
    assert {each.setting for each in found} == {"dtype=float16"}
    assert {each.method for each in found} == set(load(tmp_path).methods)
    assert all(each.score.value == 0 and each.score.bounds == (0, 0) for each in found)  # the same answers
    done = CliRunner().invoke(app, ["bench", "compare", str(tmp_path), "--baseline", "float32", "--format", "md"])
    assert done.exit_code == 0, done.output
    assert "| dtype=float16 | caltech101 | tpt | Acc. | +0.00 |" in done.stdout
    by_name = setting_differences(tmp_path, "slow", ["accuracy"], resamples=50)  # the run's name
    assert [(each.setting, each.against) for each in by_name] == [(each.setting, each.against) for each in found]
    with pytest.raises(InvalidOptionError, match=r"2 of the settings.*dtype=float16; pocket, dtype=float32"):
        setting_differences(tmp_path, "pocket", ["accuracy"])


def test_several_runs_are_compared_with_the_first(tmp_path: Path) -> None:
    few = write_run(tmp_path / "one", run="few", config={"views": 6})
    many = write_run(tmp_path / "two", run="many", config={"views": 64})
    command = ["bench", "compare", str(few), str(many), "--format", "json"]
    done = CliRunner().invoke(app, command)
    assert done.exit_code == 0, done.output
    (table,) = json.loads(done.stdout)
    assert {(row["setting"], row["against"]) for row in table["rows"]} == {("views=64", "views=6")}
    assert {row["method"] for row in table["rows"]} == set(load([few, many]).methods)
    other = CliRunner().invoke(app, [*command, "--baseline", "many"])
    assert {row["against"] for row in json.loads(other.stdout)[0]["rows"]} == {"views=64"}


def test_a_whole_name_is_meant_before_a_part_of_another(tmp_path: Path) -> None:
    write_run(tmp_path, run="few", config={"views": 6})
    write_run(tmp_path, run="many", config={"views": 64})
    found = setting_differences(tmp_path, "pocket, views=6", ["accuracy"], resamples=50)
    assert {each.setting for each in found} == {"views=64"}


def test_other_images_are_refused(tmp_path: Path) -> None:
    write_run(tmp_path, run="slow", config={"dtype": "float32"}, images=40)
    write_run(tmp_path, run="fast", config={"dtype": "float16"}, images=30)
    with pytest.raises(
        InvalidOptionError, match=r"dtype=float16 has .* 30 images and .*dtype=float32 for 40, 30 of them"
    ):
        setting_differences(tmp_path, "dtype=float32", ["accuracy"])


def test_settings_with_long_names_are_called_after_their_runs(tmp_path: Path) -> None:
    long = {"dtype": "float16", "template": "a blurry image of the rather large {}.", "augmix": "c-tpt"}
    write_run(tmp_path, run="plain", datasets=("dtd",), methods=("tpt",), config={"dtype": "float32"})
    write_run(tmp_path, run="blurry", datasets=("dtd",), methods=("tpt",), config=long)
    table = comparison(tmp_path, "tpt", [], ["accuracy"], 20, baseline="plain")
    assert {line.cells[0].text for line in table.lines} == {"blurry"}
    assert "Each setting minus dtype=float32" in table.notes[0]
    (note,) = (note for note in table.notes if note.startswith("blurry: "))
    assert "template=a blurry image of the rather large {}." in note
