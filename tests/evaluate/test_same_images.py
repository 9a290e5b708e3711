from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from PIL import Image
from typer.testing import CliRunner

from poise import progress
from poise.cli.app import app
from poise.data import verify
from poise.errors import InvalidDatasetError, InvalidOptionError, RunConflictError
from poise.evaluate import same_images
from poise.images import read_image
from poise.report.records.runs import load
from tests.evaluate.attempt import arguments, make_images


def bench(images: Path, out: Path, *more: str):
    chosen = ["--method", "zero-shot,tpt", "--views", "2", "--chunk", "2", "--no-tsne"]
    return CliRunner().invoke(app, arguments(images, out, *chosen, *more))


@pytest.fixture
def images(tmp_path: Path) -> Path:
    return make_images(tmp_path / "images", classes=2, each=2)


def replace_image(path: Path) -> None:
    Image.new("RGB", (40, 40), "red").save(path)


def open_part(out: Path) -> Path:
    """Remove the last chunk, so that the run can be resumed."""
    last = max((out / "run").rglob("part-*.parquet"))
    last.unlink()
    return last


def test_records_have_the_hash_of_the_pixels(images: Path, tmp_path: Path) -> None:
    assert bench(images, tmp_path / "out").exit_code == 0
    for part in (tmp_path / "out").rglob("part-*.parquet"):
        for row in pq.read_table(part).to_pylist():
            assert row["pixels"] == read_image(images / row["id"]).key


@pytest.mark.parametrize("change", ["replaced", "damaged"])
def test_a_replaced_image_is_refused_by_name_when_a_run_is_resumed(images: Path, tmp_path: Path, change: str) -> None:
    assert bench(images, tmp_path / "out").exit_code == 0
    lost = open_part(tmp_path / "out")
    file = images / "class1" / "0.png"
    kept = file.read_bytes()
    if change == "replaced":
        replace_image(file)
    else:
        file.write_bytes(b"damaged")
    result = bench(images, tmp_path / "out")
    assert isinstance(result.exception, RunConflictError)
    assert "'class1/0.png'" in str(result.exception)
    assert not lost.exists()
    file.write_bytes(kept)
    assert bench(images, tmp_path / "out").exit_code == 0
    assert lost.exists()


