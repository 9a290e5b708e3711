"""Files that are there whole or not at all, and an append-only list of those that are finished."""

from __future__ import annotations

import errno
import hashlib
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from poise.errors import StorageFailed

TEMPORARY = ".writing-"  # prefix of files that a killed process may leave behind
_STORAGE_ERRORS = {errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.EPERM, errno.EFBIG, errno.EIO}


@contextmanager
def storage(path: Path) -> Iterator[None]:
    """Turn the operating system's refusal to write into an error that says what to do."""
    try:
        yield
    except StorageFailed:
        raise
    except OSError as problem:
        if problem.errno not in _STORAGE_ERRORS:
            raise
        raise StorageFailed(
            f"Can't write '{path}': {problem.strerror}.",
            hint="What is finished is kept. Make room or rights, then give the same command again to go on.",
        ) from problem


def write_whole(path: Path, content: bytes) -> None:
    """Write a file so that a reader, or a power cut, sees all of it or nothing."""
    with storage(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = path.with_name(f"{TEMPORARY}{path.name}")
        try:
            with temporary.open("wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            temporary.replace(path)
        except OSError:
            temporary.unlink(missing_ok=True)
            raise
        _sync_folder(path.parent)


def checksum(content: bytes) -> str:
    """SHA-256 in hexadecimal."""
    return hashlib.sha256(content).hexdigest()


class Ledger:
    """One JSON object per line: ``{"unit": ..., "sha256": ...}`` for a finished file, or ``{"event": ...}``.

    Lines are only ever appended. The last line may be torn by a kill; it is then no line at all.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    def append(self, line: dict[str, Any]) -> None:
        """Add a line and wait until it is on the disk."""
        text = json.dumps(line, sort_keys=True, ensure_ascii=False)
        with storage(self.path), self.path.open("ab+") as file:
            file.seek(0, os.SEEK_END)
            if file.tell() > 0:
                file.seek(-1, os.SEEK_END)
                if file.read(1) != b"\n":  # a torn line: leave it alone, start a new one
                    text = f"\n{text}"
            file.write(f"{text}\n".encode())
            file.flush()
            os.fsync(file.fileno())

    def lines(self) -> list[dict[str, Any]]:
        """All lines that can be read, oldest first."""
        if not self.path.exists():
            return []
        found = []
        for raw in self.path.read_bytes().split(b"\n"):
            try:
                line = json.loads(raw)
            except ValueError:  # torn by a kill, or damaged: its unit counts as open
                continue
            if isinstance(line, dict):
                found.append(line)
        return found

    def finished(self) -> dict[str, dict[str, Any]]:
        """Unit id -> the last line about it."""
        return {str(line["unit"]): line for line in self.lines() if "unit" in line and "sha256" in line}


def _sync_folder(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
