"""`poise classify --out FOLDER/`, `poise embed` and `poise collect`: parts, resuming, features, and what goes wrong."""

from __future__ import annotations

import errno
import json
import os
import re
import shutil
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import fsspec
import numpy as np
import pyarrow.parquet as pq
import pytest
from fsspec.implementations.memory import MemoryFileSystem
from typer.testing import CliRunner, Result

from poise import Classifier, filesystems, progress
from poise.cli.app import app
from poise.data.opening import open_dataset, open_images
from poise.errors import InvalidDatasetError, InvalidOptionError, RunConflictError, StorageError, UnknownNameError
from poise.filesystems import write_whole
from poise.jobs.collect import read_rows, sampled
from poise.jobs.done import Done, Summary
from poise.jobs.metrics import JobMetrics
from poise.jobs.run import Engine, begin, run
from poise.jobs.workers import AnswerJob
from poise.parts import finished_parts, receipts
from tests.data.test_sources import write_shard
from tests.evaluate.attempt import make_images

PLAIN = ("--model", "tiny", "--device", "cpu", "--quiet")
LABELS = ("--labels", "cat,dog,tree")
METHODS = ("--method", "zero-shot,kld+cats,zero", "--views", "4")


def poise(*arguments: object) -> Result:
    return CliRunner().invoke(app, [*map(str, arguments), *PLAIN])


def error_of(result: Result, kind: type[Exception]) -> str:
    assert isinstance(result.exception, kind), (result.exception, result.output)
    return str(result.exception)


