from __future__ import annotations

import errno
import json
import os
from pathlib import Path

import pytest

from poise.errors import StorageError
from poise.evaluate.storage.ledger import Ledger
from poise.files import TEMPORARY, checksum, write_atomic


def test_whole_files_replace_and_leave_nothing_behind(tmp_path):
    file = tmp_path / "deep" / "file"
    write_atomic(file, b"one")
    write_atomic(file, b"two")
    assert file.read_bytes() == b"two"
    assert [entry.name for entry in file.parent.iterdir()] == ["file"]


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES])
@pytest.mark.parametrize("call", ["fsync", "replace"])
def test_a_refused_write_keeps_the_old_file(tmp_path, monkeypatch, number, call):
    file = tmp_path / "file"
    write_atomic(file, b"old")

    def refuse(*_):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(*((os, "fsync") if call == "fsync" else (Path, "replace")), refuse)
    with pytest.raises(StorageError, match="same command again"):
        write_atomic(file, b"new")
    monkeypatch.undo()
    assert file.read_bytes() == b"old"
    assert not list(tmp_path.glob(f"{TEMPORARY}*"))


def test_other_errors_are_not_converted(tmp_path, monkeypatch):
    def refuse(*_):
        raise OSError(errno.EINVAL, "odd")

    monkeypatch.setattr(os, "fsync", refuse)
    with pytest.raises(OSError, match="odd") as caught:
        write_atomic(tmp_path / "file", b"x")
    assert not isinstance(caught.value, StorageError)


def test_every_prefix_of_a_ledger_can_be_read_and_continued(tmp_path):
    ledger = Ledger(tmp_path / "ledger.jsonl")
    for index in range(3):
        ledger.append({"unit": f"u{index}", "sha256": checksum(bytes([index]))})
    whole = ledger.path.read_bytes()
    ends = [position + 1 for position, byte in enumerate(whole) if byte == ord("\n")]
    for cut in range(len(whole) + 1):
        ledger.path.write_bytes(whole[:cut])
        complete = sum(end <= cut + 1 for end in ends)  # a line is complete even without its line end
        assert len(ledger.finished()) == complete
        ledger.append({"unit": "next", "sha256": "0"})
        assert len(ledger.finished()) == complete + 1


def test_damage_in_the_middle_loses_one_line(tmp_path):
    ledger = Ledger(tmp_path / "ledger.jsonl")
    for index in range(3):
        ledger.append({"unit": f"u{index}", "sha256": "0"})
    lines = ledger.path.read_text().splitlines()
    lines[1] = lines[1][:-3] + "\x00"
    ledger.path.write_text("\n".join(lines) + "\n")
    assert set(ledger.finished()) == {"u0", "u2"}


def test_the_last_line_about_a_unit_counts_and_events_are_no_units(tmp_path):
    ledger = Ledger(tmp_path / "ledger.jsonl")
    ledger.append({"event": "start"})
    ledger.append({"unit": "u", "sha256": "old"})
    ledger.append({"unit": "u", "sha256": "new"})
    ledger.path.write_text(ledger.path.read_text() + json.dumps([1]) + "\n")
    assert ledger.finished() == {"u": {"unit": "u", "sha256": "new"}}
    assert len(ledger.lines()) == 3


def test_a_full_disk_while_appending_keeps_earlier_lines(tmp_path, monkeypatch):
    ledger = Ledger(tmp_path / "ledger.jsonl")
    ledger.append({"unit": "u", "sha256": "0"})

    def refuse(*_):
        raise OSError(errno.ENOSPC, "full")

    monkeypatch.setattr(os, "fsync", refuse)
    with pytest.raises(StorageError):
        ledger.append({"unit": "v", "sha256": "0"})
    assert "u" in ledger.finished()
