"""Writers: complete or absent, a full disk is exit code 5, and a device is never replaced."""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from poise import files
from poise.cli.app import app
from poise.errors import RunConflictError, StorageError
from poise.files import only_writer, read_bounded, write_atomic


def test_a_link_keeps_its_place_and_its_file_is_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"old")
    (tmp_path / "link").symlink_to("file")
    write_atomic(tmp_path / "link", b"new")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "file").read_bytes() == b"new"


def test_a_pipe_is_written_to_and_not_replaced(tmp_path: Path) -> None:
    """As root, replacing /dev/stdout or /dev/null would damage the machine."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    try:
        write_atomic(pipe, b"text")
        assert os.read(reader, 9) == b"text"
    finally:
        os.close(reader)
    assert pipe.is_fifo()


def test_a_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    with pytest.raises(StorageError, match="directory"):
        write_atomic(tmp_path / "folder", b"x")
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(StorageError, match="Can't write"):
        write_atomic(tmp_path / "file" / "inner", b"x")


def test_what_lies_at_a_temporary_name_is_never_written_to(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files.secrets, "token_hex", lambda size: "guessed")
    (tmp_path / "outside").write_bytes(b"precious")
    (tmp_path / f"{files.TEMPORARY}guessed").symlink_to("outside")
    with pytest.raises(StorageError, match="File exists"):
        write_atomic(tmp_path / "file", b"new")
    assert (tmp_path / "outside").read_bytes() == b"precious"


def test_two_writers_of_a_file_both_succeed(tmp_path: Path) -> None:
    contents = [bytes([number]) * 100_000 for number in range(8)]
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda content: write_atomic(tmp_path / "file", content), contents * 8))
    assert (tmp_path / "file").read_bytes() in contents
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_the_second_writer_of_lines_is_refused(tmp_path: Path) -> None:
    arguments = ["classify", "samples", "--labels", "a,b", "--model", "tiny", "--method", "zero-shot"]
    out = tmp_path / "rows.jsonl"
    with only_writer(out):
        result = CliRunner().invoke(app, [*arguments, "--format", "jsonl", "--out", str(out)])
        assert isinstance(result.exception, RunConflictError)  # exit code 2, where a full disk has 5
        assert "Another process is writing" in str(result.exception)
    assert out.read_bytes() == b""
    with only_writer(Path("/dev/null")), only_writer(Path("/dev/null")):
        pass


def test_a_file_without_end_is_not_read_to_its_end() -> None:
    with pytest.raises(OSError, match="larger than 1 MiB"):
        read_bounded("/dev/zero", 1 << 20)


FILES = {
    "fit": [
        "fit",
        "fpp",
        "--labels-file",
        "labels.txt",
        "--model",
        "tiny",
        "--device",
        "cpu",
        "--out",
        "out",
        "--steps",
        "1",
    ],
    "convert": ["convert", "coop", "prompt.pth.tar", "out", "--model", "tiny"],
}
_LIMITED = """
import json, resource, signal, sys
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)  # so that writing fails as it does on a full disk
from poise.cli.app import main
import poise.inits.fpp, poise.inits.convert
resource.setrlimit(resource.RLIMIT_FSIZE, (100, 100))
for command in json.loads(sys.argv[1]):  # in one process, which takes seconds to start
    sys.argv = ["poise", *command]
    try: main()
    except SystemExit as stop: print(stop.code)
"""


def test_a_full_disk_is_exit_code_5_and_leaves_nothing(tmp_path: Path) -> None:
    (tmp_path / "labels.txt").write_text("cat\ndog\n")
    torch.save({"state_dict": {"prompt_learner.ctx": torch.zeros(4, 64)}}, tmp_path / "prompt.pth.tar")
    command = [sys.executable, "-c", _LIMITED, json.dumps(list(FILES.values()))]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=240)
    assert done.stdout.split() == ["5", "5"], done.stderr
    assert done.stderr.count("Can't write 'out'") == 2
    assert "Traceback" not in done.stderr
    assert not list(tmp_path.glob("*out*"))


def test_converting_a_prompt_into_a_folder_is_refused(tmp_path: Path) -> None:
    torch.save({"state_dict": {"prompt_learner.ctx": torch.zeros(4, 64)}}, tmp_path / "prompt.pth.tar")
    result = CliRunner().invoke(
        app, ["convert", "coop", str(tmp_path / "prompt.pth.tar"), str(tmp_path), "--model", "tiny"]
    )
    assert isinstance(result.exception, StorageError)
    assert resource.getrlimit(resource.RLIMIT_FSIZE)[0] == resource.RLIM_INFINITY  # that of the other test is its own