def rows(out: Path) -> list[dict[str, Any]]:
    return [row for name in finished_parts(str(out)) for row in pq.read_table(out / name).to_pylist()]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Nine images in three classes, and three tars of them; one image of the second is text."""
    root = tmp_path_factory.mktemp("data")
    images = make_images(root / "images", classes=3, each=3)
    for number in range(3):
        files = {f"{at}.png": (images / f"class{number}" / f"{at}.png").read_bytes() for at in range(3)}
        write_shard(root / f"{number}.tar", {**files, **({"bad.png": b"text"} if number == 1 else {})})
    return root


@pytest.fixture(scope="module")
def whole(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("whole") / "out"
    assert poise("classify", f"wds:{folder}/*.tar", *LABELS, *METHODS, "--out", f"{out}/").exit_code == 3
    return out


@pytest.fixture(scope="module")
def features(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("features") / "out"
    assert poise("embed", f"wds:{folder}/*.tar", "--views", 6, "--out", out).exit_code == 3
    return out


def test_parts_have_the_rows_of_json_lines(folder: Path, whole: Path, tmp_path: Path) -> None:
    file = tmp_path / "rows.jsonl"
    poise("classify", f"wds:{folder}/*.tar", *LABELS, *METHODS, "--format", "jsonl", "--out", file)
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    found = rows(whole)
    assert len(found) == len(lines) == 9 * 3 + 1
    for ours, theirs in zip(found, lines, strict=True):
        assert (ours["source"], ours["method"], ours["label"]) == (theirs["source"], theirs["method"], theirs["label"])
        assert ours["confidence"] == pytest.approx(theirs["confidence"], abs=1e-5)
    assert {row["shard"] for row in found} == {"0.tar", "1.tar", "2.tar"}
    (failed,) = (row for row in found if row["error_code"])
    assert (failed["source"], failed["error_code"]) == ("1/bad", "unreadable_image")
    receipt = json.loads((whole / "_ledger" / "part-000001.json").read_text())
    assert (receipt["shard"], receipt["images"], receipt["failures"]) == ("1.tar", 4, {"unreadable_image": 1})


def test_progress_of_tars_says_shards_failures_and_time_left(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(progress, "EVERY", 0.0)
    plain = ("--model", "tiny", "--device", "cpu", "--out", f"{tmp_path}/out/", "--batch-size", "2")
    done = CliRunner().invoke(app, ["classify", f"wds:{folder}/*.tar", *LABELS, "--method", "zero-shot", *plain])
    assert re.search(r"images: \d+ images, .* images/s; 1 of 3 shards, about 0:00:\d\d left\n", done.stderr)
    assert re.search(r"; 2 of 3 shards, about .* left, 1 unreadable_image\n", done.stderr)
    assert "failed: 1 unreadable_image." in done.stderr


def test_a_stopped_job_is_resumed_without_loss(folder: Path, whole: Path, tmp_path: Path) -> None:
    """Whatever is left of the parts and receipts, the result is that of one attempt."""
    command = ("classify", f"wds:{folder}/*.tar", *LABELS, *METHODS, "--out", f"{tmp_path}/out/")
    assert poise(*command).exit_code == 3
    out = tmp_path / "out"
    (out / "_ledger" / "part-000000.json").unlink()  # killed between the part and its receipt
    (out / "part-000001.parquet").unlink()  # somebody deleted it
    (out / "_ledger" / "part-000002.json").write_text("{")
    (out / ".writing-0123").write_bytes(b"torn")
    message = error_of(poise(*command), RunConflictError)
    assert "has the parts of an earlier job. Add --resume" in message
    assert poise(*command, "--resume").exit_code == 3
    for name in finished_parts(str(whole)):
        assert (out / name).read_bytes() == (whole / name).read_bytes()
    assert len(receipts(str(out))) == 3


def test_the_row_of_a_damaged_shard_is_not_counted_as_an_image(folder: Path, tmp_path: Path) -> None:
    first, *_ = sorted(folder.glob("*.tar"))
    (tmp_path / "cut.tar").write_bytes(first.read_bytes()[:700])
    shutil.copy(first, tmp_path / "whole.tar")
    plain = ("--model", "tiny", "--device", "cpu", "--out", f"{tmp_path}/out/")
    done = CliRunner().invoke(app, ["classify", f"wds:{tmp_path}/*.tar", *LABELS, "--method", "zero-shot", *plain])
    assert done.exit_code == 3
    assert "3 images in 2 of 2 shards" in done.stderr
    assert "failed: 1 bad_shard" in done.stderr


def test_folders_of_earlier_versions_are_read_and_resumed(folder: Path, whole: Path, tmp_path: Path) -> None:
    """Their manifest and ledger have no underscore."""
    out = tmp_path / "out"
    command = ("classify", f"wds:{folder}/*.tar", *LABELS, *METHODS, "--out", f"{out}/")
    shutil.copytree(whole, out)
    (out / "_manifest.json").rename(out / "manifest.json")
    (out / "_ledger").rename(out / "ledger")
    assert rows(out) == rows(whole)
    (out / "ledger" / "part-000001.json").unlink()
    assert "has the parts of an earlier job" in error_of(poise(*command), RunConflictError)
    assert poise(*command, "--resume").exit_code == 3
    assert {path.name for path in out.glob("*ledger/*")} == {f"part-00000{number}.json" for number in range(3)}
    assert rows(out) == rows(whole)


def test_other_settings_and_other_shards_are_refused(folder: Path, whole: Path) -> None:
    plain = ("--out", f"{whole}/", "--resume", *METHODS)
    message = error_of(poise("classify", f"wds:{folder}/*.tar", "--labels", "cat,dog", *plain), RunConflictError)
    assert 'settings.labels: ["cat", "dog", "tree"] -> ["cat", "dog"]' in message
    message = error_of(poise("classify", f"wds:{folder}/0.tar", *LABELS, *plain), RunConflictError)
    assert "shards: 3 -> 1" in message


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EROFS])
def test_a_full_or_read_only_disk_is_one_error_and_loses_nothing(
    code: int, folder: Path, whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    command = ("classify", f"wds:{folder}/*.tar", *LABELS, *METHODS, "--out", f"{tmp_path}/out/")
    original, calls = os.fsync, []

    def refuse(handle: int) -> None:
        calls.append(handle)
        if len(calls) > 6:  # after the manifest and the first part with its receipt: a file and its folder each
            raise OSError(code, os.strerror(code))
        original(handle)

    monkeypatch.setattr(os, "fsync", refuse)
    assert f"Can't write '{tmp_path}/out/part-000001.parquet'" in error_of(poise(*command), StorageError)
    monkeypatch.setattr(os, "fsync", original)
    assert list(receipts(f"{tmp_path}/out")) == ["part-000000"]
    assert poise(*command, "--resume").exit_code == 3
    assert rows(tmp_path / "out") == rows(whole)


def test_a_shard_that_cannot_be_read_now_is_tried_again(folder: Path, whole: Path, tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    for number in range(3):
        (tmp_path / "in" / f"{number}.tar").write_bytes((folder / f"{number}.tar").read_bytes())
    shards = open_images([f"wds:{tmp_path}/in/*.tar"])
    (tmp_path / "in" / "1.tar").rename(tmp_path / "away.tar")
    options = {"labels": ("cat", "dog", "tree"), "model": "tiny", "method": ("zero-shot",), "device": "cpu"}
    job = AnswerJob(str(tmp_path / "out"), options)
    first = run(job, shards, Engine(), finished=begin(job.out, {}, shards, resume=False))
    assert (first.shards, list(first.problems)) == (2, ["1.tar"])
    (tmp_path / "away.tar").rename(tmp_path / "in" / "1.tar")
    second = run(job, shards, Engine(), finished=begin(job.out, {}, shards, resume=True))
    assert (second.shards, second.problems, second.images) == (3, {}, 10)
    assert [row["source"] for row in rows(tmp_path / "out")] == list(
        dict.fromkeys(row["source"] for row in rows(whole))
    )


class Away(MemoryFileSystem):
    """A filesystem in memory that can be out of reach."""

    protocol = "away"
    reachable = False

    def _open(self, path: str, *arguments: Any, **options: Any) -> Any:
        if not Away.reachable and "wb" not in (*arguments, *options.values()):
            raise TimeoutError("no route")
        return super()._open(path, *arguments, **options)


def test_images_of_which_none_can_be_reached_are_tried_again(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One image that can't be reached has a row; a store that is away leaves its shards to --resume."""
    fsspec.register_implementation("away", Away, clobber=True)
    monkeypatch.setattr(filesystems, "PAUSE", 0.0)
    for at in range(2):
        write_whole(f"away://bucket/in/{at}.png", (folder / "images" / "class0" / f"{at}.png").read_bytes())
    command = ("classify", "away://bucket/in", *LABELS, "--method", "zero-shot", "--out", f"{tmp_path}/out/")
    first = poise(*command)
    assert first.exit_code == 4, first.output
    assert "the shard 'images-000000' is not done: no route (attempt 5)." in first.stderr
    monkeypatch.setattr(Away, "reachable", True)
    assert poise(*command, "--resume").exit_code == 0
    assert [row["source"] for row in rows(tmp_path / "out")] == [f"away://bucket/in/{at}.png" for at in range(2)]


