"""`poise reproduce TABLE`: check the data, pass the zero-shot gate, say how long it takes, run, compare, record."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from poise import backbones
from poise.data import CheckResult, check_all
from poise.errors import InvalidDatasetError
from poise.evaluate.config import RunConfig, Settings
from poise.evaluate.prepare import prepare
from poise.evaluate.resolve import check_init
from poise.evaluate.run import RunSummary
from poise.evaluate.storage.checks import read_header
from poise.evaluate.storage.ledger import Ledger
from poise.report.published import paper
from poise.report.records.runs import load
from poise.report.records.scores import scoreboard
from poise.reproduce import gate as gates
from poise.reproduce import record as records
from poise.reproduce.causes import causes
from poise.reproduce.comparison import METRICS, Compared, compare
from poise.reproduce.plans import Plan
from poise.reproduce.timing import Estimate, estimate, spoken
from poise.text import counted, file_name

Run = Callable[[RunConfig, Settings], RunSummary]  # `poise.evaluate.run.run` with what the caller adds


@dataclass(frozen=True)
class Outcome:
    """What was done."""

    record: dict[str, Any]
    file: Path
    compared: list[Compared]
    gate: list[gates.Check]


def reproduce(
    plan: Plan,
    run: Run,
    *,
    gate: bool = True,
    partial: bool = False,
    time: bool = True,
    say: Callable[[str], None] = lambda text: None,
) -> Outcome:
    """Run a table and write its record into the folder of the runs.

    Args:
        plan: what to run.
        run: does one run, or the rest of it.
        gate: stop unless zero-shot is as published; without it, nothing is compared with published numbers.
        partial: accept datasets with fewer images than published.
        time: compute a few images first, to say how long it will take.
        say: called with a sentence before each step.
    """
    say(f"data: checking {counted(len(plan.datasets), 'dataset')}")
    check_data(plan, partial=partial)
    gated = gate and plan.layout is not None
    if time:
        say(_duration(plan, gated))
    found = _pass_gate(plan, run, say) if gated else []
    for config in plan.runs:
        say(f"run: {config.run_id}")
        run(config, plan.settings)
    out = Path(plan.settings.out)
    folders = [out / config.run_id for config in plan.runs]
    compared = _compared(plan, folders, same_model=bool(found)) if plan.layout else []
    record = records.build(plan.name, folders, weights=_weights(plan.runs[0]), gate=found, compared=compared)
    file = out / f"{file_name(plan.name)}.record.json"
    records.write(record, file)
    return Outcome(record, file, compared, found)


def check_data(plan: Plan, *, partial: bool) -> list[CheckResult]:
    """Raise an error that names all datasets that are absent, damaged or incomplete."""
    findings, _ = check_all(plan.settings.data, plan.datasets)
    accepted = ("ok", "partial") if partial or plan.layout is None else ("ok",)
    wrong = [finding for finding in findings if finding.status not in accepted]
    if wrong:
        lines = [f"{each.name}: {each.status}. {' '.join((*each.problems, each.hint))}" for each in wrong]
        only = all(each.status == "partial" for each in wrong)
        raise InvalidDatasetError(
            " ".join([f"{counted(len(wrong), 'dataset')} can't be used.", *lines]),
            hint="A likely cause is another split. "
            + ("Add --partial to take what is there." if only else "Leave datasets out with --dataset."),
        )
    return findings


def _gate_run(plan: Plan, datasets: Sequence[str]) -> RunConfig:
    """Return the run of the gate on some datasets; each dataset has one, so that the first wrong one stops the rest."""
    base = gates.gate_config(replace(plan.runs[0], name=plan.name))
    return replace(base, name="-".join([str(base.name), *datasets]), datasets=tuple(datasets))


def _pass_gate(plan: Plan, run: Run, say: Callable[[str], None]) -> list[gates.Check]:
    """Compute zero-shot on each dataset; stop at the first whose numbers are not the published ones."""
    found: list[gates.Check] = []
    for dataset in plan.datasets:
        config = _gate_run(plan, [dataset])
        say(f"gate: zero-shot on {dataset}")
        folder = run(config, plan.settings).folder
        (group,) = load(folder).groups
        checked = gates.checks(group)
        if failed := [check for check in checked if not check.passed]:
            encoder = backbones.load_model(config.model, device="cpu", dtype="float32")
            facts = read_header(folder)["datasets"][group.dataset]
            gates.refuse(failed, {dataset: causes(encoder, group, facts)})
        found += checked
    return found


def _duration(plan: Plan, gated: bool) -> str:
    """Say how long all that is left takes, before any of it begins."""
    left = {}
    if gated:
        folders = [_gate_run(plan, [dataset]).run_id for dataset in plan.datasets]
        left["the zero-shot gate"] = _left(plan.settings, _gate_run(plan, plan.datasets), folders)
    left |= {config.run_id: _left(plan.settings, config, [config.run_id]) for config in plan.runs}
    images = sum(part.images for part in left.values())
    if not images:
        return "time: all images are finished"
    parts = ", ".join(f"{name} {spoken(part.seconds)}" for name, part in left.items() if part.images)
    return (
        f"time: about {spoken(sum(part.seconds for part in left.values()))} ({parts}) for {counted(images, 'image')} "
        f"over all runs and seeds, by {counted(sum(part.timed for part in left.values()), 'image')} that were timed on "
        "this machine"
    )


def _left(settings: Settings, config: RunConfig, folders: Sequence[str]) -> Estimate:
    """Return the time of a run but for what is finished in ``folders``."""
    prepared = prepare(config, settings.data, check_init(config))
    for problem in prepared.missing.values():
        raise problem
    names = {file_name(images.name): name for name, images in prepared.sets.items()}
    done: dict[str, int] = {}
    for folder in (Path(settings.out) / name for name in folders):
        for unit, line in Ledger(folder / "ledger.jsonl").finished().items() if (folder / "run.json").is_file() else ():
            name = names.get(unit.split("/")[0], "")
            done[name] = done.get(name, 0) + int(line.get("images", 0))
    return estimate(prepared, settings.data, done, workers=settings.workers)


def _compared(plan: Plan, folders: Sequence[Path], *, same_model: bool) -> list[Compared]:
    found = []
    for folder in folders:
        board = scoreboard(load(folder), metrics=METRICS)
        for setting in board.records.settings:
            found += compare(board, setting, _layout(plan), same_model=same_model)
    return found


def _layout(plan: Plan) -> paper.TableLayout:
    if plan.layout is None:
        raise InvalidDatasetError("Nothing is published for these runs.", hint="Name a published table.")
    return plan.layout


def _weights(config: RunConfig) -> str | None:
    encoder = backbones.load_model(config.model, device="cpu", dtype="float32")
    found = getattr(encoder, "weights_sha256", None)
    return found if isinstance(found, str) else None
