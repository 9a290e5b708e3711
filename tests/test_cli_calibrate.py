"""`poise calibrate` and `poise classify --calibration`: files, options, tables and refusals."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from PIL import Image
from typer.testing import CliRunner

from poise.cli.app import app
from poise.cli.input import labelled_images
from poise.cli.output import calibration_tables
from poise.errors import InvalidCalibrationError, InvalidDatasetError, InvalidLabelsError, InvalidOptionError

TINY = ["--model", "tiny", "--views", "3", "--device", "cpu"]
LABELS = ("cat", "dog")


def draw(path: Path, seed: int) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    pixels = np.random.default_rng(seed).integers(0, 256, (24, 24, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(path)
    return path


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    root = tmp_path_factory.mktemp("labelled")
    for seed in range(24):
        draw(root / LABELS[seed % 2] / f"{seed}.png", seed)
    return root


def invoke(*arguments: object):
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


@pytest.fixture(scope="module")
def stored(folder, tmp_path_factory) -> Path:
    out = tmp_path_factory.mktemp("out") / "calibration.json"
    result = invoke("calibrate", folder, "--out", out, *TINY)
    assert result.exit_code == 0, (result.output, result.exception)
    for text in (
        "Methods on 24 images",
        "kld+cats",
        "NLL after",
        "floor",
        "Reliability of",
        "Recommended:",
        f"--calibration {out}",
    ):
        assert text in result.output, text
    return out


def refused(kind: type[Exception], *arguments: object) -> str:
    result = invoke(*arguments)
    assert isinstance(result.exception, kind), (result.output, result.exception)
    return str(result.exception)


def test_the_file_sets_all_options_of_classify(stored, tmp_path):
    image = draw(tmp_path / "new.png", 99)
    given = ["--calibration", stored, "--device", "cpu", "--coverage", 0.9]
    shown = invoke("classify", image, *given, "--format", "json")
    assert shown.exit_code == 0, (shown.output, shown.exception)
    (row,) = json.loads(shown.output)
    values = json.loads(stored.read_text("utf-8"))
    assert row["method"] == values["recommended"]
    assert set(row["probabilities"]) == set(LABELS)
    assert set(row["prediction_set"]) <= set(LABELS)
    assert row["raw_confidence"] is not None
    assert row["decision"] is None
    plain = invoke("classify", image, "--labels", "cat,dog", *TINY, "--method", row["method"], "--format", "json")
    assert json.loads(plain.output)[0]["confidence"] == pytest.approx(row["raw_confidence"], abs=1e-6)
    table = invoke("classify", image, *given)
    assert "{" + ", ".join(row["prediction_set"]) + "}" in table.output
    (line,) = csv.DictReader(io.StringIO(invoke("classify", image, *given, "--format", "csv").output))
    assert json.loads(line["prediction_set"]) == row["prediction_set"]
    assert line["decision"] == ""


def test_decisions_are_shown_with_their_guarantee(folder, tmp_path):
    image, out = draw(tmp_path / "new.png", 99), tmp_path / "c.json"
    predicted = json.loads(
        invoke("classify", folder, "--labels", "cat,dog", *TINY, "--method", "zero-shot", "--format", "json").output
    )
    (tmp_path / "labels.csv").write_text(
        "path,label\n" + "".join(f"{row['source']},{row['label']}\n" for row in predicted), "utf-8"
    )  # every answer is right
    made = invoke(
        "calibrate",
        tmp_path / "labels.csv",
        "--labels",
        "cat,dog",
        "--out",
        out,
        *TINY,
        "--method",
        "zero-shot",
        "--max-error",
        "0.2",
    )
    assert made.exit_code == 0, (made.output, made.exception)
    shown = invoke("classify", image, "--calibration", out, "--device", "cpu", "--max-error", 0.2)
    assert "at most 20 % of the answers to images drawn like the calibration images are wrong" in " ".join(
        shown.output.split()
    )
    assert "answer" in shown.output or "abstain" in shown.output
    text = refused(
        InvalidCalibrationError, "classify", image, "--calibration", out, "--device", "cpu", "--max-error", 0.01
    )
    assert "24 calibration images" in text


def test_calibration_images_cost_one_row_each(stored, folder, tmp_path):
    draw(tmp_path / "new.png", 99)
    result = invoke("classify", folder / "cat" / "0.png", tmp_path, "--calibration", stored, "--device", "cpu")
    assert result.exit_code == 3
    assert "one of the calibration images" in result.output


@pytest.mark.parametrize(
    ("options", "kind", "words"),
    [
        (
            ["--max-error", "0.05"],
            InvalidCalibrationError,
            "24 images are too few: at least 72 are needed for an",
        ),
        (["--coverage", "0.99"], InvalidCalibrationError, "99 are needed for prediction sets with coverage 0.99"),
        (["--coverage", "90"], InvalidOptionError, "--coverage is '90'"),
        (["--coverage", "x"], InvalidOptionError, "--coverage is 'x'"),
        (["--max-error", "0"], InvalidOptionError, "--max-error is '0'"),
        (["--confidence", "95"], InvalidOptionError, "--confidence is 95"),
        (["--labels", "cat,cow"], InvalidOptionError, "labels that the classifier has not: 'dog'"),
        (["--labels", "cat,cat"], InvalidLabelsError, "Duplicate"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else None,
)
def test_refusals_come_before_the_model_is_loaded(folder, tmp_path, options, kind, words):
    text = refused(kind, "calibrate", folder, "--out", tmp_path / "c.json", "--model", "no-such-model", *options)
    assert words in text
    assert not (tmp_path / "c.json").exists()


@pytest.mark.parametrize(
    "content", [b"", b"path,label\n", b"file,class\na.png,cat\n", b"\xff\xfe\x00", b"path,label\na.png\n", b"\x00\x01"]
)
def test_csv_files_that_are_something_else(content, tmp_path):
    (tmp_path / "x.csv").write_bytes(content)
    text = refused(InvalidDatasetError, "calibrate", tmp_path / "x.csv", "--out", tmp_path / "c.json", *TINY)
    assert "path,label" in text


def test_a_csv_file_with_too_many_rows_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(labelled_images, "MAX_ROWS", 3)
    (tmp_path / "l.csv").write_text("path,label\n" + "a.png,cat\n" * 4, "utf-8")
    assert "has more than 3 rows" in refused(InvalidDatasetError, "calibrate", tmp_path / "l.csv", "--out", "c.json")
    (tmp_path / "l.csv").write_text("path,label\n" + "a.png,cat\n" * 3, "utf-8")
    assert len(labelled_images.read_labelled(tmp_path / "l.csv")[0]) == 3


def test_a_csv_file_with_other_columns_is_told_which_it_has(tmp_path):
    (tmp_path / "x.csv").write_text("path,class\na.png,cat\n")
    text = refused(InvalidDatasetError, "calibrate", tmp_path / "x.csv", "--out", tmp_path / "c.json", *TINY)
    assert "has no column label, but 'path', 'class'" in text


def test_a_small_probability_is_not_printed_as_0():
    part = SimpleNamespace(scores={"lac": np.full(100, 10.0)})
    assert [str(cell) for cell in calibration_tables.set_line("zero-shot", part, 0.9).cells][-1] == "4.5e-05"


def test_groups_of_methods_and_what_cannot_be_certified(folder, tmp_path):
    made = invoke(
        "calibrate", folder, "--out", tmp_path / "c.json", "--method", "zero-shot", "--max-error", "0.15", *TINY
    )
    assert made.exit_code == 0, (made.output, made.exception)
    assert "no threshold can be certified for 15 % (zero-shot)" in " ".join(made.output.split())
    text = refused(
        InvalidCalibrationError,
        "calibrate",
        folder,
        "--out",
        tmp_path / "c.json",
        "--method",
        "paper",
        "--max-error",
        "0.15",
        *TINY,
    )
    assert "24 images are too few" in text  # for seven methods


def test_bad_images_are_left_out_and_named(folder, tmp_path):
    rows = [f"{file},{file.parent.name}" for file in sorted(folder.rglob("*.png"))]
    (tmp_path / "broken.png").write_bytes(b"not an image")
    (tmp_path / "labels.csv").write_text("\n".join(["path,label", *rows, "broken.png,cat", "absent.png,dog"]), "utf-8")
    result = invoke("calibrate", tmp_path / "labels.csv", "--out", tmp_path / "c.json", *TINY, "--method", "zero-shot")
    assert result.exit_code == 0, (result.output, result.exception)
    assert "Methods on 24 images" in result.output
    assert "left out" in result.output
    assert "broken.png" in result.output
    assert "absent.png" in result.output