# Features


def test_features_answer_as_images_do(features: Path, whole: Path, tmp_path: Path) -> None:
    """Zero-shot, a tuned method and a rule, from 6 stored views of which 4 are asked for."""
    result = poise("classify", features, *LABELS, *METHODS, "--out", f"{tmp_path}/")
    assert result.exit_code == 3, result.output
    found, expected = rows(tmp_path), rows(whole)
    assert [(row["source"], row["method"], row["error_code"]) for row in found] == [
        (row["source"], row["method"], row["error_code"]) for row in expected
    ]
    for ours, theirs in zip(found, expected, strict=True):
        if ours["error_code"] is None:
            assert ours["confidence"] == pytest.approx(theirs["confidence"], abs=5e-3)  # float16: about 1e-4 of a logit


def test_features_are_of_unit_length_in_half_precision(features: Path) -> None:
    table = pq.read_table(features / "part-000000.parquet")
    values = np.stack(table["features"].to_pylist()).reshape(3, 6, -1)
    assert table["features"].type.value_type == "halffloat"
    np.testing.assert_allclose(np.linalg.norm(values.astype(np.float64), axis=-1), 1, atol=1e-3)
    manifest = json.loads((features / "_manifest.json").read_text())
    assert manifest["recipe"]["views"] == 6
    assert manifest["image"]["size"] == 32


