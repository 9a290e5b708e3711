"""An append-only list of a run's finished files."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from poise.storage import storage_errors


class Ledger:
    """One JSON object per line: ``{"unit": ..., "sha256": ...}`` for a finished file, or ``{"event": ...}``.

    Lines are only ever appended. The last line may be torn by a kill; it is then no line at all.
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
