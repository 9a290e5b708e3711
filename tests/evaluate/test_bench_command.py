"""`poise bench` as a person types it."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from poise.cli.app import app
from poise.errors import InvalidDatasetError, InvalidOptionError, InvalidTemplateError, UnknownNameError
from poise.evaluate.config import build
from tests.evaluate.attempt import arguments, make_images

CONFIG = Path(__file__).parents[2] / "configs" / "table1.toml"
runner = CliRunner()


def test_flags_override_the_file():
    argv = [
        "bench",
        "run",
        "--config",
        str(CONFIG),
        "--dry-run",
        "--views",
        "8",
        "--method",
        "tpt,kld",
        "--name",
        "x",
    ]
    result = runner.invoke(app, [*argv, "--set", "options.tpt.lr=0.1"])
    assert result.output.startswith("x  ")
    assert "views = 8" in result.output
    assert "methods = tpt, kld" in result.output
    assert "options = {'tpt': {'lr': 0.1}}" in result.output


@pytest.mark.parametrize(
    ("more", "error"),
    [
        (["--method", "tptt", "--dataset", "dtd"], UnknownNameError),
        (["--set", "veiws=3", "--dataset", "dtd"], UnknownNameError),
        (["--views", "0", "--dataset", "dtd"], InvalidOptionError),
        (["--method", "mta", "--views", "4", "--dataset", "dtd"], InvalidOptionError),
        (["--method", "zero-shot | cots", "--views", "1", "--dataset", "dtd"], InvalidOptionError),
        (["--temperature", "0", "--dataset", "dtd"], InvalidOptionError),
        (["--template", "x", "--dataset", "dtd"], InvalidTemplateError),
        (["--engine", "foo", "--dataset", "dtd"], UnknownNameError),
        (["--name", "../x", "--dataset", "dtd"], InvalidOptionError),
        (["--workers", "-1", "--dataset", "dtd"], InvalidOptionError),
        (["--actors", "-1", "--dataset", "dtd"], InvalidOptionError),
        (["--seeds", str(2**63), "--dataset", "dtd"], InvalidOptionError),
        (["--seeds", "9" * 5000, "--dataset", "dtd"], InvalidOptionError),
        (["--set", 'out="a\\u0000b"', "--dataset", "dtd"], InvalidOptionError),
        (["--config", "/dev/zero"], InvalidOptionError),
        (["--method", "tpt", "--set", "options.kld.lr=0.1", "--dataset", "dtd"], InvalidOptionError),
        ([], InvalidOptionError),
    ],
)
def test_bad_usage_is_refused(more, error):
    result = runner.invoke(app, ["bench", "run", "--dry-run", *more])
    assert isinstance(result.exception, error)


def test_a_dry_run_says_what_no_value_means():
    shown = runner.invoke(app, ["bench", "run", "--dry-run", "--dataset", "dtd", "--model", "tiny", "--data", "/none"])
    for line in ("template = (by dataset)", "options = (none)", "limit = all", "work: not known without a dataset"):
        assert f"  {line}\n" in shown.output


def test_a_further_method_is_a_run_of_its_own(tmp_path):
    images = make_images(tmp_path / "images", each=1)
    base = arguments(images, tmp_path / "runs", "--seeds", "1", "--views", "2")
    assert runner.invoke(app, [*base, "--method", "zero-shot"]).exit_code == 0
    refused = runner.invoke(app, [*base, "--method", "zero-shot,zero"])
    assert "Run zero alone: reports of a folder with both runs show them together." in str(refused.exception)
    assert runner.invoke(app, [*base, "--method", "zero", "--name", "further"]).exit_code == 0
    table = runner.invoke(app, ["bench", "table", str(tmp_path / "runs")])
    assert table.output.count("Results: ") == 1
    assert "zero-shot" in table.output
    assert "\nzero " in table.output


def test_a_limit_of_no_images_is_refused():
    result = runner.invoke(app, ["bench", "run", "--dry-run", "--dataset", "dtd", "--limit", "0"])
    assert result.exit_code == 2
    assert "--limit" in result.output
    assert build({"datasets": "dtd", "limit": "all"})[0].limit == 0  # as runs of all images are stored


def test_one_class_is_no_benchmark(tmp_path):
    images = make_images(tmp_path / "images", each=1)
    for folder in sorted(images.iterdir())[1:]:
        shutil.rmtree(folder)
    result = runner.invoke(app, ["bench", "run", "--dataset", f"folder:{images}", "--out", str(tmp_path / "runs")])
    assert isinstance(result.exception, InvalidDatasetError)
    assert "alone, so that every answer would be right" in str(result.exception)
    assert not list((tmp_path / "runs").rglob("run.json"))


def test_a_run_and_what_can_be_made_of_it(tmp_path):
    image_folder = make_images(tmp_path / "images")
    (image_folder / "class0" / "bad.png").write_bytes(b"not an image")
    result = runner.invoke(app, arguments(image_folder, tmp_path / "runs"))
    assert result.exit_code == 3, result.output
    assert "2 images could not be read" in result.output
    assert "13 images, 2 methods, 2 seeds, 2 failures; 10 of 10 chunks new, in " in result.output
    assert f"Next: poise bench table {tmp_path / 'runs' / 'run'}" in result.output
    info = runner.invoke(app, ["bench", "resume-info", str(tmp_path / "runs")])
    assert "run: 10 of 10 chunks, 26 images, 2 errors" in info.output
    table = runner.invoke(app, ["bench", "table", str(tmp_path / "runs"), "--format", "md"])
    assert table.exit_code == 0, table.output
    assert "kld+cats" in table.output
    analysed = runner.invoke(app, ["bench", "analyse", str(tmp_path / "runs")])
    assert analysed.exit_code == 0, analysed.output
    assert analysed.output.startswith("How predictions change")
    assert "Values in the paper" not in analysed.output  # it has none for this dataset
    absent = runner.invoke(app, ["bench", "compare", str(tmp_path / "runs")])
    assert "do not have the method tpt. They have: zero-shot, kld+cats" in str(absent.exception)
    exported = runner.invoke(app, ["bench", "export", str(tmp_path / "runs"), "--out", str(tmp_path / "export")])
    assert exported.exit_code == 0, exported.output
    assert list((tmp_path / "export").rglob("*.csv"))


def test_frameworks_inits_and_temperatures_are_flags(tmp_path):
    images = make_images(tmp_path / "images")
    more = ["--framework", "dynaprompt", "--template", "a drawing of a {}.", "--temperature", "2"]
    result = runner.invoke(app, arguments(images, tmp_path / "runs", *more, "--set", "framework_options.size=5"))
    assert result.exit_code == 0, result.output
    head = json.loads((tmp_path / "runs" / "run" / "run.json").read_text())
    assert head["config"]["framework_options"] == {"size": 5, "temperature": 2.0}
    assert (head["ordered"], head["init_kind"], head["config"]["template"]) == (True, "template", "a drawing of a {}.")
    info = runner.invoke(app, ["bench", "resume-info", str(tmp_path / "runs")])
    assert "run: 2 of 2 chunks, 24 images, 0 errors" in info.output
    orders = {
        seed: pq.read_table(file)["id"].to_pylist()[::2]
        for seed, file in enumerate(sorted((tmp_path / "runs").rglob("*.parquet")))
    }
    assert sorted(orders[0]) == sorted(orders[1])
    assert orders[0] != orders[1]  # each seed has its own stream
    refused = runner.invoke(app, arguments(images, tmp_path / "runs", *more[:-1], "warm"))
    assert isinstance(refused.exception, InvalidOptionError)


def test_one_of_each_is_counted_in_the_singular(tmp_path):
    more = ["--method", "zero-shot", "--seeds", "1", "--limit", "1"]
    result = runner.invoke(app, arguments(make_images(tmp_path / "images"), tmp_path / "runs", *more))
    assert "1 image, 1 method, 1 seed, 0 failures; 1 of 1 chunk new, in " in result.output
    info = runner.invoke(app, ["bench", "resume-info", str(tmp_path / "runs")])
    assert "run: 1 of 1 chunk, 1 image, 0 errors" in info.output


def test_a_run_without_a_name_is_called_as_its_folder(tmp_path):
    argv = arguments(make_images(tmp_path / "images"), tmp_path / "runs")
    at = argv.index("--name")
    result = runner.invoke(app, [*argv[:at], *argv[at + 2 :]])
    assert result.exit_code == 0, result.output
    (folder,) = (tmp_path / "runs").iterdir()
    info = runner.invoke(app, ["bench", "resume-info", str(tmp_path / "runs")])
    assert info.output.startswith(f"{folder.name}: ")
    assert set(pq.read_table(next(folder.rglob("part-*.parquet")))["run"].to_pylist()) == {folder.name}


def test_no_readable_image_has_another_exit_code(tmp_path):
    for name in ("a", "b"):
        (tmp_path / "images" / name).mkdir(parents=True)
        (tmp_path / "images" / name / "0.png").write_bytes(b"not an image")
    assert runner.invoke(app, arguments(tmp_path / "images", tmp_path / "runs")).exit_code == 4


def test_a_folder_without_runs(tmp_path):
    assert runner.invoke(app, ["bench", "resume-info", str(tmp_path)]).exit_code == 4


LEVELS = ("--calibrate", "6", "--set", "coverage=0.5", "--set", "max_error=0.5")


def test_a_run_with_calibration_images(tmp_path):
    image_folder = make_images(tmp_path / "images")
    result = runner.invoke(app, arguments(image_folder, tmp_path / "runs", *LEVELS))
    assert result.exit_code == 0, result.output
    command = ["bench", "table", str(tmp_path / "runs"), "--metrics", "ece,coverage", "--format", "json"]
    (table,) = json.loads(runner.invoke(app, command).output)
    assert {row["method"] for row in table["rows"] if row["metric"] == "coverage"} == {
        "zero-shot | calibrated",
        "kld+cats | calibrated",
    }
    assert any("images 6;" in note for note in table["notes"])


def test_calibration_images_have_to_leave_others(tmp_path):
    image_folder = make_images(tmp_path / "images")
    levels = ("--calibrate", "12", *LEVELS[2:])
    result = runner.invoke(app, arguments(image_folder, tmp_path / "runs", *levels))
    assert isinstance(result.exception, InvalidOptionError)
    assert "has 12 images in this run: none would be left" in str(result.exception)
    assert not list(tmp_path.rglob("run.json"))


def test_a_dry_run_says_how_many_images_remain():
    base = ["bench", "run", "--dry-run", "--dataset", "dtd,folder:/x", "--calibrate", "100"]
    result = runner.invoke(app, base)
    assert "dtd: 100 images for calibration, metrics are of the other 1592" in result.output
    assert "folder:/x: 100 images for calibration, metrics are of the others" in result.output
    assert "of the other 150" in runner.invoke(app, [*base, "--limit", "250"]).output
    assert isinstance(runner.invoke(app, [*base, "--limit", "100"]).exception, InvalidOptionError)


def test_a_dry_run_lists_datasets_model_and_work_and_says_what_is_missing(tmp_path):
    images = make_images(tmp_path / "images")
    shown = runner.invoke(app, arguments(images, tmp_path / "runs", "--dry-run"))
    assert shown.exit_code == 0, shown.output
    assert f"dataset folder:{images}: 12 images, 3 classes; 12 there" in shown.output
    assert "model tiny: loaded" in shown.output
    assert "work: 8 chunks of at most 3 images, 24 images over all seeds" in shown.output
    assert "nothing is missing" in shown.output
    assert not list((tmp_path / "runs").rglob("run.json"))
    lacking = ["--dataset", f"dtd,folder:{images}", "--data", str(tmp_path), "--model", "ViT-B-16/openai"]
    shown = runner.invoke(app, ["bench", "run", "--dry-run", *lacking, "--limit", "12", "--device", "cpu"])
    assert shown.exit_code == 3, shown.output
    assert "dataset dtd: 12 images, 47 classes; MISSING" in shown.output
    assert "model ViT-B-16/openai: MISSING" in shown.output
    assert f"dataset folder:{images}: 12 images" in shown.output
    assert "missing: dataset dtd, model ViT-B-16/openai" in shown.output


def test_a_relative_learning_rate_is_recorded_with_its_absolute_size(tmp_path):
    images = make_images(tmp_path / "images", each=1)
    more = ["--set", "options.all.lr=0.3rms", "--template", "a drawing of a {}."]
    shown = runner.invoke(app, arguments(images, tmp_path / "runs", *more, "--dry-run"))
    assert "kld+cats: divergence, temperatures" in shown.output
    assert "lr 0.3 x RMS of the initial context" in shown.output
    result = runner.invoke(app, arguments(images, tmp_path / "runs", *more))
    assert result.exit_code == 0, result.output
    stored = json.loads((tmp_path / "runs" / "run" / "run.json").read_text())["methods"]["kld+cats"]
    ((template, number),) = stored["absolute_lr"].items()
    assert (stored["lr"], template) == ("0.3rms", "a drawing of a {}.")
    assert f"kld+cats: lr {number:g} for 'a drawing of a {{}}.'" in shown.output
    absolute = ["--set", f"options.all.lr={number}", "--template", "a drawing of a {}."]
    result = runner.invoke(app, arguments(images, tmp_path / "absolute", *absolute))
    assert result.exit_code == 0, result.output
    rows = [_columns(tmp_path / name / "run", "probs") for name in ("runs", "absolute")]
    assert rows[0] == rows[1]


def test_an_init_that_is_not_fitted_yet_gives_no_relative_learning_rate(tmp_path):
    images = make_images(tmp_path / "images", each=1)
    argv = arguments(images, tmp_path / "runs", "--set", "options.all.lr=0.3rms", "--init", "fpp")
    result = runner.invoke(app, argv)
    assert isinstance(result.exception, InvalidOptionError)
    assert "poise fit fpp" in str(result.exception)


def _columns(run, name):
    return [pq.read_table(file, columns=[name]).to_pydict() for file in sorted(run.rglob("*.parquet"))]