def test_features_are_answered_in_python_and_as_a_table(features: Path) -> None:
    items = [item for shard in open_images([str(features)]) for item in shard.items()]
    classify = Classifier(["cat", "dog"], model="tiny", method="kld+cats", views=6, device="cpu")
    outcomes = list(classify.each(items))
    assert len(outcomes) == 10
    assert (
        CliRunner().invoke(app, ["classify", str(features), *LABELS, "--device", "cpu"]).stdout.count("kld+cats") == 9
    )


def test_features_of_another_model_or_other_views_are_refused(features: Path, tmp_path: Path) -> None:
    plain = ("classify", str(features), *LABELS, "--device", "cpu", "--out", f"{tmp_path}/")

    def refused(*more: str) -> str:
        return error_of(CliRunner().invoke(app, [*plain, *more]), InvalidOptionError)

    stored = json.loads((features / "_manifest.json").read_text())["fingerprint"]
    other = Classifier(["a", "b"], model="pocket", device="cpu", method="zero-shot").encoder
    message = refused("--model", "pocket")
    assert stored in message
    from poise.backbones.fingerprint import fingerprint

    assert fingerprint(other) in message
    assert "7 views were asked for, and the features have 6 views per image" in refused("--views", "7")
    assert "'seed': 0" in refused("--seed", "1")
    assert not list(tmp_path.iterdir())
    assert "come alone" in refused("samples")


def test_labelled_features_calibrate_and_run_benchmarks(folder: Path, tmp_path: Path) -> None:
    made = poise("embed", f"folder:{folder / 'images'}", "--labelled", "--views", 2, "--out", tmp_path / "f")
    assert made.exit_code == 0, made.output
    found = open_dataset(f"features:{tmp_path / 'f'}")
    assert found.classes == ("class0", "class1", "class2")
    assert [item.label for item in found.items] == [0, 0, 0, 1, 1, 1, 2, 2, 2]
    plain = ("--model", "tiny", "--method", "zero-shot", "--views", "2", "--device", "cpu", "--out", str(tmp_path))
    bench = ("bench", "run", "--seeds", "0")
    done = CliRunner().invoke(app, [*bench, "--dataset", f"features:{tmp_path / 'f'}", "--name", "a", *plain])
    assert done.exit_code == 0, done.output
    direct = CliRunner().invoke(app, [*bench, "--dataset", f"folder:{folder}/images", "--name", "b", *plain])
    assert direct.exit_code == 0, direct.output
    answers = [
        {
            row["id"]: row["confidence"]
            for part in (tmp_path / name).rglob("*.parquet")
            for row in pq.read_table(part).to_pylist()
        }
        for name in ("a", "b")
    ]
    assert answers[0] == pytest.approx(answers[1], abs=5e-3)
    calibrated = CliRunner().invoke(
        app, ["calibrate", str(tmp_path / "f"), *plain[2:-1], str(tmp_path / "c.json"), "--coverage", "0.8"]
    )
    assert calibrated.exit_code == 0, calibrated.output


def test_unlabelled_and_damaged_features(features: Path, tmp_path: Path) -> None:
    with pytest.raises(InvalidDatasetError, match=r"have no labels.*--labelled"):
        open_dataset(f"features:{features}")
    with pytest.raises(InvalidDatasetError, match=r"has no features: there is no '_manifest.json'"):
        open_images([f"features:{tmp_path}"])
    (tmp_path / "_manifest.json").write_text(json.dumps({"format": "other"}))
    with pytest.raises(InvalidDatasetError, match=r"the format in '_manifest.json' is 'other'"):
        open_images([f"features:{tmp_path}"])


