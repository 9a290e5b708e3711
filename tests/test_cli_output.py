"""Where the rows of `poise classify` go: files, JSON lines, resumed runs, top-k, thresholds, variables, progress."""

from __future__ import annotations

import csv
import io
import json
from itertools import chain, repeat
from pathlib import Path

import numpy as np
import pandas
import pytest
from PIL import Image
from rich.progress import Progress
from typer.testing import CliRunner

import poise
from poise import progress
from poise.cli.app import app
from poise.cli.output import sink
from poise.cli.output.result_rows import Columns
from poise.cli.output.row_settings import settings_file
from poise.cli.output.sorted_images import SortedImages
from poise.errors import InvalidOptionError, RunConflictError
from poise.results import COLUMNS, Failure

OPTIONS = ["--labels", "cat,dog,owl", "--model", "tiny", "--views", "3", "--device", "cpu"]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    place = tmp_path / "images"
    place.mkdir()
    for seed in range(3):
        pixels = np.random.default_rng(seed).integers(0, 256, (24, 24, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(place / f"{seed}.png")
    return place


def run(*arguments: object, env: dict[str, str] | None = None):
    return CliRunner().invoke(app, ["classify", *map(str, arguments), *OPTIONS], env=env)


def rows(text: str) -> list[dict]:
    return [json.loads(line) for line in text.splitlines()]


def test_json_lines_are_the_rows_of_json(folder: Path, tmp_path: Path) -> None:
    expected = json.loads(run(folder, "--format", "json").stdout)
    assert rows(run(folder, "--format", "jsonl").stdout) == expected
    written = run(folder, "--format", "jsonl", "--out", tmp_path / "deep" / "rows.jsonl")
    assert written.stdout == ""
    assert rows((tmp_path / "deep" / "rows.jsonl").read_text("utf-8")) == expected


@pytest.mark.parametrize("output", ["table", "json", "csv"])
def test_files_have_what_stdout_would_have(folder: Path, tmp_path: Path, output: str) -> None:
    shown = run(folder, "--format", output)
    written = run(folder, "--format", output, "--out", tmp_path / "rows")
    assert (written.exit_code, written.stdout) == (0, "")
    assert (tmp_path / "rows").read_text("utf-8") == shown.stdout


def test_a_resumed_run_answers_what_is_missing(folder: Path, tmp_path: Path) -> None:
    out = tmp_path / "rows.jsonl"
    run(folder, "--format", "jsonl", "--out", out)
    whole = out.read_bytes()
    lines = whole.splitlines(keepends=True)
    out.write_bytes(lines[0] + lines[1][:20])  # the second line is torn
    again = run(folder, "--format", "jsonl", "--out", out, "--resume")
    assert again.exit_code == 0, again.output
    for row, expected in zip(rows(out.read_text("utf-8")), rows(whole.decode()), strict=True):
        assert row["source"] == expected["source"]
        assert row["confidence"] == pytest.approx(expected["confidence"], abs=1e-5)  # another batch rounds otherwise
    now = out.read_bytes()
    assert run(folder, "--format", "jsonl", "--out", out, "--resume").exit_code == 0  # nothing is left to do
    assert out.read_bytes() == now
    (folder / "bad.png").write_bytes(b"no image")
    assert run(folder, "--format", "jsonl", "--out", out, "--resume").exit_code == 4  # the only new image fails
    (folder / "bad.png").write_bytes((folder / "0.png").read_bytes())
    assert run(folder, "--format", "jsonl", "--out", out, "--resume").exit_code == 0
    found = rows(out.read_text("utf-8"))
    assert [row["error"] is None for row in found] == [True, True, True, False, True]


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        (["--labels", "fox,cow"], "labels"),
        (["--method", "zero-shot"], "methods"),
        (["--seed", 1], "seed: 0 -> 1"),
        (["--template", "a drawing of a {}."], "template"),
        (["--threshold", 0.5], "threshold: null -> 0.5"),
        (["--top-k", 1], "top_k: null -> 1"),
    ],
)
def test_rows_of_other_settings_are_not_resumed(folder: Path, tmp_path: Path, changed: list, said: str) -> None:
    out = tmp_path / "rows.jsonl"
    run(folder, "--format", "jsonl", "--out", out)
    before = out.read_bytes().splitlines(keepends=True)[0]
    out.write_bytes(before)
    refused = CliRunner().invoke(
        app, ["classify", *map(str, [folder, *OPTIONS, *changed]), "--format", "jsonl", "--out", str(out), "--resume"]
    )
    assert isinstance(refused.exception, RunConflictError)
    assert said in str(refused.exception)
    assert out.read_bytes() == before


