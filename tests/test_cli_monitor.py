"""`poise monitor`, and the last line of `poise classify --calibration`."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from typer.testing import CliRunner

import poise
from poise.cli.app import app
from poise.cli.exit_codes import ALARM
from poise.errors import InvalidCalibrationError, InvalidOptionError, UnknownNameError


def run(*arguments: object):
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Calibrated on noise; images of the same kind in "same", and darker ones in "dark"."""
    root = tmp_path_factory.mktemp("photos")
    rng = np.random.default_rng(0)
    for part, number in {"labelled/cat": 20, "labelled/dog": 20, "same": 20, "dark": 20}.items():
        (root / part).mkdir(parents=True)
        for at in range(number):
            pixels = rng.integers(0, 256, (24, 24, 3), dtype=np.uint8)
            if part == "dark":
                pixels //= 4
            Image.fromarray(pixels).save(root / part / f"{at:02}.png")
    options = ["--model", "tiny", "--method", "zero-shot", "--device", "cpu", "--out", root / "calibration.json"]
    assert run("calibrate", root / "labelled", *options).exit_code == 0
    return root


def classify(place: Path, part: str, *options: object):
    options = (*options, "--device", "cpu", "--overwrite", "--out", place / f"{part}.jsonl")
    return run("classify", place / part, "--calibration", place / "calibration.json", "--model", "tiny", *options)


def test_an_alarm_has_its_own_exit_code_and_names_the_image(place: Path, tmp_path: Path) -> None:
    done = classify(place, "dark")
    assert done.exit_code == 0, done.output
    assert "The images differ from the calibration images" in done.stderr
    figure = tmp_path / "evidence.svg"
    found = run("monitor", place / "calibration.json", place / "dark.jsonl", "--figure", figure, "--no-shuffle")
    assert found.exit_code == ALARM
    watch = poise.Calibration.load(place / "calibration.json").monitor()
    rows = [json.loads(line) for line in (place / "dark.jsonl").read_text("utf-8").splitlines()]
    for row in rows:
        watch.update(row["raw_confidence"], row["match"])
    assert watch.rang is not None
    assert str(watch) in found.stdout
    assert f"Image {watch.rang}: {rows[watch.rang - 1]['source']}" in found.stdout
    assert "taken in the order of the file" in found.stdout
    assert figure.read_text("utf-8").startswith("<svg")


def test_images_of_the_same_kind_pass(place: Path) -> None:
    assert "calibration images" not in classify(place, "same").stderr
    assert "No sign after 20 images" in classify(place, "same", "--verbose").stderr
    for options in ([], ["--seed", 3], ["--no-shuffle"]):
        found = run("monitor", place / "calibration.json", place / "same.jsonl", *options)
        assert found.exit_code == 0
        assert "No sign after 20 images" in found.stdout


def test_a_folder_sorted_by_label_raises_no_alarm(place: Path, tmp_path: Path) -> None:
    """Unless its order is said to be that of time; `poise classify` and `poise monitor` come to the same evidence."""
    calibration = json.loads((place / "calibration.json").read_text("utf-8"))
    (name,) = calibration["methods"]
    known = sorted(calibration["methods"][name]["confidence"])
    row = {"method": name, "label": "cat", "rejected": None, "prediction_set": None, "error": None, "match": 0.1}
    stored = poise.Calibration.load(place / "calibration.json")
    matches = stored.methods[name].match
    assert matches is not None
    sorted_rows = [
        {**row, "source": f"{at:03}.png", "raw_confidence": confidence, "match": match}
        for at, (confidence, match) in enumerate(zip(known * 3, sorted(map(float, matches)) * 3, strict=True))
    ]
    sorted_rows.sort(key=lambda row: row["raw_confidence"])
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in sorted_rows), "utf-8")
    command = ("monitor", place / "calibration.json", tmp_path / "rows.jsonl")
    in_order, shuffled = run(*command, "--no-shuffle"), run(*command)
    assert (in_order.exit_code, shuffled.exit_code) == (ALARM, 0)
    assert "taken in random order (seed 0)" in shuffled.stdout
    said = classify(place, "same", "--verbose").stderr
    found = run("monitor", place / "calibration.json", place / "same.jsonl").stdout
    assert found.splitlines()[0] in said


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"raw_confidence": None}, "Line 1 .* has no raw_confidence"),
        ({"raw_confidence": "high"}, "not a row of results"),
        ({"match": True}, "not a row of results"),
        ({"method": "tpt"}, "no answers of zero-shot. It has those of: tpt"),
        ({"error": {"code": "unreadable_image", "message": ""}}, "no answers of zero-shot. It has none"),
    ],
)
def test_rows_that_say_nothing_are_refused(place: Path, tmp_path: Path, change: dict, words: str) -> None:
    row = {"source": "x.png", "method": "zero-shot", "raw_confidence": 0.5, "match": 0.1, "error": None}
    (tmp_path / "rows.jsonl").write_text(json.dumps({**row, **change}) + "\n", "utf-8")
    refused = run("monitor", place / "calibration.json", tmp_path / "rows.jsonl")
    with pytest.raises(InvalidOptionError, match=words):
        raise refused.exception