# Collecting


def test_collect_merges_filters_and_samples(whole: Path, tmp_path: Path) -> None:
    assert len(list(read_rows(str(whole))[1])) == 3  # a piece per part
    assert CliRunner().invoke(app, ["collect", str(whole), "--where", "error_code != null"]).stdout.count("\n") == 2
    out = tmp_path / "some.parquet"
    conditions = ("--where", "method = zero-shot", "--where", "confidence >= 0.5")
    done = CliRunner().invoke(app, ["collect", str(whole), *conditions, "--columns", "source,label", "--out", str(out)])
    assert done.exit_code == 0, done.output
    expected = [row for row in rows(whole) if row["method"] == "zero-shot" and row["confidence"] >= 0.5]
    assert pq.read_table(out).to_pylist() == [{name: row[name] for name in ("source", "label")} for row in expected]
    lines = CliRunner().invoke(app, ["collect", str(whole), "--format", "jsonl", "--sample", "5"]).stdout.splitlines()
    assert len(lines) == 5
    assert all(json.loads(line) in rows(whole) for line in lines)


def test_a_sample_is_uniform_and_bounded() -> None:
    import pyarrow as pa

    def batches() -> Any:
        for first in range(0, 2000, 100):
            yield pa.record_batch({"x": list(range(first, first + 100))})

    counts = np.zeros(2000)
    for seed in range(200):
        drawn = [row for batch in sampled(batches(), 100, seed) for row in batch.column("x").to_pylist()]
        assert len(drawn) == len(set(drawn)) == 100
        assert drawn == sorted(drawn)
        counts[drawn] += 1
    halves = counts[:1000].sum(), counts[1000:].sum()
    assert abs(halves[0] - halves[1]) < 6 * np.sqrt(20000)  # six standard deviations of the difference


@pytest.mark.parametrize(
    ("where", "kind", "message"),
    [
        ("confidence", InvalidOptionError, "not a condition"),
        ("confidenc < 1", UnknownNameError, "Did you mean 'confidence'"),
        ("confidence < high", InvalidOptionError, "no value of 'confidence'"),
        ("notes = x", InvalidOptionError, "lists"),
    ],
)
def test_conditions_that_are_refused(where: str, kind: type[Exception], message: str, whole: Path) -> None:
    with pytest.raises(kind, match=message):
        read_rows(str(whole), [where])


def test_collect_refuses_folders_that_are_damaged(whole: Path, tmp_path: Path) -> None:
    with pytest.raises(InvalidDatasetError, match=r"has no _manifest\.json"):
        read_rows(str(tmp_path))
    import shutil

    shutil.copytree(whole, tmp_path / "copy")
    (tmp_path / "copy" / "part-000001.parquet").write_bytes(b"short")
    with pytest.raises(InvalidDatasetError, match=r"1 of 3 parts .* 'part-000001'.*--resume"):
        read_rows(str(tmp_path / "copy"))


