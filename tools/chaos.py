"""Kills real runs at every kind of moment, resumes them, and compares the bytes with those of an unbroken run.

    python tools/chaos.py --kills 200          # all rows but Ray's
    python tools/chaos.py --rows ray           # workers of a Ray run, one killed every few seconds
    python tools/chaos.py --rows nodes --kills 50   # workers, nodes and the command of a job on three nodes

Each row of the table starts `poise bench run` or `poise classify --resume` (model tiny) in its own process, lets a
fault happen, and repeats the same command until it ends. The exit code is 1 if anything is lost, doubled or different.
"""

from __future__ import annotations

import argparse
import errno
import json
import multiprocessing
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from tests.evaluate.attempt import PRELOAD, arguments, contents, make_images  # noqa: E402

RESULTS = ROOT / "tools" / "chaos_results.jsonl"
KILLED = -signal.SIGKILL
FAULTS = {"": 0, "kill": 0, "full": errno.ENOSPC, "read-only": errno.EROFS}


@dataclass(frozen=True)
class Fault:
    """What happens at the n-th call of a function of the child: it is killed, or the disk refuses."""

    place: str = ""  # decode, tune, write, rename, line; "" = nowhere
    at: int = 0
    kind: str = "kill"


def child(argv: list[str], log: str, fault: Fault) -> None:
    """Run the command line with its output in a file."""
    import torch

    from poise.cli import main

    torch.set_num_threads(1)
    handle = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(handle, 1)
    os.dup2(handle, 2)
    sys.stdout, sys.stderr = os.fdopen(1, "w", closefd=False), os.fdopen(2, "w", closefd=False)
    install(fault)
    sys.argv = ["poise", *argv]
    try:
        main()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()


def install(fault: Fault) -> None:
    """Replace the function at the fault's place."""
    from poise.cli.output.sink import Sink
    from poise.evaluate.storage.ledger import Ledger
    from poise.inference import predictor
    from poise.loading import sources

    places = {
        "decode": (sources, "_load"),
        "tune": (predictor, "_predict"),
        "write": (os, "fsync"),
        "rename": (os, "replace"),
        "line": (Ledger, "append"),
        "row": (Sink, "add"),
    }
    if not fault.place:
        return
    owner, name = places[fault.place]
    work, calls = getattr(owner, name), 0

    def counted(*arguments: object, **options: object) -> object:
        nonlocal calls
        calls += 1
        if calls == fault.at and fault.kind == "kill":
            if fault.place == "line":  # half of a line is on the disk
                ledger, line = arguments
                with ledger.path.open("ab") as file:
                    file.write(json.dumps(line).encode()[:40])
            os.kill(os.getpid(), signal.SIGKILL)
        if calls >= fault.at and fault.kind != "kill":
            raise OSError(FAULTS[fault.kind], os.strerror(FAULTS[fault.kind]))
        return work(*arguments, **options)

    setattr(owner, name, counted)


