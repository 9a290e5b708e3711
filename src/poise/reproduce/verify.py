"""Verifies a record: the images that it draws itself are computed again, here, and compared with what it says.

With the folder of the runs, everything else in the record is computed from their rows again, and compared as well.
"""

from __future__ import annotations

import io
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from poise.errors import InvalidDatasetError, InvalidOptionError
from poise.evaluate.config import RunConfig, build
from poise.evaluate.prepare import PreparedRun, prepare
from poise.evaluate.resolve import check_init
from poise.evaluate.storage.header import MODEL, commit, describe, device_name, versions
from poise.evaluate.storage.parts import read_parts
from poise.evaluate.units import Unit
from poise.evaluate.worker import Worker, WorkerSettings
from poise.files import read_bounded
from poise.reproduce import record as records
from poise.reproduce.answers import Answers, answers_in
from poise.text import counted, file_name

FORMAT = "poise-verification/1"
AGREE = 0.99  # of the answers must be the same
NEAR = 0.02  # two confidences that are the same, whatever the device and its rounding
_CLOSE = 2e-5  # two metrics of the same rows
_SAME = ("classes_hash", "images", "images_hash", "template", "augmix")


@dataclass
class Verification:
    """What was compared, and what differs."""

    record: str  # its hash
    answers: int = 0  # images times methods
    same: int = 0
    images: int = 0
    largest: float = 0.0  # difference of two confidences
    problems: list[str] = field(default_factory=list)
    rows_compared: bool = False  # whether all numbers were computed from the rows of the runs
    device: str = ""

    @property
    def verified(self) -> bool:
        """Whether nothing contradicts the record."""
        return not self.problems and self.answers > 0 and self.same >= AGREE * self.answers

    def attestation(self) -> dict[str, Any]:
        """Return a file that says so, for the board."""
        body = {
            "format": FORMAT,
            "record": self.record,
            "verified": self.verified,
            "images": self.images,
            "answers": self.answers,
            "same": self.same,
            "largest_difference": round(self.largest, 6),
            "rows_compared": self.rows_compared,
            "problems": self.problems,
            "versions": versions(),
            "commit": commit(),
            "device": self.device,
        }
        return records.sealed(body)


@dataclass(frozen=True)
class Here:
    """Where a record is verified: what may differ from the machine that made it."""

    data: str = "data"
    model: str = ""  # "" = the record's name of it
    device: str = "auto"
    init: Mapping[str, str] = field(default_factory=dict)  # files of fitted prompts by kind
    workers: int = 0


def read_file(path: str | Path) -> dict[str, Any]:
    """Read a record or an attestation, and check that it is whole.

    Raises:
        InvalidRecordError: It is neither, or was changed.
    """
    try:
        content = json.loads(read_bounded(path, 2 * records.MAX_BYTES))
    except (OSError, ValueError, RecursionError):
        return records.read(path)  # says what is wrong
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        return records.read(path)
    if content.get("sha256") != records.sealed(content)["sha256"]:
        raise records.InvalidRecordError(f"The attestation '{path}' was changed.", hint="Verify the record again.")
    return content


def verify(
    record: Mapping[str, Any], here: Here, *, sample: int = records.SAMPLE, runs: Path | None = None
) -> Verification:
    """Compute a sample of the record's answers again.

    Args:
        record: what `poise.reproduce.record.read` returned.
        here: where the data are, and on what to compute.
        sample: the number of images. Without ``runs`` it is at most the number in the record.
        runs: the folder of the runs, if it is at hand: more images can be drawn, and all numbers are compared.
    """
    found = Verification(str(record["sha256"]))
    trees = _trees(record, runs) if runs else {}
    if runs:
        found.problems += _different_rows(record, runs)
        found.rows_compared = True
        chosen = records.sample_positions(record["sample"]["drawn_by"], record["runs"], trees, sample)
        claimed = {key: [trees[key][at] for at in positions] for key, positions in chosen.items()}
    else:
        claimed = {
            (entry["run"], entry["dataset"]): [Answers.of(each) for each in entry["answers"]]
            for entry in record["sample"]["entries"]
        }
        claimed = _first(claimed, sample, record)
    for run, facts in record["runs"].items():
        wanted = {dataset: answers for (name, dataset), answers in claimed.items() if name == run}
        if wanted:
            _verify_run(run, facts, wanted, here, found)
    return found


def _first(
    claimed: Mapping[tuple[str, str], Sequence[Answers]], sample: int, record: Mapping[str, Any]
) -> dict[tuple[str, str], list[Answers]]:
    """Return ``sample`` of the answers in a record, in proportion; of a stream its beginning."""
    total = sum(map(len, claimed.values()))
    if sample < 1:
        raise InvalidOptionError(f"A sample of {sample} images was requested.", hint="Give at least 1.")
    kept = {}
    for key, answers in claimed.items():
        order = list(answers)
        if record["runs"][key[0]]["ordered"]:
            order = [order[at] for at in records.in_stream(record["runs"][key[0]], order, order[0].seed)]
        kept[key] = order[: max(1, round(len(order) * min(1.0, sample / total)))]
    return kept


def _trees(record: Mapping[str, Any], runs: Path) -> dict[tuple[str, str], list[Answers]]:
    trees = {}
    for run in record["runs"]:
        for dataset, answers in answers_in(read_parts(_folder(runs, run))).items():
            trees[run, dataset] = answers
    return trees