def test_rows_of_another_model_of_the_same_name_are_not_resumed(folder: Path, tmp_path: Path) -> None:
    out = tmp_path / "rows.jsonl"
    run(folder, "--format", "jsonl", "--out", out)
    stored = json.loads(settings_file(out).read_text("utf-8"))
    settings_file(out).write_text(json.dumps({**stored, "fingerprint": "0123456789abcdef"}))
    assert "fingerprint" in str(run(folder, "--format", "jsonl", "--out", out, "--resume").exception)


@pytest.mark.parametrize("content", [None, "", "[]", '{"format": "poise-rows/0"}'])
def test_rows_without_settings_are_not_resumed(folder: Path, tmp_path: Path, content: str | None) -> None:
    out = tmp_path / "rows.jsonl"
    run(folder, "--format", "jsonl", "--out", out)
    settings_file(out).unlink()
    if content is not None:
        settings_file(out).write_text(content)
    assert "not known how" in str(run(folder, "--format", "jsonl", "--out", out, "--resume").exception)
    assert run(folder, "--format", "jsonl", "--out", out, "--overwrite").exit_code == 0
    assert run(folder, "--format", "jsonl", "--out", out, "--resume").exit_code == 0


def test_what_is_refused(folder: Path, tmp_path: Path) -> None:
    for more in (["--resume"], ["--resume", "--out", tmp_path / "x", "--format", "json"]):
        assert "JSON lines" in str(run(folder, *more).exception)
    assert isinstance(run(folder, "--threshold", 0.5, "--max-error", 0.1).exception, InvalidOptionError)
    run(folder, "--format", "jsonl", "--out", tmp_path / "other.jsonl")
    (tmp_path / "other.jsonl").write_text("hello\n")
    refused = run(folder, "--resume", "--format", "jsonl", "--out", tmp_path / "other.jsonl")
    assert "not a row of results" in str(refused.exception)
    assert (tmp_path / "other.jsonl").read_text() == "hello\n"
    assert run(folder, "--top-k", 0).exit_code == 2
    assert run(folder, "--threshold", 1.5).exit_code == 2


def test_probabilities_of_all_labels_or_of_the_best(folder: Path) -> None:
    full = json.loads(run(folder, "--format", "json").stdout)
    table = list(csv.DictReader(io.StringIO(run(folder, "--format", "csv").stdout)))
    for row, line in zip(full, table, strict=True):
        assert {label: float(line[f"p({label})"]) for label in ("cat", "dog", "owl")} == row["probabilities"]
    best = json.loads(run(folder, "--format", "json", "--top-k", 2).stdout)
    table = list(csv.DictReader(io.StringIO(run(folder, "--format", "csv", "--top-k", 2).stdout)))
    for row, short, line in zip(full, best, table, strict=True):
        assert list(short["probabilities"].items()) == list(row["probabilities"].items())[:2]
        assert [line["label 1"], line["label 2"]] == list(short["probabilities"])
        assert float(line["p 2"]) == row["probabilities"][line["label 2"]]


def test_error_rows_have_the_columns_of_the_others(folder: Path) -> None:
    (folder / "bad.png").write_bytes(b"no image")
    lines = list(csv.reader(io.StringIO(run(folder, "--format", "csv").stdout)))
    assert len({len(line) for line in lines}) == 1
    found = rows(run(folder, "--format", "jsonl").stdout)
    assert len({tuple(row) for row in found}) == 1


def test_a_rejected_image_is_not_answered(folder: Path) -> None:
    rows = json.loads(run(folder, "--format", "json", "--threshold", 0, "--reject", 1).stdout)
    assert {(row["label"], row["decision"]) for row in rows} == {("unknown", "abstain")}


def test_a_threshold_of_ones_own_guarantees_nothing(folder: Path) -> None:
    full = json.loads(run(folder, "--format", "json").stdout)
    middle = sorted(row["confidence"] for row in full)[1]
    decided = json.loads(run(folder, "--format", "json", "--threshold", middle).stdout)
    for row in decided:
        assert row["decision"] == ("answer" if row["confidence"] >= middle else "abstain")
        assert row["threshold"] == middle
    assert "Nothing is guaranteed" in run(folder, "--threshold", middle).stdout