def start(argv: list[str], log: Path, fault: Fault = Fault()) -> multiprocessing.process.BaseProcess:  # noqa: B008
    """Begin an attempt; modules are imported once, in a server process that forks each attempt."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([*PRELOAD, "poise.cli.commands.classify", "poise.inference.classifier"])
    process = context.Process(target=child, args=(argv, str(log), fault))
    process.start()
    return process


def ended(argv: list[str], log: Path, fault: Fault = Fault()) -> int:  # noqa: B008
    """Return the exit code of an attempt."""
    process = start(argv, log, fault)
    process.join(300)
    if process.exitcode is None:
        process.kill()
        raise TimeoutError(log.read_text())
    return process.exitcode


class Command:
    """A command that can be resumed, its folder, and what it must leave."""

    def __init__(self, kind: str, root: Path) -> None:
        self.kind, self.root, self.log = kind, root, root / "log"
        root.mkdir(parents=True)
        self.images = root.parent / "images"
        self.restart()

    def restart(self) -> None:
        """Begin with an empty folder."""
        self.out = Path(tempfile.mkdtemp(dir=self.root))
        self.argv = arguments(self.images, self.out)
        if self.kind == "classify":
            labels = ["--labels", "class0,class1,class2", "--model", "tiny", "--views", "4", "--device", "cpu"]
            self.argv = [
                "classify",
                str(self.images),
                *labels,
                "--batch-size",
                "1",
                "--format",
                "jsonl",
                "--quiet",
                "--out",
                str(self.out / "rows.jsonl"),
                "--resume",
            ]

    def left(self) -> dict[str, bytes]:
        """Return the files that the command has written."""
        if self.kind == "bench":
            return contents(self.out)
        return {file.name: file.read_bytes() for file in self.out.glob("*.jsonl")}

    def tear(self, numbers: random.Random) -> None:
        """Cut a few bytes off the end of one of the files."""
        files = sorted(self.out.rglob("part-*.parquet")) + sorted(self.out.rglob("*.jsonl"))
        if files:
            file = numbers.choice(files)
            content = file.read_bytes()
            file.write_bytes(content[: -numbers.randint(1, 30)] if self.kind == "bench" else content[:-7])


@dataclass
class Count:
    """What happened in one row."""

    kills: int = 0
    finished: int = 0  # times that a command was repeated until its end
    wrong: int = 0

    def finish(self, command: Command, whole: dict[str, bytes]) -> None:
        """Let the command end, and compare."""
        code = ended(command.argv, command.log)
        self.finished += 1
        if code != 0 or command.left() != whole:
            self.wrong += 1
            print(f"{command.kind} in {command.out}: exit code {code}, other bytes: {command.left() != whole}")
        command.restart()


def killed_at(place: str, kind: str = "kill") -> Callable[[Command, dict[str, bytes], int, random.Random, Count], None]:
    """Return the row that ends attempts at the first to ninth call of a function."""

    def row(command: Command, whole: dict[str, bytes], kills: int, numbers: random.Random, count: Count) -> None:
        while count.kills < kills:
            code = ended(command.argv, command.log, Fault(place, numbers.randint(1, 9), kind))
            expected = KILLED if kind == "kill" else 5
            if code == expected:
                count.kills += 1
            if code == 0 or numbers.random() < 0.2:
                count.finish(command, whole)
            elif code != expected:
                count.wrong += 1
                print(f"{place}: exit code {code}\n{command.log.read_text()[-2000:]}")
                command.restart()
        count.finish(command, whole)

    return row


def random_times(command: Command, whole: dict[str, bytes], kills: int, numbers: random.Random, count: Count) -> None:
    """Kill attempts after random times; now and then a file is torn as well."""
    while count.kills < kills:
        process = start(command.argv, command.log)
        process.join(numbers.uniform(0, 1.5))
        if process.exitcode is None:
            process.kill()
            process.join()
            count.kills += 1
        if numbers.random() < 0.3:
            command.tear(numbers)
        if process.exitcode == 0 or numbers.random() < 0.1:
            count.finish(command, whole)
    count.finish(command, whole)


def two_writers(command: Command, whole: dict[str, bytes], kills: int, numbers: random.Random, count: Count) -> None:
    """Start two processes at once and kill one of them; the other must refuse, or end as if it were alone."""
    while count.kills < kills:
        pair = [start(command.argv, command.log), start(command.argv, command.root / "second")]
        time.sleep(numbers.uniform(0.2, 1))
        pair[0].kill()
        count.kills += 1
        for process in pair:
            process.join(300)
        if pair[1].exitcode not in (0, 2):
            count.wrong += 1
        count.finish(command, whole)


ROWS = {
    "decode": ("bench", killed_at("decode")),
    "tune": ("bench", killed_at("tune")),
    "write": ("bench", killed_at("write")),
    "rename": ("bench", killed_at("rename")),
    "torn line": ("bench", killed_at("line")),
    "random, torn files": ("bench", random_times),
    "disk full": ("bench", killed_at("write", "full")),
    "read-only": ("bench", killed_at("rename", "read-only")),
    "two writers": ("bench", two_writers),
    "classify: decode": ("classify", killed_at("decode")),
    "classify: tune": ("classify", killed_at("tune")),
    "classify: row": ("classify", killed_at("row")),
    "classify: random, torn file": ("classify", random_times),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=200, help="in all rows together")
    parser.add_argument("--rows", nargs="*", default=list(ROWS), help="; ".join([*ROWS, "ray", "nodes"]))
    parser.add_argument("--seconds", type=float, default=3600, help="of the row nodes, after which no job is begun")
    parser.add_argument("--seed", type=int, default=0)
    asked = parser.parse_args()
    commit = subprocess.run(["git", "-C", str(ROOT), "rev-parse", "--short", "HEAD"], capture_output=True, text=True)
    root = Path(tempfile.mkdtemp(prefix="poise-chaos-"))
    wrong = 0
    try:
        make_images(root / "images")
        for name in asked.rows:
            began, count = time.monotonic(), Count()
            if name == "ray":
                from tools.chaos_ray import run_with_kills

                run_with_kills(root, count)
            elif name == "nodes":
                from tools.chaos_nodes import run_with_kills as kill_nodes

                kill_nodes(root, count, asked.kills, asked.seconds)
            else:
                kind, row = ROWS[name]
                command = Command(kind, root / name.replace(":", ""))
                assert ended(command.argv, command.log) == 0, command.log.read_text()
                whole = command.left()
                command.restart()
                row(command, whole, -(-asked.kills // len(asked.rows)), random.Random(asked.seed), count)
            wrong += count.wrong
            line = {
                "date": datetime.now(UTC).strftime("%Y-%m-%d"),
                "commit": commit.stdout.strip(),
                "row": name,
                "kills": count.kills,
                "finished": count.finished,
                "wrong": count.wrong,
                "seconds": round(time.monotonic() - began),
            }
            print(json.dumps(line), flush=True)
            with RESULTS.open("a") as file:
                file.write(json.dumps(line) + "\n")
    finally:
        if not wrong:
            shutil.rmtree(root, ignore_errors=True)
    sys.exit(wrong > 0)


if __name__ == "__main__":
    main()
