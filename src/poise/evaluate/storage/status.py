"""What a run's folder says about itself, without opening data or a model."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from poise.evaluate.storage.ledger import Ledger
from poise.storage import checksum


@dataclass(frozen=True)
class Status:
    """How far a run is."""

    run: str
    units: int
    finished: int
    images: int  # times seeds
    errors: int
    damaged: tuple[str, ...]
    command: tuple[str, ...]  # the one that began or last resumed it


def status(folder: str | Path) -> Status:
    """Count a run's finished files and compare their checksums."""
    root = Path(folder)
    head = json.loads((root / "run.json").read_text("utf-8"))
    ledger = Ledger(root / "ledger.jsonl")
    lines = ledger.finished()
    damaged = tuple(unit for unit, line in lines.items() if not _intact(root / f"{unit}.parquet", str(line["sha256"])))
    whole = [line for unit, line in lines.items() if unit not in damaged]
    config = head["config"]
    per_seed = [-(-int(entry["images"]) // int(config["chunk"])) for entry in head["datasets"].values()]
    commands = [line["command"] for line in ledger.lines() if line.get("event") == "start" and line.get("command")]
    return Status(
        run=str(head["run"]),
        units=sum(per_seed) * len(config["seeds"]),
        finished=len(whole),
        images=sum(int(line["images"]) for line in whole),
        errors=sum(int(line["errors"]) for line in whole),
        damaged=damaged,
        command=tuple(commands[-1]) if commands else (),
    )


def _intact(file: Path, expected: str) -> bool:
    return file.is_file() and checksum(file.read_bytes()) == expected
