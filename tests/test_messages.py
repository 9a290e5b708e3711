"""Messages are sentences for users: no error numbers, no names of Python's types, singular where there is one."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from poise import calibration, data
from poise.calibration.feasible import check_number
from poise.cli.input.labelled_images import read_labelled
from poise.cli.input.number_files import read_table, read_truth
from poise.errors import InvalidCalibrationError, PoiseError, reason_of
from poise.evaluate.config import read
from poise.evaluate.storage.checks import read_header
from poise.images import read_image
from poise.prompts import files
from poise.prompts.labels import read_labels

READERS: dict[str, Callable[[Path], object]] = {
    "labels": read_labels,
    "images": read_image,
    "csv": read_labelled,
    "numbers": lambda path: read_table(path, "x"),
    "correct labels": lambda path: read_truth(path, ["cat", "dog"]),
    "prompt": files.load,
    "calibration": calibration.Calibration.load,
    "config": read,
    "run": read_header,
    "shards": lambda path: data.open_dataset(f"wds:{path}"),
}


@pytest.mark.parametrize("name", READERS)
@pytest.mark.parametrize("kind", ["absent", "folder", "not UTF-8"])
def test_files_that_cannot_be_read_are_named_without_error_numbers(name: str, kind: str, tmp_path: Path) -> None:
    path = tmp_path / "x.csv"
    if kind == "folder":
        path.mkdir()
    elif kind == "not UTF-8":
        path.write_bytes(b"\xff\xfe\x80")
    with pytest.raises(PoiseError) as caught:
        READERS[name](path)
    for raw in ("Errno", "codec", "Error(", ".. ", ". ."):
        assert raw not in str(caught.value)
    assert "x.csv" in str(caught.value)


def test_reasons_end_without_a_full_stop() -> None:
    assert reason_of(ValueError("Bad\n  thing.")) == "Bad thing"
    assert reason_of(EOFError()) == "EOFError"
    assert reason_of(json.JSONDecodeError("Expecting value", "", 0)) == "Expecting value: line 1 column 1 (char 0)"


def test_one_image_is_singular() -> None:
    with pytest.raises(InvalidCalibrationError, match=r"^1 image is too few"):
        check_number(1, coverage=[0.9], max_error=[], confidence=0.95, methods=1)
    assert "1 label:" in repr(_classifier())


def _classifier() -> object:
    import poise

    return poise.Classifier(["cat"], "tiny", "zero-shot", device="cpu", one_label=True)
