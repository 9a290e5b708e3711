"""`poise calibrate --probabilities` and `--features`: files of numbers instead of images."""

from __future__ import annotations

import contextlib
import csv
import io
import json
import zipfile
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from poise.calibration import Calibration, calibrate_probabilities, probabilities_of_features
from poise.cli.app import app
from poise.cli.input import number_files
from poise.errors import (
    InvalidCalibrationError,
    InvalidDatasetError,
    InvalidLabelsError,
    InvalidOptionError,
    PoiseError,
)

LABELS = ("cat", "dog", "fox")


@pytest.fixture
def numbers() -> tuple[np.ndarray, np.ndarray]:
    random = np.random.default_rng(0)
    probs = random.dirichlet(np.full(3, 0.3), 60)
    return probs, np.array([random.choice(3, p=row) for row in probs])


def invoke(*arguments: object):
    return CliRunner().invoke(app, ["calibrate", *map(str, arguments)])


def refused(kind: type[Exception], *arguments: object) -> str:
    result = invoke(*arguments)
    assert isinstance(result.exception, kind), (result.output, result.exception)
    return str(result.exception)


def write_table(path: Path, table: np.ndarray) -> Path:
    """Write an array in the format of the file's name."""
    if path.suffix == ".npy":
        np.save(path, table)
    elif path.suffix == ".npz":
        np.savez_compressed(path, probabilities=table, other=np.zeros(3))
    elif path.suffix == ".parquet":
        pq.write_table(pa.table(dict(zip(LABELS, table.T, strict=True))), path)
    else:
        rows = "\n".join(",".join(map(repr, row)) for row in table.tolist())
        path.write_text(f"{','.join(LABELS)}\n{rows}\n", "utf-8")
    return path


@pytest.mark.parametrize("suffix", ["npy", "npz", "parquet", "csv"])
def test_each_format_gives_the_calibration_of_the_arrays(suffix, numbers, tmp_path):
    probs, truth = numbers
    file, answers = write_table(tmp_path / f"p.{suffix}", probs), tmp_path / "y.csv"
    answers.write_text("path,label\n" + "".join(f"{at}.png,{LABELS[label]}\n" for at, label in enumerate(truth)))
    out = tmp_path / "c.json"
    named = [] if suffix in ("parquet", "csv") else ["--labels", ",".join(LABELS)]
    result = invoke("--probabilities", file, "--truth", answers, "--out", out, *named)
    assert result.exit_code == 0, (result.output, result.exception)
    for text in (
        "60 images, 3 labels",
        "Methods on 60 images",
        "Thresholds",
        "Prediction sets",
        "poise calibrate apply",
    ):
        assert text in result.output, text
    assert "Recommended" not in result.output
    made, expected = Calibration.load(out), calibrate_probabilities(probs, truth, labels=LABELS, confidence=0.95)
    assert made.to_dict() == expected.to_dict()


@pytest.mark.parametrize("suffix", ["npy", "npz", "parquet", "csv"])
def test_correct_labels_as_positions(suffix, numbers, tmp_path):
    probs, truth = numbers
    file = write_table(tmp_path / "p.npy", probs.astype(np.float32))
    answers = tmp_path / f"y.{suffix}"
    if suffix == "npy":
        np.save(answers, truth.astype(np.uint8))
    elif suffix == "npz":
        np.savez(answers, truth)
    elif suffix == "parquet":
        pq.write_table(pa.table({"label": truth}), answers)
    else:
        answers.write_text("label\n" + "\n".join(map(str, truth)))
    assert invoke("--probabilities", file, "--truth", answers, "--out", tmp_path / "c.json").exit_code == 0
    made = Calibration.load(tmp_path / "c.json")
    assert made.methods["given"].labels.tolist() == truth.tolist()
    assert made.conditions.labels == ("0", "1", "2")


