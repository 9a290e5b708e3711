from __future__ import annotations

import json
import multiprocessing
import os
import shutil
from types import SimpleNamespace

import pytest

from poise.errors import RunConflictError, StorageError
from poise.evaluate.storage.run_folder import RunFolder, run_folders
from poise.evaluate.units import Plan
from poise.files import TEMPORARY

HEADER = {
    "run": "one",
    "config": {"views": 64, "seeds": [1, 2]},
    "methods": {"tpt": {"lr": 0.005}},
    "datasets": {"set": {"classes": ["a", "b"], "images_hash": "0"}},
    "versions": {"torch": "2"},
    "commit": "abc",
    "device": "cpu",
}
UNITS = Plan((1,), 2).units("set", "set", range(4))


def test_a_new_run_stores_its_header_and_resumes_with_the_same_one(tmp_path):
    with RunFolder(tmp_path, "one") as folder:
        assert folder.header() is None
        folder.begin(HEADER)
        folder.begin(HEADER)
        assert folder.header() == HEADER


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("config", "views"), 32),
        (("config", "seeds"), [1]),
        (("methods", "tpt", "lr"), 0.1),
        (("datasets", "set", "classes"), ["b", "a"]),
        (("datasets", "set", "images_hash"), "1"),
        (("versions", "torch"), "3"),
        (("commit",), "def"),
        (("device",), "other"),
    ],
)
def test_each_changed_field_is_refused_and_named(tmp_path, path, value):
    changed = json.loads(json.dumps(HEADER))
    place = changed
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = value
    with RunFolder(tmp_path, "one") as folder:
        folder.begin(HEADER)
        with pytest.raises(RunConflictError, match=".".join(path)) as caught:
            folder.begin(changed)
        of_code = path[0] in ("versions", "commit", "device")
        assert ("--allow-changes" in str(caught.value)) == of_code
        if of_code:
            folder.begin(changed, allow_changes=True)
        else:
            with pytest.raises(RunConflictError):
                folder.begin(changed, allow_changes=True)
        assert folder.header() == HEADER


def test_finished_units_are_those_whose_bytes_are_as_written(tmp_path):
    with RunFolder(tmp_path, "one") as folder:
        folder.commit(UNITS[0], b"first", images=2)
        folder.commit(UNITS[1], b"second", images=2)
        assert folder.state(UNITS).finished == {UNITS[0].id, UNITS[1].id}
        (folder.path / UNITS[0].path).write_bytes(b"fIrst")
        (folder.path / UNITS[1].path).unlink()
        state = folder.state(UNITS)
        assert state.finished == frozenset()
        assert state.damaged == (UNITS[0].id, UNITS[1].id)


def test_a_file_without_its_ledger_line_is_open(tmp_path):
    with RunFolder(tmp_path, "one") as folder:
        folder.commit(UNITS[0], b"first")
        folder.ledger.path.unlink()
        assert folder.state(UNITS) == type(folder.state(UNITS))(frozenset(), ())


def test_leftovers_of_a_killed_process_are_cleared(tmp_path):
    left = tmp_path / "one" / "set" / f"{TEMPORARY}part-00000.parquet"
    left.parent.mkdir(parents=True)
    left.write_bytes(b"half")
    with RunFolder(tmp_path, "one"):
        assert not left.exists()


@pytest.mark.parametrize("name", ["", ".lock", ".owner.json", "run.json", "ledger.jsonl", "set", str(UNITS[0].path)])
def test_links_in_a_run_s_folder_are_not_written_through(tmp_path, name):
    with RunFolder(tmp_path / "runs", "one") as folder:
        folder.begin(HEADER)
        folder.commit(UNITS[0], b"first")
    linked = tmp_path / "runs" / "one" / name
    outside = linked.rename(tmp_path / "outside")
    linked.symlink_to(outside)
    before = {path: path.is_file() and path.read_bytes() for path in (outside, *outside.rglob("*"))}
    with pytest.raises(RunConflictError, match="is a link"), RunFolder(tmp_path / "runs", "one"):
        pytest.fail("it was opened")
    assert before == {path: path.is_file() and path.read_bytes() for path in (outside, *outside.rglob("*"))}


def _hold(path, entered, leave):
    with RunFolder(path, "one"):
        entered.set()
        leave.wait(20)


def test_a_second_process_is_refused_with_the_owner_shown(tmp_path):
    context = multiprocessing.get_context("spawn")
    entered, leave = context.Event(), context.Event()
    other = context.Process(target=_hold, args=(str(tmp_path), entered, leave))
    other.start()
    try:
        assert entered.wait(30)
        with pytest.raises(RunConflictError, match=f"process {other.pid} on"), RunFolder(tmp_path, "one"):
            pass
        with RunFolder(tmp_path, "two"):  # another run in the same folder is fine
            pass
    finally:
        leave.set()
        other.join()
    with RunFolder(tmp_path, "one"):
        pass


def test_too_little_room_is_refused_before_the_work(tmp_path, monkeypatch):
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=2**20))
    with RunFolder(tmp_path, "one") as folder:
        folder.check_space(2**20)
        with pytest.raises(StorageError, match="1 MiB free"):
            folder.check_space(2**20 + 1)


def test_a_read_only_place_is_a_storage_error(tmp_path, monkeypatch):
    def refuse(*_, **__):
        raise OSError(30, os.strerror(30))

    monkeypatch.setattr("pathlib.Path.mkdir", refuse)
    with pytest.raises(StorageError, match="Read-only"), RunFolder(tmp_path / "x", "one"):
        pass


def test_run_folders_are_found_at_or_below(tmp_path):
    for name in ("b", "a"):
        with RunFolder(tmp_path, name) as folder:
            folder.begin(HEADER)
    assert [path.name for path in run_folders(tmp_path)] == ["a", "b"]
    assert run_folders(tmp_path / "a") == [tmp_path / "a"]
    assert run_folders(tmp_path / "none") == []


def test_the_models_fingerprint_is_stored_once_and_another_is_refused(tmp_path):
    with RunFolder(tmp_path, "one") as folder:
        folder.begin({**HEADER, "model_fingerprint": None})
        folder.identify(None)  # an encoder without one
        assert folder.header()["model_fingerprint"] is None
        folder.identify("12ab")
        folder.identify("12ab")
        assert folder.header() == {**HEADER, "model_fingerprint": "12ab"}
        for other in ("34cd", None):
            with pytest.raises(RunConflictError, match=f"12ab.*{other}"):
                folder.identify(other)


def test_a_run_of_an_earlier_version_has_no_fingerprint_and_gets_none(tmp_path):
    with RunFolder(tmp_path, "one") as folder:
        folder.begin(HEADER)
        folder.identify("12ab")
        assert folder.header() == HEADER
