"""A run's folder: its lock, its header, and the files of its finished units."""

from __future__ import annotations

import json
import os
import shutil
import socket
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

from filelock import FileLock, Timeout

from poise.errors import InvalidDatasetError, RunConflictError, StorageError
from poise.evaluate.config import differences
from poise.evaluate.storage.ledger import Ledger
from poise.evaluate.units import Unit
from poise.storage import TEMPORARY, checksum, storage_errors, write_atomic

COMPARED = ("config", "methods", "datasets", "versions", "commit", "device")
CODE = ("versions", "commit", "device")  # what ``allow_changes`` accepts


@dataclass(frozen=True)
class State:
    """Which units are finished, and which files had to be given up."""

    finished: frozenset[str]
    damaged: tuple[str, ...]  # ids of units whose file is gone or not the one that was written


class RunFolder:
    """``<runs>/<run id>``, held by one process at a time: use it as a context manager."""

    def __init__(self, runs: str | Path, run_id: str) -> None:
        self.path = Path(runs) / run_id
        self.run_id = run_id
        self.ledger = Ledger(self.path / "ledger.jsonl")
        self._lock = FileLock(self.path / ".lock")

    def __enter__(self) -> RunFolder:
        with storage_errors(self.path):
            self.path.mkdir(parents=True, exist_ok=True)
            try:
                self._lock.acquire(timeout=0)
            except Timeout:
                raise RunConflictError(
                    f"Another process is writing the run '{self.run_id}' in '{self.path.parent}': {self._owner()}.",
                    hint="Wait for it, stop it, or give this run another name.",
                ) from None
            self._clear_leftovers()
            owner = {"pid": os.getpid(), "host": socket.gethostname(), "command": sys.argv}
            (self.path / ".owner.json").write_text(json.dumps(owner))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._lock.release()

    def header(self) -> dict[str, Any] | None:
        """The stored header; None where the run has not begun."""
        return read_header(self.path) if (self.path / "run.json").exists() else None

    def begin(self, header: Mapping[str, Any], *, allow_changes: bool = False) -> None:
        """Write the header of a new run, or refuse to go on with a run that was begun under another one."""
        stored = self.header()
        if stored is None:
            text = json.dumps(header, indent=2, sort_keys=True, ensure_ascii=False)
            write_atomic(self.path / "run.json", f"{text}\n".encode())
            return
        ours, theirs = _comparable(header, allow_changes), _comparable(stored, allow_changes)
        changed = differences(ours, theirs)
        if changed:
            only_code = all(line.split(".")[0].split(":")[0] in CODE for line in changed)
            way_out = "Add --allow-changes to accept it, or give" if only_code else "Repeat the first command, or give"
            raise RunConflictError(
                f"The run '{self.run_id}' was begun with other values (stored -> now): {'; '.join(changed)}.",
                hint=f"{way_out} this run another name (--name).",
            )

    def state(self, units: Iterable[Unit]) -> State:
        """Which of ``units`` are finished; see `read_state`."""
        return read_state(self.path, self.ledger, units)

    def commit(self, unit: Unit, content: bytes, **facts: Any) -> None:
        """Make a unit's file final: the file first, then its line in the ledger."""
        write_atomic(self.path / unit.path, content)
        self.ledger.append({"unit": unit.id, "sha256": checksum(content), "bytes": len(content), **facts})

    def check_space(self, needed: int) -> None:
        """Refuse to begin what the disk can't hold."""
        free = shutil.disk_usage(self.path).free
        if needed > free:
            raise StorageError(
                f"The records still to be written need about {needed / 2**20:.0f} MiB, '{self.path}' has "
                f"{free / 2**20:.0f} MiB free.",
                hint="Make room, or give another folder with --out.",
            )

    def _owner(self) -> str:
        try:
            owner = json.loads((self.path / ".owner.json").read_text())
            return f"process {owner['pid']} on {owner['host']}"
        except (OSError, ValueError, KeyError):
            return "owner not known"

    def _clear_leftovers(self) -> None:
        for file in self.path.rglob(f"{TEMPORARY}*"):
            file.unlink(missing_ok=True)


def read_state(folder: Path, ledger: Ledger, units: Iterable[Unit]) -> State:
    """Look at the file of every unit that the ledger lists and compare its checksum."""
    lines = ledger.finished()
    finished, damaged = set(), []
    for unit in units:
        if unit.id in lines:
            file = folder / unit.path
            if file.is_file() and checksum(file.read_bytes()) == lines[unit.id]["sha256"]:
                finished.add(unit.id)
            else:
                damaged.append(unit.id)
    return State(frozenset(finished), tuple(damaged))


def read_header(folder: Path) -> dict[str, Any]:
    """What ``run.json`` in a run's folder says."""
    file = folder / "run.json"
    try:
        content = json.loads(file.read_text("utf-8"))
    except (OSError, ValueError, RecursionError) as problem:
        raise InvalidDatasetError(
            f"'{file}' can't be read: {problem}.", hint="Without it a run can't be used: repeat it under another name."
        ) from None
    if not isinstance(content, dict) or not isinstance(content.get("config", {}), dict):
        raise InvalidDatasetError(f"'{file}' is not a run's header.", hint="`poise bench run` writes one.")
    return content


def run_folders(runs: str | Path) -> Sequence[Path]:
    """The run folders at or below a path, by name."""
    root = Path(runs)
    if (root / "run.json").is_file():
        return [root]
    return sorted(header.parent for header in root.glob("*/run.json"))


def _comparable(header: Mapping[str, Any], allow_changes: bool) -> dict[str, Any]:
    compared = json.loads(json.dumps({key: header.get(key) for key in COMPARED}))
    return {key: value for key, value in compared.items() if not (allow_changes and key in CODE)}