def test_the_same_names_in_every_format(folder: Path) -> None:
    more = ["--threshold", 0.5]
    (folder / "bad.png").write_bytes(b"no image")
    full = json.loads(run(folder, "--format", "json", *more).stdout)
    lines = list(csv.DictReader(io.StringIO(run(folder, "--format", "csv", *more).stdout)))
    for row, line in zip(full, lines, strict=True):
        for name in COLUMNS:  # "yes" and "unsure" are lists of the labels that "outcomes" has in JSON
            assert line[name] == ("" if row.get(name) is None else str(row[name]))
    frame = poise.Classifier(["cat", "dog", "owl"], "tiny", views=3, device="cpu").frame(sorted(folder.iterdir()))
    assert list(frame.columns) == list(lines[0])
    assert list(frame["source"]) == [row["source"] for row in full]
    for row, (_, shown) in zip(full, frame.iterrows(), strict=True):
        if row["error"] is None:
            assert row["confidence"] == pytest.approx(shown["confidence"], abs=1e-6)
        else:
            assert {name: shown[f"error.{name}"] for name in row["error"]} == row["error"]


def test_the_last_line_counts_and_says_where_the_rows_are(folder: Path, tmp_path: Path) -> None:
    full = json.loads(run(folder, "--format", "json").stdout)
    middle = sorted(row["confidence"] for row in full)[1]
    (folder / "bad.png").write_bytes(b"no image")
    out = tmp_path / "rows.csv"
    said = run(folder, "--format", "csv", "--out", out, "--threshold", middle)
    counts = "4 images: 2 answered, 1 abstained, 1 failed (the rows say why)"
    assert f"poise: {counts}; written to {out}." in said.stderr
    again = ["--out", out, "--overwrite", "--threshold", middle]
    assert run(folder, *again, "--quiet").stderr == ""
    both = run(folder, *again, "--method", "zero-shot,tpt")
    assert "answered by zero-shot" in both.stderr
    assert "answered by tpt" in both.stderr
    counting = sink.Sink("table", Columns(("tpt",), ("cat", "dog")), None)
    counting.decisions.update({("tpt", "abstained"): 1, ("tpt", "answered"): 2})
    assert "2 answered, 1 abstained" in counting.summary()


@pytest.mark.parametrize("links", [False, True])
def test_images_are_sorted_into_folders_and_nothing_is_overwritten(folder: Path, tmp_path: Path, links: bool) -> None:
    full = json.loads(run(folder, "--format", "json").stdout)
    middle = sorted(row["confidence"] for row in full)[1]
    where = {Path(row["source"]).name: row["label"] if row["confidence"] >= middle else "unsure" for row in full}
    place = tmp_path / "sorted"
    name, label = next(iter(where.items()))
    (place / label).mkdir(parents=True)
    (place / label / name).write_text("somebody else's")
    options = ["--threshold", middle, "--sort-into", place, *(["--links"] if links else [])]
    for _ in range(2):  # the second time, all are there
        assert run(folder, *options).exit_code == 0
    kept = {path.relative_to(place).as_posix() for path in place.rglob("*.png")}
    renamed = f"{label}/{Path(name).stem}-2.png"
    assert kept == {f"{folder}/{image}" for image, folder in where.items()} | {renamed}
    assert (place / label / name).read_text() == "somebody else's"
    assert (place / renamed).read_bytes() == (folder / name).read_bytes()
    assert (place / renamed).is_symlink() is links


def test_folders_of_labels_have_safe_names_of_their_own(tmp_path: Path) -> None:
    labels = ["../up", "american bulldog", "american_Bulldog", "a/b", "unsure", "con:x", "."]
    folders = SortedImages(tmp_path, labels).folders
    assert len({name.casefold() for name in folders.values()} | {"unsure"}) == len(labels) + 1
    assert all((tmp_path / name).resolve().parent == tmp_path.resolve() for name in folders.values())
    assert SortedImages(tmp_path, ["american bulldog"]).folders == {"american bulldog": "american_bulldog"}


def test_calibration_images_are_sorted_into_a_folder_of_their_own(folder: Path, tmp_path: Path) -> None:
    sorting = SortedImages(tmp_path / "sorted", ["cat", "calibration"])
    sorting.add_failed(Failure(str(folder / "0.png"), "calibration_image", "It was calibrated with."))
    sorting.add_failed(Failure(str(folder / "gone.png"), "unreadable_image", "It does not exist."))
    assert [path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("sorted/*/*")] == [
        "sorted/calibration/0.png"
    ]
    assert sorting.folders["calibration"] != "calibration"


def test_sorting_needs_one_answer_per_image(folder: Path, tmp_path: Path) -> None:
    both = run(folder, "--method", "zero-shot,tpt", "--sort-into", tmp_path / "x")
    assert "one answer per image" in str(both.exception)
    assert "--sort-into" in str(run(folder, "--links").exception)