def test_answers_of_another_model_are_refused(place: Path, tmp_path: Path) -> None:
    """The settings beside the rows name the model; rows without such a file are taken as they are."""
    assert classify(place, "same").exit_code == 0
    rows, settings = tmp_path / "rows.jsonl", tmp_path / "rows.jsonl.settings.json"
    rows.write_bytes((place / "same.jsonl").read_bytes())
    stored = json.loads((place / "same.jsonl.settings.json").read_text("utf-8"))
    for change, code in (({}, 0), ({"fingerprint": "another"}, 1), ({"labels": ["dog", "cat"]}, 1)):
        settings.write_text(json.dumps({**stored, **change}), "utf-8")
        found = run("monitor", place / "calibration.json", rows)
        assert found.exit_code == code
        assert isinstance(found.exception, InvalidCalibrationError) == bool(change)
    settings.unlink()
    assert run("monitor", place / "calibration.json", rows).exit_code == 0


def test_a_file_that_is_too_large_is_refused(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As one that never ends would be."""
    monkeypatch.setattr("poise.cli.commands.monitor._MAX_BYTES", 1000)
    refused = run("monitor", place / "calibration.json", "/dev/zero")
    assert isinstance(refused.exception, InvalidOptionError)
    assert "--top-k" in str(refused.exception)


def test_other_mistakes(place: Path, tmp_path: Path) -> None:
    calibration, rows = place / "calibration.json", tmp_path / "rows.jsonl"
    assert "can't be read" in str(run("monitor", calibration, rows).exception)
    for text in ("", "{}\n", "no json\n", "\n", "[]\n"):
        rows.write_text(text, "utf-8")
        assert isinstance(run("monitor", calibration, rows).exception, InvalidOptionError)
    rows.write_bytes(b"\xff\n")
    assert isinstance(run("monitor", calibration, rows).exception, InvalidOptionError)
    assert "ends in .svg" in str(run("monitor", calibration, rows, "--figure", "x.png").exception)
    assert "alpha is 2" in str(run("monitor", calibration, rows, "--alpha", 2).exception)
    assert isinstance(run("monitor", calibration, rows, "--method", "tpt").exception, UnknownNameError)


def test_labels_that_come_later(place: Path, tmp_path: Path) -> None:
    assert classify(place, "same", "--coverage", 0.8).exit_code == 0
    rows = [json.loads(line) for line in (place / "same.jsonl").read_text("utf-8").splitlines()]
    labels = tmp_path / "labels.csv"
    labels.write_text("path,label\n" + "".join(f"{row['source']},{row['label']}\n" for row in rows[:10]), "utf-8")
    command = ("monitor", place / "calibration.json", place / "same.jsonl", "--truth", labels)
    found = run(*command, "--coverage", 0.8)
    assert found.exit_code == 0, (found.output, found.exception)
    assert "No sign after 10 labelled images that sets contain the correct label less often" in found.stdout
    labels.write_text("path,label\nelsewhere.png,cat\n", "utf-8")
    assert "None of the images has a label" in str(run(*command).exception)
    assert "--coverage and --max-error need labels" in str(run(*command[:3], "--coverage", 0.8).exception)
    assert "--figure shows the test without labels" in str(run(*command, "--figure", tmp_path / "a.svg").exception)


def test_answers_in_csv_are_those_of_json_lines(place: Path, tmp_path: Path) -> None:
    common = ("--calibration", place / "calibration.json", "--coverage", 0.8, "--model", "tiny", "--device", "cpu")
    for suffix in ("jsonl", "csv"):
        assert run("classify", place / "same", *common, "--out", tmp_path / f"x.{suffix}").exit_code == 0
    found = [run("monitor", place / "calibration.json", tmp_path / f"x.{suffix}") for suffix in ("jsonl", "csv")]
    assert found[0].exit_code == found[1].exit_code, (found[1].output, found[1].exception)
    assert found[0].stdout == found[1].stdout
    (tmp_path / "y.csv").write_text("a,b\n1,2\n")
    assert ".jsonl or .csv" in str(run("monitor", place / "calibration.json", tmp_path / "y.csv").exception)
