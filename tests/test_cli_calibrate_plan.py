"""`poise calibrate plan`, and `poise calibrate` with the list that it wrote."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from typer.testing import CliRunner

from poise.calibration import Calibration
from poise.cli.app import app
from poise.errors import InvalidCalibrationError, InvalidDatasetError, InvalidOptionError
from tests.data.test_sources import write_shard

TINY = ["--model", "tiny", "--device", "cpu", "--quiet"]


def invoke(*words: object):
    return CliRunner().invoke(app, [str(word) for word in words])


@pytest.fixture(scope="module")
def pool(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place, generator = tmp_path_factory.mktemp("plan"), np.random.default_rng(0)
    (place / "pool").mkdir()
    for number in range(120):
        Image.fromarray(generator.integers(0, 256, (16, 16, 3), np.uint8)).save(place / "pool" / f"{number}.png")
    done = invoke(
        *("calibrate", "plan", place / "pool", "--labels", "cat,dog", "--budget", 50, "--max-error", 0.2, *TINY),
        *("--out", place / "list.csv"),
    )
    assert done.exit_code == 0, (done.output, done.exception)
    assert "To label: 15 images at random and 35 with a confidence above" in done.output
    assert "--labels cat,dog --model tiny --device cpu --max-error 0.2" in " ".join(done.output.split())
    return place


def labelled(pool: Path, name: str, **changes: str) -> Path:
    """Write the list with a label for each image."""
    rows = list(csv.DictReader((pool / "list.csv").read_text().splitlines()))
    with (pool / name).open("w") as file:
        writer = csv.DictWriter(file, rows[0])
        writer.writeheader()
        writer.writerows({**row, "label": "cat" if at % 4 else "dog", **changes} for at, row in enumerate(rows))
    return pool / name


def test_a_labelled_list_is_known(pool: Path) -> None:
    out = pool / "c.json"
    done = invoke("calibrate", labelled(pool, "a.csv"), "--method", "zero-shot", "--out", out, *TINY)
    assert done.exit_code == 0, (done.output, done.exception)
    assert "15 images (and 35 above the cut-off" in " ".join(done.output.split())
    found = Calibration.load(out)
    assert (len(found), found.random) == (50, 15)
    further = found.methods["zero-shot"].further
    assert further is not None
    assert (further.confidence > further.cutoff - 1e-6).all()


def refused(kind: type[Exception], *words: object) -> str:
    done = invoke(*words)
    assert isinstance(done.exception, kind), (done.output, done.exception)
    return str(done.exception)


def test_a_list_that_was_changed_is_refused(pool: Path) -> None:
    short = pool / "short.csv"
    short.write_text("\n".join(labelled(pool, "b.csv").read_text().splitlines()[:-1]))
    options = ("--method", "zero-shot", "--out", pool / "none.json", *TINY)
    assert "has 49 of the 50 images of its plan" in refused(InvalidDatasetError, "calibrate", short, *options)
    text = refused(InvalidDatasetError, "calibrate", labelled(pool, "d.csv", part="best"), *options)
    assert "is no list of one plan" in text
    text = refused(InvalidCalibrationError, "calibrate", labelled(pool, "e.csv", confidence="0.5"), *options)
    assert "differ from those of the plan" in text
    both = ("--method", "zero-shot,tpt", "--views", "4", *options[2:])
    assert "A cut-off is of one method" in refused(InvalidOptionError, "calibrate", pool / "a.csv", *both)
    assert not (pool / "none.json").exists()


def test_tasks_for_label_studio(pool: Path) -> None:
    options = ("--labels", "cat,dog", "--budget", 20, *TINY)
    done = invoke("calibrate", "plan", pool / "pool", *options, "--out", pool / "tasks.json")
    assert done.exit_code == 0, (done.output, done.exception)
    tasks = json.loads((pool / "tasks.json").read_text())
    assert len(tasks) == 20
    assert {task["data"]["part"] for task in tasks} == {"random"}
    assert all((pool / task["data"]["image"]).is_file() for task in tasks)
    assert "ends in .csv or .json" in refused(
        InvalidOptionError, "calibrate", "plan", pool / "pool", *options, "--out", pool / "tasks.txt"
    )


def test_images_in_a_tar_are_copied_for_people_to_look_at(pool: Path, tmp_path: Path) -> None:
    names = [f"{at}.png" for at in range(12)]
    write_shard(tmp_path / "0.tar", {f"../{name}": (pool / "pool" / name).read_bytes() for name in names})
    invoke("embed", pool / "pool", "--out", tmp_path / "features", *TINY)
    options = ("--labels", "cat,dog", "--budget", 5, *TINY, "--out")
    done = invoke("calibrate", "plan", f"wds:{tmp_path}/0.tar", *options, tmp_path / "list.csv")
    assert done.exit_code == 0, (done.output, done.exception)
    listed = [row["path"] for row in csv.DictReader((tmp_path / "list.csv").read_text().splitlines())]
    assert sorted(f"list/{file.name}" for file in (tmp_path / "list").iterdir()) == sorted(listed)
    for path in listed:
        number = int(path.removeprefix("list/").partition("-")[0])
        assert path == f"list/{number:06d}-0_.._{number}.png"
        assert (tmp_path / path).read_bytes() == (pool / "pool" / names[number]).read_bytes()
    done = invoke("calibrate", "plan", tmp_path / "features", *options, tmp_path / "b.csv")
    assert done.exit_code == 0, (done.output, done.exception)
    (first, *_) = csv.DictReader((tmp_path / "b.csv").read_text().splitlines())
    assert (tmp_path / first["path"]).resolve().parent == (pool / "pool").resolve()
    invoke("embed", f"wds:{tmp_path}/0.tar", "--out", tmp_path / "away", *TINY)
    text = refused(InvalidOptionError, "calibrate", "plan", tmp_path / "away", *options, tmp_path / "c.csv")
    assert "the image itself is not a file here" in text


def test_messages_about_labels_name_the_line_and_what_to_do(pool: Path) -> None:
    """Whether such a row is left empty, removed or labelled 'none', the advice is the same."""
    advice = "add a label for such images (such as 'something else') to the list"
    rows = labelled(pool, "b.csv").read_text().splitlines(keepends=True)
    changes = {
        "blank": (rows[3].replace(",cat,", ",,").replace(",dog,", ",,"), "has no label in line 4. Fill in the column"),
        "removed": ("", "has 49 of the 50 images of its plan."),
        "none": (rows[3].replace(",cat,", ",none,").replace(",dog,", ",none,"), "has not: 'none' in line 4."),
        "case": (rows[3].replace(",cat,", ",Cat,").replace(",dog,", ",Dog,"), "(did you mean "),
    }
    for name, (line, said) in changes.items():
        (pool / f"{name}.csv").write_text("".join([*rows[:3], line, *rows[4:]]))
        options = ["--labels", "cat,dog", "--method", "zero-shot", "--out", pool / "x.json", *TINY]
        message = str(invoke("calibrate", pool / f"{name}.csv", *options).exception)
        assert said in message
        assert advice in message
        assert f"{name}.csv" in message


def test_a_table_with_semicolons_is_read(pool: Path) -> None:
    text = labelled(pool, "c.csv").read_text().replace(",", ";")
    (pool / "semicolons.csv").write_text(text)
    done = invoke("calibrate", pool / "semicolons.csv", "--method", "zero-shot", "--out", pool / "s.json", *TINY)
    assert done.exit_code == 0, (done.output, done.exception)
    assert Calibration.load(pool / "s.json").random == 15