def test_options_come_from_variables(folder: Path) -> None:
    shown = run(folder, env={"POISE_CLASSIFY_FORMAT": "jsonl", "POISE_CLASSIFY_METHOD": "zero-shot"})
    assert {row["method"] for row in rows(shown.stdout)} == {"zero-shot"}


def test_the_rate_on_a_terminal_is_that_since_the_start() -> None:
    """Four images of one batch arrive together after ten seconds: 0.4 images/s, not hundreds."""
    clock = chain([0.0], repeat(10.0))
    bar = Progress(get_time=lambda: next(clock))
    task = bar.add_task("classified", total=9, completed=1)
    rate, left = progress.Rate(1), progress.TimeLeft(1)
    assert (rate.render(bar.tasks[0]).plain, left.render(bar.tasks[0]).plain) == ("first batch ...", "")
    for _ in range(4):
        bar.update(task, advance=1)
    assert rate.render(bar.tasks[0]).plain == "0.4 images/s"
    assert left.render(bar.tasks[0]).plain == "0:00:10 left"


def test_progress_without_a_terminal_is_a_line_from_time_to_time(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    times = iter([0.0, 10.0, 31.0, 40.0, 62.0])
    monkeypatch.setattr(progress.time, "monotonic", lambda: next(times))
    with progress.progress_bar("classified", 100) as advance:
        for _ in range(4):
            advance(5)
    lines = capsys.readouterr().err.splitlines()
    assert lines == [
        "classified: 10 of 100 images, 0.3 images/s, 5 min left",
        "classified: 20 of 100 images, 0.3 images/s, 4 min left",
    ]
    times = iter([0.0, 31.0])
    with progress.progress_bar("classified", 100) as advance:
        advance(90)
    assert capsys.readouterr().err == "classified: 90 of 100 images, 2.9 images/s, less than 1 min left\n"
    times = iter([0.0, 44.0])
    with progress.progress_bar("classified", 4) as advance:
        advance(1)
    assert capsys.readouterr().err == "classified: 1 of 4 images, 44 s per image, 2 min left\n"
    times = iter([0.0, 31.0])
    with progress.progress_bar("classified", 100) as advance:
        advance(0)
    assert capsys.readouterr().err == "classified: 0 of 100 images, first batch ...\n"
    with progress.progress_bar("classified", 100, quiet=True) as advance:
        advance(5)
    assert capsys.readouterr().err == ""


def test_a_long_job_on_a_cpu_is_announced(folder: Path) -> None:
    many = ["--labels", "cat,dog", "--model", "tiny", "--device", "cpu"]
    for seed in range(3, 20):
        pixels = np.random.default_rng(seed).integers(0, 256, (24, 24, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(folder / f"{seed}.png")
    said = CliRunner().invoke(app, ["classify", str(folder), *many, "--views", "32"]).stderr
    assert "kld+cats computes 32 views of each image, about 1.0 s on a CPU core" in said
    assert "zero-shot computes 1, about 0.04 s (--method zero-shot" in " ".join(said.split())
    assert "kld+cats computes 16 views" in CliRunner().invoke(app, ["classify", str(folder), *many]).stderr
    for quick in (["--method", "zero-shot"], ["--views", "32", "--quiet"]):
        assert "views of each image" not in CliRunner().invoke(app, ["classify", str(folder), *many, *quick]).stderr


# Files that are there already, and runs that are stopped


@pytest.mark.parametrize("suffix", ["jsonl", "csv", "json", "txt", "parquet"])
def test_a_file_with_rows_is_replaced_only_on_request(folder: Path, tmp_path: Path, suffix: str) -> None:
    out = tmp_path / f"rows.{suffix}"
    assert run(folder, "--out", out).exit_code == 0
    before = out.read_bytes()
    refused = run(folder, "--out", out)
    assert isinstance(refused.exception, RunConflictError)
    assert "--overwrite to replace it" in str(refused.exception)
    assert ("--resume to continue it" in str(refused.exception)) == (suffix == "jsonl")
    assert out.read_bytes() == before
    (folder / "2.png").unlink()
    assert run(folder, "--out", out, "--overwrite").exit_code == 0
    assert out.read_bytes() != before
    out.write_bytes(b"")  # nothing to lose, as mktemp makes it
    assert run(folder, "--out", out).exit_code == 0
    for more in (["--resume", "--out", tmp_path / "x.jsonl"], [], ["--out", f"{tmp_path}/parts/"]):
        assert "--overwrite replaces one file" in str(run(folder, "--overwrite", *more).exception)


@pytest.fixture
def stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every run is stopped after one image."""
    each = poise.Classifier.each

    def first(self, *arguments, **options):
        yield next(each(self, *arguments, **options))
        raise KeyboardInterrupt

    monkeypatch.setattr(poise.Classifier, "each", first)


@pytest.mark.usefixtures("stopped")
def test_a_stopped_run_says_how_to_continue(folder: Path, tmp_path: Path) -> None:
    done = run(folder, "--out", tmp_path / "rows.jsonl")
    assert done.exit_code == 130
    assert "stopped after 1 of 3 images. Add --resume to continue." in done.stderr
    assert len(rows((tmp_path / "rows.jsonl").read_text("utf-8"))) == 1


@pytest.mark.usefixtures("stopped")
@pytest.mark.parametrize("suffix", ["csv", "json", "txt", "parquet"])
def test_rows_of_a_stopped_run_are_named_so(folder: Path, tmp_path: Path, suffix: str) -> None:
    out = tmp_path / f"rows.{suffix}"
    out.write_bytes(b"complete rows of another day")
    done = run(folder, "--out", out, "--overwrite")
    assert f"Their rows are in {tmp_path}/rows.partial.{suffix}." in done.stderr
    assert out.read_bytes() == b"complete rows of another day"
    assert (tmp_path / f"rows.partial.{suffix}").stat().st_size


def test_the_suffix_says_the_format(folder: Path, tmp_path: Path) -> None:
    shown = run(folder, "--format", "csv").stdout
    run(folder, "--out", tmp_path / "rows.csv")
    assert (tmp_path / "rows.csv").read_text("utf-8") == shown
    for format, name in (("jsonl", "x.csv"), ("csv", "x.parquet"), ("table", "x.json"), ("json", "x.jsonl")):
        refused = run(folder, "--format", format, "--out", tmp_path / name)
        assert "are different formats" in str(refused.exception)
    assert "names no format" in str(run(folder, "--out", tmp_path / "rows.xlsx").exception)
    assert "is a folder" in str(run(folder, "--out", tmp_path).exception)
    assert "named like a file" in str(run(folder, "--out", "s3://bucket/rows.parquet").exception)
    assert not (tmp_path / "rows.xlsx").exists()


def test_parquet_is_one_file_with_the_columns_of_parts(folder: Path, tmp_path: Path) -> None:
    (folder / "bad.png").write_bytes(b"no image")
    assert run(folder, "--out", tmp_path / "rows.parquet", "--threshold", 0.5).exit_code == 3
    assert run(folder, "--out", f"{tmp_path}/parts/", "--threshold", 0.5).exit_code == 3
    one = pandas.read_parquet(tmp_path / "rows.parquet")
    parts = pandas.read_parquet(f"{tmp_path}/parts/").drop(columns="shard")
    numbers = parts.select_dtypes("number").columns
    pandas.testing.assert_frame_equal(one[numbers], parts[numbers], rtol=1e-4, atol=1e-5)
    pandas.testing.assert_frame_equal(
        one.drop(columns=[*numbers, "top_probabilities"]), parts.drop(columns=[*numbers, "top_probabilities"])
    )
    assert "Parquet is not printed" in str(run(folder, "--format", "parquet").exception)


def test_other_methods_are_named(folder: Path, tmp_path: Path) -> None:
    run(folder, "--out", tmp_path / "rows.jsonl", "--method", "zero-shot")
    refused = run(folder, "--out", tmp_path / "rows.jsonl", "--method", "tpt,kld+cats", "--resume")
    assert "(stored -> now): methods: zero-shot -> tpt, kld+cats." in str(refused.exception)


def test_files_that_are_no_images_are_counted(folder: Path, tmp_path: Path) -> None:
    (folder / "IMG_0001.HEIC").write_bytes(b"\x00\x00\x00\x18ftypheic\x00\x00\x00\x00mif1heic")
    (folder / "labels.txt").write_text("cat")
    done = run(folder, "--format", "json")
    assert done.exit_code == 0
    said = "poise: 2 files skipped: .heic 1, .txt 1. Convert photos to JPEG or PNG: .heic is not read."
    assert done.stderr.splitlines()[0] == said
    assert "skipped" not in run(folder, "--format", "json", "--quiet").stderr
    named = run(folder / "IMG_0001.HEIC", "--format", "json")
    assert (
        "IMG_0001.HEIC' is HEIC, which is not read. Convert it to JPEG"
        in json.loads(named.stdout)[0]["error"]["message"]
    )
