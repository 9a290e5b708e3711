"""An append-only list of a run's finished files."""

from __future__ import annotations

import json
import os
from contextlib import suppress
from pathlib import Path
from typing import Any

from poise.errors import InvalidDatasetError, reason_of
from poise.evaluate.storage.checks import MAX_PART, usable_line
from poise.files import read_bounded, storage_errors


class Ledger:
    """One JSON object per line about a finished unit, another file (text features) or an event.

    They are ``{"unit": ..., "sha256": ...}``, ``{"file": ..., "sha256": ...}`` and ``{"event": ...}``.

    Lines are only ever appended. A kill may tear the last line, which is then ignored.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    def append(self, line: dict[str, Any]) -> None:
        """Add a line and wait until it is on the disk."""
        text = json.dumps(line, sort_keys=True, ensure_ascii=False)
        with storage_errors(self.path), self.path.open("ab+") as file:
            file.seek(0, os.SEEK_END)
            if file.tell() > 0:
                file.seek(-1, os.SEEK_END)
                if file.read(1) != b"\n":  # a torn line: leave it alone, start a new one
                    text = f"\n{text}"
            file.write(f"{text}\n".encode("utf-8", "surrogatepass"))  # a command may name a file that is not UTF-8
            file.flush()
            os.fsync(file.fileno())

    def lines(self) -> list[dict[str, Any]]:
        """Return all lines that can be read, oldest first."""
        lines = []
        try:
            content = read_bounded(self.path, MAX_PART) if self.path.exists() else b""
        except OSError as error:
            raise InvalidDatasetError(f"'{self.path}' can't be read: {reason_of(error)}.") from None
        for raw in content.split(b"\n"):
            with suppress(ValueError, RecursionError):  # torn by a kill, or damaged: its unit counts as unfinished
                lines.append(json.loads(raw))
        return [line for line in lines if usable_line(line)]

    def finished(self) -> dict[str, dict[str, Any]]:
        """Return the last line about each unit, by its id."""
        return {line["unit"]: line for line in self.lines() if "unit" in line and "sha256" in line}

    def files(self) -> dict[str, str]:
        """Return the checksums of the files that are not units, by their path in the run's folder."""
        return {line["file"]: line["sha256"] for line in self.lines() if "file" in line and "sha256" in line}