def _folder(runs: Path, run: str) -> Path:
    folder = next((path for path in (runs / run, runs) if (path / "run.json").is_file() and path.name == run), None)
    if folder is None:
        raise InvalidDatasetError(
            f"There is no run '{run}' in '{runs}'.", hint="Give the folder that contains the runs."
        )
    return folder


def _different_rows(record: Mapping[str, Any], runs: Path) -> list[str]:
    """Return the fields that the rows of the runs do not give again."""
    folders = [_folder(runs, run) for run in record["runs"]]
    again = records.build(str(record["name"]), folders)
    return [f"the rows of the runs give another {place}" for place in _unequal(record["runs"], again["runs"])]


def _unequal(ours: Any, theirs: Any, place: str = "runs") -> list[str]:
    if isinstance(ours, dict) and isinstance(theirs, dict):
        keys = sorted({*ours, *theirs} - {"results_sha256"})  # of numbers that may differ in the last digit
        return [text for key in keys for text in _unequal(ours.get(key), theirs.get(key), f"{place}.{key}")]
    if isinstance(ours, list) and isinstance(theirs, list) and len(ours) == len(theirs):
        return [
            text for at, pair in enumerate(zip(ours, theirs, strict=True)) for text in _unequal(*pair, f"{place}[{at}]")
        ]
    if isinstance(ours, float) and isinstance(theirs, float):
        return [] if abs(ours - theirs) <= _CLOSE else [f"{place} ({ours} here, {theirs} there)"]
    return [] if ours == theirs else [f"{place}"]


def _verify_run(
    run: str, facts: Mapping[str, Any], wanted: Mapping[str, Sequence[Answers]], here: Here, found: Verification
) -> None:
    prepared = prepared_again(facts, here, list(wanted))
    found.device = device_name(prepared.config.device)
    units = []
    for name, images in prepared.sets.items():
        entry = facts["datasets"][images.name]
        now = describe(prepared.config, images, prepared.chosen[name])
        changed = [key for key in _SAME if now[key] != entry[key]]
        if changed:
            found.problems.append(f"'{images.name}' has another {', '.join(changed)} here")
            continue
        units += _units(name, images.name, [item.id for item in images.items], wanted[images.name])
    if not units:
        return
    stored = facts.get(MODEL)
    worker = Worker(WorkerSettings(prepared.config, here.data, here.workers, 0, stored), prepared.sets)
    tables = (pq.read_table(io.BytesIO(done.content)) for done in worker.run(units))
    again = {(dataset, each.seed, each.id): each for dataset, answers in answers_in(tables).items() for each in answers}
    for dataset, answers in wanted.items():
        for each in answers:
            if (dataset, each.seed, each.id) in again:
                _compare(dataset, each, again[dataset, each.seed, each.id], found)


def _units(name: str, dataset: str, ids: Sequence[str], wanted: Sequence[Answers]) -> list[Unit]:
    at = {identity: position for position, identity in enumerate(ids)}
    missing = [each.id for each in wanted if each.id not in at]
    if missing:
        raise InvalidDatasetError(f"'{dataset}' has no image '{missing[0]}' here.", hint="It is another dataset.")
    by_seed: dict[int, list[int]] = {}
    for each in wanted:
        by_seed.setdefault(each.seed, []).append(at[each.id])
    return [Unit(name, file_name(dataset), seed, 0, tuple(items)) for seed, items in sorted(by_seed.items())]


def prepared_again(facts: Mapping[str, Any], here: Here, datasets: Sequence[str]) -> PreparedRun:
    """Return the run of a record on this machine, with all its images.

    Raises:
        InvalidDatasetError: A dataset is not there.
    """
    config = _config(facts, here, datasets)
    prepared = prepare(config, here.data, check_init(config))
    for problem in prepared.missing.values():
        raise problem
    return prepared


def _config(facts: Mapping[str, Any], here: Here, datasets: Sequence[str]) -> RunConfig:
    values = {**facts["config"], "datasets": list(datasets), "device": here.device, "batch_size": 0, "chunk": 0}
    values |= {"model": here.model} if here.model else {}
    kind = str(values.get("init", "template")).partition(":")[0]
    values |= {"init": f"{kind}:{here.init[kind]}"} if kind in here.init else {}
    return build(values)[0]


def _compare(dataset: str, said: Answers, now: Answers, found: Verification) -> None:
    found.images += 1
    if now.pixels != said.pixels:
        found.problems.append(f"the image '{said.id}' of '{dataset}' has other pixels here")
    if now.label != said.label:
        found.problems.append(f"the image '{said.id}' of '{dataset}' has another label here")
    theirs = {method: (label, confidence) for method, label, confidence in said.by_method}
    ours = {method: (label, confidence) for method, label, confidence in now.by_method}
    if theirs.keys() != ours.keys():
        found.problems.append(f"the image '{said.id}' of '{dataset}' has answers of other methods")
    for method in theirs.keys() & ours.keys():
        difference = abs(theirs[method][1] - ours[method][1])
        found.largest = max(found.largest, difference)
        found.answers += 1
        found.same += theirs[method][0] == ours[method][0] and difference <= NEAR


def summary(found: Verification) -> str:
    """Return one sentence for people."""
    share = f"{found.same} of {counted(found.answers, 'answer')}"
    return (
        f"{'verified' if found.verified else 'NOT verified'}: {share} on {counted(found.images, 'image')} are the same "
        f"(the largest difference of a confidence is {found.largest:.3f})"
    )