def test_features_of_images_and_texts(numbers, tmp_path):
    random = np.random.default_rng(1)
    image, text = random.normal(size=(40, 8)).astype(np.float16), random.normal(size=(3, 8))
    np.save(tmp_path / "text.npy", np.asfortranarray(text))
    pq.write_table(pa.table({"embedding": list(image)}), tmp_path / "image.parquet")
    np.save(tmp_path / "y.npy", random.integers(0, 3, 40))
    given = ["--features", tmp_path / "image.parquet", "--text", tmp_path / "text.npy", "--truth", tmp_path / "y.npy"]
    result = invoke(*given, "--scale", 5, "--out", tmp_path / "c.json")
    assert result.exit_code == 0, (result.output, result.exception)
    expected = probabilities_of_features(image, text, 5).max(1)
    assert Calibration.load(tmp_path / "c.json").methods["given"].confidence == pytest.approx(expected, abs=1e-12)
    assert "--scale" in refused(InvalidOptionError, *given, "--out", tmp_path / "c.json")
    assert "scale is 0.0" in refused(InvalidOptionError, *given, "--scale", 0, "--out", tmp_path / "c.json")


def test_logits_are_those_of_their_softmax(numbers, tmp_path):
    probs, truth = numbers
    np.save(tmp_path / "z.npy", np.log(probs) + 3)
    np.save(tmp_path / "y.npy", truth)
    given = ["--logits", tmp_path / "z.npy", "--truth", tmp_path / "y.npy"]
    assert invoke(*given, "--out", tmp_path / "c.json").exit_code == 0
    assert Calibration.load(tmp_path / "c.json").methods["given"].confidence == pytest.approx(probs.max(1), abs=1e-12)
    np.save(tmp_path / "z.npy", np.full((60, 3), np.inf))
    assert "not finite" in refused(InvalidOptionError, *given, "--out", tmp_path / "c.json")


@pytest.fixture
def stored(numbers, tmp_path) -> Path:
    calibrate_probabilities(*numbers, labels=LABELS).save(tmp_path / "c.json")
    return tmp_path / "c.json"


@pytest.mark.parametrize("suffix", [".jsonl", ".csv"])
def test_a_calibration_is_applied_without_an_image(suffix, numbers, stored, tmp_path):
    probs, _ = numbers
    file = write_table(tmp_path / "p.parquet", probs[:20])
    out = tmp_path / f"answers{suffix}"
    options = ["--coverage", 0.9, "--max-error", 0.45, "--top-k", 2]
    result = invoke("apply", stored, "--probabilities", file, *options, "--out", out)
    assert result.exit_code == 0, (result.output, result.exception)
    assert "at most 45 % of the answers" in result.output
    expected = Calibration.load(stored).apply(probs[:20], coverage=0.9, max_error=0.45)
    if suffix == ".csv":
        rows = list(csv.DictReader(out.read_text().splitlines()))
        assert [float(row["p 1"]) for row in rows] == pytest.approx(expected.probabilities.max(1))
        rows = [{**row, "prediction_set": json.loads(row["prediction_set"])} for row in rows]
    else:
        rows = [json.loads(line) for line in out.read_text().splitlines()]
        assert [len(row["probabilities"]) for row in rows] == [2] * 20
    assert [row["source"] for row in rows] == [f"row {at}" for at in range(20)]
    assert [float(row["raw_confidence"]) for row in rows] == pytest.approx(probs[:20].max(1))
    assert [row["decision"] == "answer" for row in rows] == expected.answered.tolist()
    for row, members in zip(rows, expected.sets, strict=True):
        assert {LABELS.index(label) for label in row["prediction_set"]} == {*np.flatnonzero(members)}


def test_what_cannot_be_applied(numbers, stored, tmp_path):
    file = write_table(tmp_path / "p.csv", numbers[0])
    file.write_text(file.read_text().replace("cat,dog,fox", "dog,cat,fox"))
    out = ["--out", tmp_path / "a.jsonl"]
    assert "not the labels" in refused(InvalidLabelsError, "apply", stored, "--probabilities", file, *out)
    assert "No number was given" in refused(InvalidOptionError, "apply", stored, *out)
    assert ".jsonl or .csv" in refused(InvalidOptionError, "apply", stored, "--logits", file, "--out", tmp_path / "a")
    assert not (tmp_path / "a.jsonl").exists()