def test_files_of_the_same_size_and_time_are_not_read_again(
    images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert bench(images, tmp_path / "out").exit_code == 0
    read: list[object] = []
    monkeypatch.setattr(same_images, "read_image", lambda source: read.append(source) or read_image(source))
    open_part(tmp_path / "out")
    assert bench(images, tmp_path / "out").exit_code == 0
    assert read == []
    open_part(tmp_path / "out")
    (images / "class1" / "0.png").touch()  # another time: the pixels of its chunks decide
    assert bench(images, tmp_path / "out").exit_code == 0
    assert 1 <= len(read) <= 2
    open_part(tmp_path / "out")
    assert bench(images, tmp_path / "out", "--deep").exit_code == 0
    assert len(read) >= 4


def test_an_image_of_the_same_size_and_time_is_found_by_its_pixels(images: Path, tmp_path: Path) -> None:
    for file in images.rglob("*.png"):
        Image.open(file).save(file.with_suffix(".bmp"))  # files of the same size
        file.unlink()
    file, other = images / "class1" / "0.bmp", images / "class1" / "1.bmp"
    assert bench(images, tmp_path / "out").exit_code == 0
    open_part(tmp_path / "out")
    times = file.stat()
    shutil.copy(other, file)
    os.utime(file, ns=(times.st_atime_ns, times.st_mtime_ns))
    refused = bench(images, tmp_path / "out", "--deep")
    assert isinstance(refused.exception, RunConflictError)
    assert bench(images, tmp_path / "out").exit_code == 0


def test_a_run_without_times_is_compared_by_pixels_and_shows_progress(
    images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As runs of earlier versions are."""
    assert bench(images, tmp_path / "out").exit_code == 0
    ledger = tmp_path / "out" / "run" / "ledger.jsonl"
    lines = [json.loads(line) for line in ledger.read_text().splitlines()]
    ledger.write_text("".join(json.dumps({**line, "files": ""}) + "\n" for line in lines))
    open_part(tmp_path / "out")
    monkeypatch.setattr(progress, "EVERY", 0.0)
    resumed = bench(images, tmp_path / "out")
    assert resumed.exit_code == 0
    assert "run: comparing images: 4 of 4 images" in resumed.output


def test_the_same_pixels_in_another_file_are_the_same_image(images: Path, tmp_path: Path) -> None:
    assert bench(images, tmp_path / "out").exit_code == 0
    open_part(tmp_path / "out")
    file = images / "class1" / "0.png"
    Image.open(file).save(file, compress_level=1)
    assert bench(images, tmp_path / "out").exit_code == 0


def test_data_check_finds_the_images_that_a_run_has_not_answered(images: Path, tmp_path: Path) -> None:
    assert bench(images, tmp_path / "out").exit_code == 0
    command = ["data", "check", f"folder:{images}", "--data", str(tmp_path), "--deep"]
    against = ["--run", str(tmp_path / "out" / "run")]
    assert CliRunner().invoke(app, [*command, *against]).exit_code == 0
    replace_image(images / "class0" / "1.png")
    assert CliRunner().invoke(app, command).exit_code == 0  # without a run there is nothing to compare with
    result = CliRunner().invoke(app, [*command, *against])
    assert result.exit_code == 3
    assert "1 image is not the same as before, e.g. 'class0/1.png'" in " ".join(result.output.split())
    unnamed = ["data", "check", "--data", str(tmp_path), "--deep", *against]
    assert CliRunner().invoke(app, unnamed).exit_code == 3  # the datasets of the run


def test_data_check_compares_all_images_that_a_run_has_answered(
    images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert bench(images, tmp_path / "out").exit_code == 0
    monkeypatch.setattr(verify.check_all, "__kwdefaults__", {**verify.check_all.__kwdefaults__, "sample": 1})
    command = ["data", "check", "--data", str(tmp_path), "--run", str(tmp_path / "out" / "run")]
    assert CliRunner().invoke(app, command).exit_code == 0
    files = sorted(images.rglob("*.png"))
    replace_image(files[-1])
    files[1].unlink()
    shown = CliRunner().invoke(app, command)
    assert shown.exit_code == 3
    text = " ".join(shown.output.split())
    assert f"1 image is not the same as before, e.g. '{files[-1].relative_to(images)}'" in text
    assert f"1 image is no longer in the dataset, e.g. '{files[1].relative_to(images)}'" in text


def test_data_check_does_not_pass_a_dataset_that_the_run_does_not_have(images: Path, tmp_path: Path) -> None:
    assert bench(images, tmp_path / "out").exit_code == 0
    command = ["data", "check", f"folder:{images}/", "--data", str(tmp_path), "--run", str(tmp_path / "out" / "run")]
    result = CliRunner().invoke(app, command)
    assert isinstance(result.exception, InvalidOptionError)
    assert f"folder:{images}." in str(result.exception)  # how the run writes it


def test_an_image_that_was_replaced_during_a_run_is_refused_by_reports(images: Path, tmp_path: Path) -> None:
    """Seed 2 was computed with another image than seed 1, by one process."""
    assert bench(images, tmp_path / "out").exit_code == 0
    shutil.copytree(images, tmp_path / "kept")
    for file in images.rglob("*.png"):
        replace_image(file)
    assert bench(images, tmp_path / "other", "--seeds", "2").exit_code == 0
    mixed, other = tmp_path / "out" / "run", tmp_path / "other" / "run"
    for part in other.rglob("part-*.parquet"):
        shutil.copy(part, mixed / part.relative_to(other))
    with (mixed / "ledger.jsonl").open("a") as ledger:
        ledger.write((other / "ledger.jsonl").read_text())
    with pytest.raises(InvalidDatasetError, match=r"class\d/\d.png.*was replaced while the run 'run'"):
        load(mixed)
