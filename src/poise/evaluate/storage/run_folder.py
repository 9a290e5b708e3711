"""A run's folder: its lock, its header, the files of its finished units, and its status."""

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
from typing import Any, TypeGuard

from filelock import FileLock, Timeout

from poise.errors import InvalidDatasetError, RunConflictError, StorageError
from poise.evaluate.storage.checks import MAX_PART, read_header
from poise.evaluate.storage.header import MODEL, check_fingerprint
from poise.evaluate.storage.ledger import Ledger
from poise.evaluate.units import Plan, Unit
from poise.files import TEMPORARY, checksum, read_bounded, storage_errors, write_atomic

COMPARED = ("config", "methods", "datasets", "versions", "commit", "device")
CODE = ("versions", "commit", "device")  # may differ with ``allow_changes``


@dataclass(frozen=True)
class State:
    """The ids of the finished units, and of those whose file is missing or is not the one that was written."""

    finished: frozenset[str]
    damaged: tuple[str, ...]


class RunFolder:
    """The folder ``<runs>/<run id>``; as a context manager it is locked for other processes."""

    def __init__(self, runs: str | Path, run_id: str) -> None:
        self.path = Path(runs) / run_id
        self.run_id = run_id
        self.ledger = Ledger(self.path / "ledger.jsonl")
        self._lock = FileLock(self.path / ".lock")
        self._header: dict[str, Any] | None = None

    def __enter__(self) -> RunFolder:
        with storage_errors(self.path):
            self._refuse_links()
            self.path.mkdir(parents=True, exist_ok=True)
            try:
                self._lock.acquire(timeout=0)
            except Timeout:
                raise RunConflictError(
                    f"Another process is writing the run '{self.run_id}' in '{self.path.parent}': {self._owner()}.",
                    hint="Wait for it, stop it, or give this run another name.",
                ) from None
            for file in self.path.rglob(f"{TEMPORARY}*"):  # of a killed process
                file.unlink(missing_ok=True)
            owner = {"pid": os.getpid(), "host": socket.gethostname(), "command": sys.argv}
            (self.path / ".owner.json").write_text(json.dumps(owner))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._lock.release()

    def _refuse_links(self) -> None:
        """A folder from somebody else may have links, through which other files would be written."""
        inside = (Path(folder) / name for folder, folders, files in os.walk(self.path) for name in (*folders, *files))
        link = next((path for path in (self.path, *inside) if path.is_symlink()), None)
        if link is not None:
            raise RunConflictError(
                f"'{link}' is a link, and a run is written into its own folder only.",
                hint="Replace it by what it leads to, or give this run another name (--name).",
            )

    def header(self) -> dict[str, Any] | None:
        """Return the stored header; None if the run has not begun."""
        if self._header is None and (self.path / "run.json").exists():
            self._header = read_header(self.path)
        return self._header

    def begin(self, header: Mapping[str, Any], *, allow_changes: bool = False) -> None:
        """Write the header of a new run, or refuse to resume a run with another header."""
        stored = self.header()
        if stored is None:
            self._write_header(header)
            return
        ours, theirs = _comparable(header, allow_changes), _comparable(stored, allow_changes)
        changed = differences(ours, theirs)
        if changed:
            only_code = all(line.split(".")[0].split(":")[0] in CODE for line in changed)
            way_out = "Add --allow-changes to accept it, or give" if only_code else "Repeat the first command, or give"
            added = [name for name in header.get("methods", {}) if name not in stored.get("methods", {})]
            alone = ""
            if added and all(line.startswith(("config.methods:", "methods:")) for line in changed):
                alone = f" Run {', '.join(added)} alone: reports of a folder with both runs show them together."
            raise RunConflictError(
                f"The run '{self.run_id}' was begun with other values (stored -> now): {'; '.join(changed)}.",
                hint=f"{way_out} this run another name (--name).{alone}",
            )

    def identify(self, fingerprint: str | None) -> None:
        """Store the fingerprint of the model in a new run's header, or refuse one that differs from the stored one.

        Headers of earlier versions have no place for it and remain as they are.
        """
        stored = self.header() or {}
        check_fingerprint(self.run_id, stored.get(MODEL), fingerprint)
        if MODEL in stored and stored[MODEL] is None and fingerprint is not None:
            self._write_header({**stored, MODEL: fingerprint})

    def _write_header(self, header: Mapping[str, Any]) -> None:
        self._header = dict(header)
        text = json.dumps(header, indent=2, sort_keys=True, ensure_ascii=False)
        write_atomic(self.path / "run.json", f"{text}\n".encode("utf-8", "surrogatepass"))

    def state(self, units: Iterable[Unit]) -> State:
        """Compare the checksum of every unit's file with the ledger."""
        lines = self.ledger.finished()
        finished, damaged = set(), []
        for unit in units:
            if unit.id in lines:
                if self._is(self.path / unit.path, lines[unit.id]["sha256"]):
                    finished.add(unit.id)
                else:
                    damaged.append(unit.id)
        return State(frozenset(finished), tuple(damaged))

    def commit(self, unit: Unit, content: bytes, **facts: Any) -> None:
        """Write a unit's file, then its line in the ledger."""
        write_atomic(self.path / unit.path, content)
        self.ledger.append({"unit": unit.id, "sha256": checksum(content), "bytes": len(content), **facts})

    def commit_file(self, name: str, content: bytes) -> None:
        """Write another file of the run, then its line in the ledger."""
        write_atomic(self.path / name, content)
        self.ledger.append({"file": name, "sha256": checksum(content)})

    def has_file(self, name: str) -> bool:
        """Return whether a file that `commit_file` wrote is there, unchanged."""
        return self._is(self.path / name, self.ledger.files().get(name))

    @staticmethod
    def _is(file: Path, known: str | None) -> bool:
        """Return whether a file has this checksum."""
        try:
            return file.is_file() and checksum(read_bounded(file, MAX_PART)) == known
        except OSError:  # too large, or a disk that fails
            return False

    def check_space(self, needed: int) -> None:
        """Raise an error if the disk has too little space."""
        free = shutil.disk_usage(self.path).free
        if needed > free:
            raise StorageError(
                f"The records still to be written need about {needed / 2**20:.0f} MiB, '{self.path}' has "
                f"{free / 2**20:.0f} MiB free.",
                hint="Make room, or give another folder with --out.",
            )

    def _owner(self) -> str:
        try:
            owner = json.loads(read_bounded(self.path / ".owner.json"))
            return f"process {owner['pid']} on {owner['host']}"
        except (OSError, ValueError, KeyError):
            return "an unknown process"