def test_numbers_are_monitored_without_an_image(numbers, stored, tmp_path):
    random = np.random.default_rng(1)
    for name, probs in (("same", random.dirichlet(np.full(3, 0.3), 80)), ("other", np.full((80, 3), 1 / 3))):
        np.save(tmp_path / f"{name}.npy", probs)
        answers, labels = tmp_path / f"{name}.jsonl", [random.choice(3, p=row) for row in probs]
        given = ["--probabilities", tmp_path / f"{name}.npy", "--coverage", 0.9]
        assert invoke("apply", stored, *given, "--out", answers).exit_code == 0
        (tmp_path / "y.csv").write_text("\n".join(["label", *(LABELS[label] for label in labels)]))
        for more in ([], ["--truth", tmp_path / "y.csv", "--coverage", 0.9]):
            done = CliRunner().invoke(app, [str(word) for word in ("monitor", stored, answers, *more)])
            assert done.exit_code == (6 if name == "other" else 0), (done.output, done.exception)
            assert "80" in done.output
    (tmp_path / "y.csv").write_text("label\ncat\n")
    done = CliRunner().invoke(app, ["monitor", str(stored), str(answers), "--truth", str(tmp_path / "y.csv")])
    assert "1 labels were given for 80 images" in str(done.exception)


def test_options_that_do_not_go_together(numbers, tmp_path, monkeypatch):
    probs, truth = numbers
    file = write_table(tmp_path / "p.npy", probs)
    np.save(tmp_path / "y.npy", truth)
    out, pair = ["--out", tmp_path / "c.json"], ["--probabilities", file, "--truth", tmp_path / "y.npy"]
    assert "nothing to calibrate on" in refused(InvalidOptionError, *out)
    assert "--probabilities was given" in refused(InvalidOptionError, "--probabilities", file, *out)
    assert "--truth was given" in refused(InvalidOptionError, tmp_path, "--truth", file, *out)
    assert "--scale" in refused(InvalidOptionError, *pair, "--scale", 3, *out)
    assert "images would have no effect" in refused(InvalidOptionError, tmp_path, *pair, *out)
    assert "--model, --views would have no effect" in refused(
        InvalidOptionError, *pair, "--model", "tiny", "--views", 3, *out
    )
    refused(InvalidLabelsError, *pair, "--labels", "cat,dog", *out)
    assert "too few" in refused(InvalidCalibrationError, *pair, "--max-error", 0.01, *out)
    assert not (tmp_path / "c.json").exists()
    monkeypatch.setenv("POISE_CALIBRATE_VIEWS", "3")  # for other calls
    assert invoke(*pair, *out).exit_code == 0


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("p.npy", b"", "can't be read as numbers"),
        ("p.npy", b"\x93NUMPY\x01\x00\x10\x00{'descr': '<f8'}", "can't be read as numbers"),
        ("p.npz", b"PK\x03\x04", "can't be read as numbers"),
        ("p.parquet", b"PAR1PAR1", "can't be read as numbers"),
        ("p.csv", b"", "can't be read as numbers"),
        ("p.csv", b"cat,dog\n", "no rows"),
        ("p.csv", b"0.3,0.7\n0.5,0.5\n", "its first line has numbers"),
        ("p.csv", b"cat,dog\n0.5,high\n", "can't be read as numbers"),
        ("p.csv", b"cat,dog\n0.5\n", "can't be read as numbers"),
        ("p.csv", b"cat,dog\n0.5,\n0.5,0.5\n", "not finite"),
        ("p.csv", b"cat,dog\n3,4\n5,6\n", "not probabilities"),
        ("p.csv", b"\xff\xfe\x00", "can't be read as numbers"),
        ("p.txt", b"0.5 0.5", "is no file of numbers"),
    ],
)
def test_files_that_are_something_else(name, content, said, tmp_path):
    (tmp_path / name).write_bytes(content)
    np.save(tmp_path / "y.npy", np.zeros(2, int))
    text = refused(
        PoiseError, "--probabilities", tmp_path / name, "--truth", tmp_path / "y.npy", "--out", tmp_path / "c.json"
    )
    assert said in text


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "no column label"),
        (b"class\ncat\n", "no column label, but class"),
        (b"label\nowl\n", "'owl' in row 1, which is none of the 3 labels"),
        (b"label\n1.5\n", "'1.5' in row 1"),
        (b"label\n7\n", "1 labels were given for 60 images"),
        (b"label\n" + b"7\n" * 60, "run from 7 to 7"),
    ],
)
def test_correct_labels_that_are_none(content, said, numbers, tmp_path):
    file = write_table(tmp_path / "p.csv", numbers[0])
    (tmp_path / "y.csv").write_bytes(content)
    text = refused(PoiseError, "--probabilities", file, "--truth", tmp_path / "y.csv", "--out", tmp_path / "c.json")
    assert said in text


