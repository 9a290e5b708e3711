"""Killed, stopped, refused, damaged: whatever happens to a run, resumed it ends with the same bytes."""

from __future__ import annotations

import json
import os
import random
import signal
import time

import pytest

from tests.evaluate.attempt import arguments, contents, finish, make_images, start

CHUNKS = 8


@pytest.fixture(scope="module")
def image_folder(tmp_path_factory):
    return make_images(tmp_path_factory.mktemp("data") / "images")


@pytest.fixture(scope="module")
def whole(image_folder, tmp_path_factory):
    """What an uninterrupted run leaves, and how long it takes."""
    folder = tmp_path_factory.mktemp("whole")
    assert finish(["--version"], folder / "log") == 0  # imports are done once, and not timed
    began = time.monotonic()
    assert finish(arguments(image_folder, folder), folder / "log") == 0, (folder / "log").read_text()
    files = contents(folder)
    assert len(files) == CHUNKS + 1
    return files, time.monotonic() - began


def wait_for(condition, process, log, seconds=120):
    end = time.monotonic() + seconds
    while not condition():
        assert process.exitcode is None, log.read_text()
        assert time.monotonic() < end, log.read_text()
        time.sleep(0.005)


def parts(out):
    return list((out / "run").rglob("part-*.parquet"))


@pytest.mark.parametrize("die_at", [2, 9, 26])
def test_killed_between_any_two_disk_calls(image_folder, whole, tmp_path, die_at):
    argv, log = arguments(image_folder, tmp_path), tmp_path / "log"
    assert finish(argv, log, die_at=die_at) == -signal.SIGKILL
    assert finish(argv, log) == 0, log.read_text()
    assert contents(tmp_path) == whole[0]


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_killed_again_and_again_until_done(image_folder, whole, tmp_path):
    argv, log, kills = arguments(image_folder, tmp_path), tmp_path / "log", 0
    while (code := finish(argv, log, die_at=9)) == -signal.SIGKILL:  # each attempt gets a little further
        kills += 1
    assert code == 0, log.read_text()
    assert kills >= 4
    assert contents(tmp_path) == whole[0]


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("first", range(1, 5))
def test_killed_at_every_disk_call(image_folder, whole, tmp_path, first):
    kills = 0
    for die_at in range(first, 100, 4):
        out = tmp_path / str(die_at)
        out.mkdir()
        if finish(arguments(image_folder, out), out / "log", die_at=die_at) == 0:
            break
        kills += 1
        assert finish(arguments(image_folder, out), out / "log") == 0, (out / "log").read_text()
        assert contents(out) == whole[0]
    assert kills >= 8  # the four of them together: every write of the run


def kill_at_random_times(image_folder, whole, tmp_path, kills):
    argv, log = arguments(image_folder, tmp_path), tmp_path / "log"
    numbers = random.Random(kills)
    for _ in range(kills):
        process = start(argv, log)
        time.sleep(numbers.uniform(0, whole[1]))
        if process.exitcode == 0:
            break
        process.kill()
        process.join()
    assert finish(argv, log) == 0, log.read_text()
    assert contents(tmp_path) == whole[0]
    lines = [json.loads(line) for line in (tmp_path / "run" / "ledger.jsonl").read_text().splitlines()]
    assert len({line["unit"] for line in lines if "unit" in line}) == CHUNKS


def test_killed_at_a_few_random_times(image_folder, whole, tmp_path):
    kill_at_random_times(image_folder, whole, tmp_path, 2)


@pytest.mark.slow
@pytest.mark.parametrize("rounds", range(5))
def test_killed_at_many_random_times(image_folder, whole, tmp_path, rounds):
    kill_at_random_times(image_folder, whole, tmp_path, 5 + rounds)


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_signal_stops_between_batches_and_prints_how_to_resume(image_folder, whole, tmp_path, number, code):
    argv, log = arguments(image_folder, tmp_path), tmp_path / "log"
    process = start(argv, log, pause=0.1)
    wait_for(lambda: parts(tmp_path), process, log)
    os.kill(process.pid, number)
    process.join(60)
    text = log.read_text()
    assert process.exitcode == code, text
    assert "Resume with:\n  poise bench run" in text
    assert f"folder:{image_folder}" in text
    assert 0 < len(parts(tmp_path)) < CHUNKS
    assert finish(argv, log) == 0, log.read_text()
    assert contents(tmp_path) == whole[0]


def test_a_changed_configuration_is_refused_with_the_difference(image_folder, whole, tmp_path):
    log = tmp_path / "log"
    assert finish(arguments(image_folder, tmp_path), log, die_at=9) == -signal.SIGKILL
    assert finish([*arguments(image_folder, tmp_path), "--views", "5", "--set", "options.kld+cats.lr=0.1"], log) == 2
    assert "config.views: 4 -> 5" in log.read_text()
    assert "methods.kld+cats.lr: 0.005 -> 0.1" in log.read_text()
    (image_folder / "class0" / "0.png").rename(image_folder / "class0" / "renamed.png")
    try:
        assert finish(arguments(image_folder, tmp_path), log) == 2
        assert "images_hash" in log.read_text()
    finally:
        (image_folder / "class0" / "renamed.png").rename(image_folder / "class0" / "0.png")
    assert finish(arguments(image_folder, tmp_path), log) == 0, log.read_text()
    assert contents(tmp_path) == whole[0]


def test_damaged_files_are_computed_again_and_reported(image_folder, whole, tmp_path):
    argv, log = arguments(image_folder, tmp_path), tmp_path / "log"
    assert finish(argv, log) == 0, log.read_text()
    flipped, torn, gone, untouched, *_ = sorted(parts(tmp_path))
    content = bytearray(flipped.read_bytes())
    content[len(content) // 2] ^= 1
    flipped.write_bytes(content)
    torn.write_bytes(torn.read_bytes()[:-9])
    gone.unlink()
    before = untouched.stat().st_mtime_ns
    assert finish(argv, log) == 0, log.read_text()
    text = log.read_text()
    assert "damaged files were computed again" in text
    assert "3 of 8 chunks new" in text
    for file in (flipped, torn, gone):
        assert file.stem in text
    assert untouched.stat().st_mtime_ns == before
    assert contents(tmp_path) == whole[0]


@pytest.mark.parametrize("full_at", [1, 12, 25])
def test_a_full_disk_keeps_what_is_done(image_folder, whole, tmp_path, full_at):
    argv, log = arguments(image_folder, tmp_path), tmp_path / "log"
    assert finish(argv, log, full_at=full_at) == 5
    assert "No space left" in log.read_text()
    assert "Resume with" in log.read_text()
    kept = contents(tmp_path)
    assert all(whole[0][place] == content for place, content in kept.items())
    assert finish(argv, log) == 0, log.read_text()
    assert contents(tmp_path) == whole[0]


def test_the_second_of_two_processes_is_refused_and_the_first_is_not_disturbed(image_folder, whole, tmp_path):
    argv, log = arguments(image_folder, tmp_path), tmp_path / "log"
    first = start(argv, log, pause=0.05)
    wait_for((tmp_path / "run" / "run.json").exists, first, log)
    other = tmp_path / "other-log"
    os.kill(first.pid, signal.SIGSTOP)  # so that it can't be done before the second one has begun
    assert finish(argv, other) == 2
    os.kill(first.pid, signal.SIGCONT)
    assert f"process {first.pid} on" in other.read_text()
    first.join(60)
    assert first.exitcode == 0, log.read_text()
    assert contents(tmp_path) == whole[0]