def run_folders(runs: str | Path) -> Sequence[Path]:
    """Return the run folders at or below a path, sorted by name."""
    root = Path(runs)
    if (root / "run.json").is_file():
        return [root]
    return sorted(header.parent for header in root.glob("*/run.json"))


@dataclass(frozen=True)
class Status:
    """The progress of a run."""

    run: str
    units: int
    finished: int
    images: int  # times seeds
    errors: int
    damaged: tuple[str, ...]
    command: tuple[str, ...]  # that started or last resumed the run


def status(path: str | Path) -> Status:
    """Count a run's finished units, without data or a model."""
    folder = RunFolder(Path(path).parent, Path(path).name)
    header = read_header(folder.path)
    try:
        plan = Plan.of(header)
        units = [
            unit
            for name, entry in header["datasets"].items()
            for unit in plan.units(name, entry["folder"], range(entry["images"]))
        ]
    except KeyError as missing:
        raise InvalidDatasetError(
            f"'{folder.path / 'run.json'}' has no {missing}, so that its progress is not known.",
            hint="Run the same `poise bench run` under another name (--name).",
        ) from None
    state = folder.state(units)
    lines = [line for unit, line in folder.ledger.finished().items() if unit in state.finished]
    starts = [line for line in folder.ledger.lines() if line.get("event") == "start" and line.get("command")]
    return Status(
        run=str(header.get("run", folder.run_id)),
        units=len(units),
        finished=len(lines),
        images=sum(line.get("images", 0) for line in lines),
        errors=sum(line.get("errors", 0) for line in lines),
        damaged=state.damaged,
        command=tuple(starts[-1]["command"]) if starts else (),
    )


def _comparable(header: Mapping[str, Any], allow_changes: bool) -> dict[str, Any]:
    compared = json.loads(json.dumps({key: header.get(key) for key in COMPARED}))
    if (compared["config"] or {}).get("augmix") in ("on", "off"):
        for dataset in (compared["datasets"] or {}).values():  # earlier versions had the dataset's usual value here
            dataset.pop("augmix", None)
    return {key: value for key, value in compared.items() if not (allow_changes and key in CODE)}


def differences(ours: Mapping[str, Any], theirs: Mapping[str, Any], prefix: str = "") -> list[str]:
    """Return each field that differs, as ``field: theirs -> ours``, nested fields with dots."""
    lines = []
    for key in sorted({*ours, *theirs}):
        our, their = ours.get(key), theirs.get(key)
        if _named(our) and _named(their) and {*our} != {*their}:  # such as methods: their names say enough
            lines.append(f"{prefix}{key}: {', '.join(their)} -> {', '.join(our)}")
        elif isinstance(our, dict) and isinstance(their, dict):
            lines += differences(our, their, f"{prefix}{key}.")
        elif our != their:
            lines.append(f"{prefix}{key}: {_short(their)} -> {_short(our)}")
    return lines


def _named(value: Any) -> TypeGuard[dict[str, dict[str, Any]]]:
    """Return whether a value is a table of tables, by name."""
    return isinstance(value, dict) and bool(value) and all(isinstance(row, dict) for row in value.values())


def _short(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False, default=str)
    return text if len(text) <= 80 else f"{text[:77]}..."
