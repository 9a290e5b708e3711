"""Paired differences between methods."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from report.made import write_run
from typer.testing import CliRunner

from poise.cli.app import app
from poise.errors import InvalidOptionError, UnknownNameError
from poise.report.compare import comparison_text, differences, setting_differences
from poise.report.runs import load
from poise.report.scores import scoreboard
from poise.report.tables import table_text


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
        low, high = each.bounds
        assert low <= each.score.value <= high
        apart = np.ptp(np.quantile(ours.draws, [0.025, 0.975])) + np.ptp(np.quantile(theirs.draws, [0.025, 0.975]))
        assert high - low < apart  # pairing takes out what both share


def test_a_method_against_itself_differs_by_nothing(runs: Path) -> None:
    for each in differences(runs, "tpt", ["tpt"], ["ece"], resamples=50):
        assert each.score.value == 0
        assert each.bounds == (0, 0)


def test_text_and_command(runs: Path) -> None:
    text = comparison_text(runs, "kld+cats", ["zero-shot", "tpt"], ["ece"], resamples=50)
    assert "| zero-shot | ECE |" in text
    done = CliRunner().invoke(app, ["bench", "compare", str(runs), "--against", "tpt"])
    assert done.exit_code == 0, done.output
    assert "| tpt | Acc. |" in done.stdout


def test_analyses_come_with_the_ablation_and_the_papers_own(runs: Path) -> None:
    done = CliRunner().invoke(app, ["bench", "analyse", str(runs)])
    assert done.exit_code == 0, done.output
    assert "| Ablation, pocket, average over the datasets | Acc. | ECE |" in done.stdout
    assert "- kld+cats: prediction discrepancy 0.042" in done.stdout


def test_an_unfinished_run_says_so(tmp_path: Path) -> None:
    folder = write_run(tmp_path)
    head = json.loads((folder / "run.json").read_text())
    head["config"]["seeds"] = [1, 2]
    head["datasets"] = {"caltech101": {"images": 80}, "eurosat": {"images": 80}}
    (folder / "run.json").write_text(json.dumps(head))
    line = {"unit": "caltech101/seed1/part-00000", "sha256": "0", "bytes": 1, "images": 80, "errors": 0}
    (folder / "ledger.jsonl").write_text(json.dumps(line) + "\n")
    assert "is not finished: 80 of 320 images" in table_text(tmp_path, resamples=20)


def test_unknown_methods_are_refused(runs: Path) -> None:
    with pytest.raises(UnknownNameError, match="Did you mean 'tpt'"):
        differences(runs, "kld+cats", ["tptt"], ["ece"])


def test_settings_are_compared_method_by_method(tmp_path: Path) -> None:
    write_run(tmp_path, run="slow", config={"dtype": "float32"})
    write_run(tmp_path, run="fast", config={"dtype": "float16"})
    found = setting_differences(tmp_path, "dtype=float32", ["accuracy"], resamples=50)
    assert {each.setting for each in found} == {"pocket, dtype=float16"}
    assert {each.method for each in found} == set(load(tmp_path).methods)
    assert all(each.score.value == 0 and each.bounds == (0, 0) for each in found)  # the same answers
    done = CliRunner().invoke(app, ["bench", "compare", str(tmp_path), "--baseline", "float32"])
    assert done.exit_code == 0, done.output
    assert "| pocket, dtype=float16 | caltech101 | tpt | Acc. | +0.00 |" in done.stdout
    with pytest.raises(InvalidOptionError, match=r"2 of the settings.*dtype=float16; pocket, dtype=float32"):
        setting_differences(tmp_path, "pocket", ["accuracy"])


def test_a_whole_name_is_meant_before_a_part_of_another(tmp_path: Path) -> None:
    write_run(tmp_path, run="few", config={"views": 6})
    write_run(tmp_path, run="many", config={"views": 64})
    found = setting_differences(tmp_path, "pocket, views=6", ["accuracy"], resamples=50)
    assert {each.setting for each in found} == {"pocket, views=64"}


def test_other_images_are_refused(tmp_path: Path) -> None:
    write_run(tmp_path, run="slow", config={"dtype": "float32"}, images=40)
    write_run(tmp_path, run="fast", config={"dtype": "float16"}, images=30)
    with pytest.raises(
        InvalidOptionError, match=r"dtype=float16 has .* 30 images and .*dtype=float32 for 40, 30 of them"
    ):
        setting_differences(tmp_path, "dtype=float32", ["accuracy"])
