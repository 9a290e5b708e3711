"""What a run's folder says about itself, without opening data or a model."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from poise.evaluate.storage.ledger import Ledger
from poise.evaluate.storage.run_folder import read_header, read_state
from poise.evaluate.units import Plan


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
    """Count a run's finished units and compare the checksums of their files."""
    root = Path(folder)
    head = read_header(root)
    ledger = Ledger(root / "ledger.jsonl")
    plan = Plan.of(head)
    units = [
        unit for name, entry in head["datasets"].items()
        for unit in plan.units(name, str(entry["folder"]), range(int(entry["images"])))
    ]  # fmt: skip
    state = read_state(root, ledger, units)
    lines = [line for unit, line in ledger.finished().items() if unit in state.finished]
    commands = [line["command"] for line in ledger.lines() if line.get("event") == "start" and line.get("command")]
    return Status(
        run=str(head["run"]),
        units=len(units),
        finished=len(lines),
        images=sum(int(line["images"]) for line in lines),
        errors=sum(int(line["errors"]) for line in lines),
        damaged=state.damaged,
        command=tuple(commands[-1]) if commands else (),
    )