# Operations


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_monitor_and_summary_of_a_calibrated_job(folder: Path, tmp_path: Path) -> None:
    """Images that are like those of the calibration raise no alarm; another model's answers are refused."""
    pixels = np.random.default_rng(3).integers(0, 256, (60, 24, 32, 3), np.uint8)
    options: Any = {"model": "tiny", "method": ["zero-shot"], "device": "cpu"}
    made = Classifier(["cat", "dog", "tree"], **options).calibrate(list(pixels), ["cat", "dog", "tree"] * 20)
    made.save(tmp_path / "c.json")
    plain = ["classify", f"wds:{folder}/*.tar", "--calibration", str(tmp_path / "c.json"), "--device", "cpu"]
    done = CliRunner().invoke(app, [*plain, "--out", f"{tmp_path}/out/", "--verbose"])
    assert done.exit_code == 3, done.output
    assert "A sample of 9 images in random order" in done.stderr
    system = fsspec.filesystem("memory")
    system.put(str(tmp_path / "out"), "/answers", recursive=True)
    stored = CliRunner().invoke(app, ["embed", f"wds:{folder}/*.tar", "--out", f"{tmp_path}/features", *PLAIN])
    assert stored.exit_code == 3, stored.output
    for answers in (tmp_path / "out", "memory://answers", f"wds:{folder}/*.tar", tmp_path / "features"):
        watched = CliRunner().invoke(app, ["monitor", str(tmp_path / "c.json"), str(answers), "--device", "cpu"])
        assert watched.exit_code in (0, 6), (watched.output, watched.exception)
        assert "after 9 images" in watched.stdout  # evidence differs by the rounding of what is stored
    system.rm("/answers", recursive=True)
    manifest = json.loads((tmp_path / "out" / "_manifest.json").read_text())
    manifest["settings"]["fingerprint"] = "0" * 32
    (tmp_path / "out" / "_manifest.json").write_text(json.dumps(manifest))
    refused = CliRunner().invoke(app, ["monitor", str(tmp_path / "c.json"), str(tmp_path / "out")])
    assert "0" * 32 in str(refused.exception)


def test_a_dry_run_says_what_it_would_take(folder: Path, tmp_path: Path) -> None:
    plain = [*LABELS, "--method", "zero-shot", "--model", "tiny", "--device", "cpu", "--out", f"{tmp_path}/out/"]
    done = CliRunner().invoke(app, ["classify", f"wds:{folder}/*.tar", *plain, "--dry-run", "--price", "3"])
    assert done.exit_code == 0, done.output
    assert "images in 3 shards" in done.stdout
    assert "images/s by one worker like this process, measured on 10 images" in done.stdout
    assert "per worker and hour" in done.stdout
    assert not (tmp_path / "out").exists()


def test_the_metrics_of_a_job() -> None:
    with JobMetrics(0, shards=4, finished=1) as metrics:
        metrics.add(Done(1, "a", images=10, failures={"unreadable_image": 2}, seconds=1.5))
        metrics.add(Done(2, "b", problem="503"))
        text = urlopen(f"http://127.0.0.1:{metrics.port}/metrics", timeout=10).read().decode()
        for line in (
            "poise_job_images_total 10.0",
            'poise_job_failures_total{code="unreadable_image"} 2.0',
            'poise_job_shards{state="finished"} 2.0',
            'poise_job_shards{state="unreachable"} 1.0',
        ):
            assert line in text
        with pytest.raises(InvalidOptionError, match="can't be used"), JobMetrics(metrics.port, 1):
            pass


def test_a_summary_does_not_grow_with_the_images() -> None:
    summary = Summary()
    for number in range(20_000):
        summary.add(Done(number, str(number), images=10, labels={"cat": 10}, sample=tuple([(0.5, 0.1)] * 32)))
    assert summary.images == summary.labels["cat"] == 200_000
    assert len(summary.sample) < 40_000


def test_options_that_need_a_folder_are_refused_without(folder: Path, tmp_path: Path) -> None:
    plain = ("classify", folder / "images", *LABELS)
    assert "goes with --out FOLDER/" in error_of(poise(*plain, "--dry-run"), InvalidOptionError)
    assert "Parquet is not printed" in error_of(poise(*plain, "--format", "parquet"), InvalidOptionError)
    refused = poise(*plain, "--format", "csv", "--out", f"{tmp_path}/")
    assert "--format csv is for one file" in error_of(refused, InvalidOptionError)
    refused = poise(*plain, "--out", f"{tmp_path}/", "--sort-into", tmp_path)
    assert "don't go with --out FOLDER/" in error_of(refused, InvalidOptionError)