def header(shape: tuple[int, ...], dtype: str = "<f8") -> bytes:
    stream = io.BytesIO()
    np.lib.format.write_array_header_1_0(stream, {"descr": dtype, "fortran_order": False, "shape": shape})
    return stream.getvalue()


def test_sizes_in_a_header_are_not_believed_and_objects_not_unpickled(tmp_path):
    for shape in ((1 << 40, 1 << 20), (3, 2), (-1, -4)):
        (tmp_path / "p.npy").write_bytes(header(shape) + b"\0" * 32)
        with pytest.raises(InvalidDatasetError, match="not that of its content"):
            number_files.read_table(tmp_path / "p.npy", "x")
    for values in (np.array([{}, None]), np.array(["a"]), np.array([1j])):
        np.save(tmp_path / "o.npy", values, allow_pickle=True)
        with pytest.raises(InvalidDatasetError, match="not numbers"):
            number_files.read_table(tmp_path / "o.npy", "x")
    np.savez(tmp_path / "two.npz", a=np.zeros(2), b=np.zeros(2))
    with pytest.raises(InvalidDatasetError, match="no array 'x', but a, b"):
        number_files.read_table(tmp_path / "two.npz", "x")


def test_what_is_unpacked_is_limited(tmp_path, monkeypatch):
    monkeypatch.setattr(number_files, "MAX_BYTES", 1 << 16)
    with zipfile.ZipFile(tmp_path / "p.npz", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("x.npy", header((1 << 20,)) + b"\0" * (8 << 20))
    with pytest.raises(InvalidDatasetError, match="larger than"):
        number_files.read_table(tmp_path / "p.npz", "x")
    pq.write_table(pa.table({"a": np.zeros(1 << 16), "b": np.zeros(1 << 16)}), tmp_path / "p.parquet")
    with pytest.raises(InvalidDatasetError, match="of numbers"):
        number_files.read_table(tmp_path / "p.parquet", "x")
    (tmp_path / "p.csv").write_bytes(b"a,b\n" + b"0.5,0.5\n" * (1 << 14))
    with pytest.raises(InvalidDatasetError, match="larger than"):
        number_files.read_table(tmp_path / "p.csv", "x")


def test_lists_in_a_column_have_one_length(tmp_path):
    for lists in ([[1.0, 2.0], [3.0]], [[1.0], [2.0, 3.0], [4.0, 5.0, 6.0]], [[1.0], None], [["a"]]):
        pq.write_table(pa.table({"x": lists}), tmp_path / "p.parquet")
        with pytest.raises(InvalidDatasetError, match=r"different lengths|not numbers"):
            number_files.read_table(tmp_path / "p.parquet", "x")


def test_damaged_files_are_one_error(tmp_path, numbers):
    random = np.random.default_rng(0)
    for suffix in ("npy", "npz", "parquet", "csv"):
        whole = write_table(tmp_path / f"p.{suffix}", numbers[0]).read_bytes()
        for _ in range(150):
            edited = bytearray(whole)
            for at in random.integers(0, len(whole), 4):
                edited[at] = random.integers(256)
            (tmp_path / f"x.{suffix}").write_bytes(edited[: random.integers(1, len(edited) + 1)] if at % 2 else edited)
            with contextlib.suppress(PoiseError):
                number_files.read_table(tmp_path / f"x.{suffix}", "probabilities")
