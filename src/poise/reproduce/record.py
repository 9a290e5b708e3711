"""A record of runs: a JSON file of less than 100 kB with all that is needed to repeat, compare and check their numbers.

It has no images and no answers but a sample, and binds all of them: each dataset's images and answers are the leaves of
Merkle trees whose roots are in the record. The sample is drawn by a hash of everything else, so that whoever makes a
record can't choose it, and proofs show that the sampled answers are leaves of these trees.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from poise import metrics as rows
from poise.data import catalog
from poise.errors import PoiseError, reason_of
from poise.evaluate.storage.checks import read_header
from poise.evaluate.storage.header import MODEL
from poise.evaluate.storage.parts import read_parts
from poise.evaluate.streams import BY_CLASS, stream
from poise.files import checksum, read_bounded, write_atomic
from poise.report.records.runs import Records, load
from poise.report.records.scores import scoreboard
from poise.reproduce.answers import Answers, answers_in, canonical, pixel_leaves
from poise.reproduce.comparison import Compared, listed
from poise.reproduce.gate import Check
from poise.reproduce.merkle import prove, proven, root

FORMAT = "poise-record/1"
MAX_BYTES = 100_000
SAMPLE = 200  # images; fewer, if the record would be too large
METRICS = ("accuracy", "ece", "ece_floor", "brier", "auroc")  # of more, a table of 15 methods would not fit
_DATASET = ("classes_hash", "images", "available", "images_hash", "template", "augmix", "shift")
_DIGITS = 5


class InvalidRecordError(PoiseError, ValueError):
    """A record that is damaged, was changed, or is not one."""

    code = "bad_record"


def build(
    name: str,
    folders: Sequence[Path],
    *,
    weights: str | None = None,
    gate: Sequence[Check] = (),
    compared: Sequence[Compared] = (),
) -> dict[str, Any]:
    """Return the record of finished runs.

    Args:
        name: the table.
        folders: the folders of its runs.
        weights: hash of the model's weights.
        gate: the zero-shot numbers.
        compared: the numbers beside the published ones.
    """
    answers = {folder: answers_in(read_parts(folder)) for folder in folders}
    content: dict[str, Any] = {
        "format": FORMAT,
        "name": name,
        "weights_sha256": weights,
        "runs": {folder.name: _run(folder, answers[folder]) for folder in folders},
        "gate": [_plain(asdict(check) | {"passed": check.passed, "allowed": check.allowed}) for check in gate],
        "comparison": listed(compared),
    }
    trees = {(folder.name, dataset): found for folder in folders for dataset, found in answers[folder].items()}
    return fitted(content, trees)


def fitted(content: Mapping[str, Any], trees: Mapping[tuple[str, str], Sequence[Answers]]) -> dict[str, Any]:
    """Return a record with the largest sample that leaves it small enough.

    Args:
        content: all but the sample.
        trees: all answers, by run and dataset.
    """
    size = SAMPLE
    while size:
        record = sealed({**content, "sample": sampled(content, trees, size)})
        if len(canonical(record)) < MAX_BYTES:
            return record
        size = size * 3 // 4
    raise InvalidRecordError(
        f"The record of '{content.get('name')}' would have more than {MAX_BYTES} bytes.",
        hint="Record fewer methods or datasets at once.",
    )


def _run(folder: Path, answers: Mapping[str, Sequence[Answers]]) -> dict[str, Any]:
    header, records = read_header(folder), load(folder)
    config = header.get("config", {})
    results = _results(records)
    datasets = {}
    for dataset, found in answers.items():
        entry = header.get("datasets", {}).get(dataset, {})
        datasets[dataset] = {
            **{key: entry.get(key) for key in _DATASET},
            "classes": len(entry.get("classes", ())),
            "pixels_root": root(pixel_leaves(found)),
            "answers": len(found),
            "outputs_root": root([each.leaf() for each in found]),
        }
    outputs = {dataset: facts["outputs_root"] for dataset, facts in datasets.items()}
    return _plain(
        {
            "config": config,
            "config_hash": header.get("config_hash"),
            MODEL: header.get(MODEL),
            "methods": header.get("methods", {}),
            "ordered": bool(header.get("ordered", False)),
            "init_kind": header.get("init_kind"),
            "init_sha256": _init_hash(str(config.get("init", ""))),
            "versions": header.get("versions", {}),
            "commit": header.get("commit"),
            "device": header.get("device"),
            "datasets": datasets,
            "results": results,
            "results_sha256": checksum(canonical(results)),
            "outputs_sha256": checksum(canonical(outputs)),
        }
    )


def _init_hash(init: str) -> str | None:
    file = Path(init.partition(":")[2] or init)
    return checksum(read_bounded(file)) if file.is_file() else None


def _results(records: Records) -> dict[str, dict[str, dict[str, list[float | None]]]]:
    """Return value, interval and standard deviation over seeds of each metric, by dataset and method."""
    names = [name for name in METRICS if name in rows.names()]
    found: dict[str, Any] = {}
    for (_, dataset, method), entry in scoreboard(records, metrics=names).entries.items():
        found.setdefault(dataset, {})[method] = {
            name: [_rounded(number) for number in (*score.interval, score.std)] for name, score in entry.scores.items()
        }
    return found


def _rounded(number: float | None) -> float | None:
    return None if number is None else round(float(number), _DIGITS)


def _plain(value: Any) -> Any:
    return json.loads(json.dumps(value))


def commitment(content: Mapping[str, Any]) -> str:
    """Return the hash of all but the sample, which draws the sample."""
    return checksum(canonical({key: value for key, value in content.items() if key not in ("sample", "sha256")}))


def sealed(content: Mapping[str, Any]) -> dict[str, Any]:
    """Return a record with the hash of its content."""
    body = {key: value for key, value in content.items() if key != "sha256"}
    return {**body, "sha256": checksum(canonical(body))}


def draw(drawn_by: str, runs: Mapping[str, Any], size: int) -> dict[tuple[str, str], list[int]]:
    """Return positions among each run's and dataset's answers, drawn by a hash.

    Where answers depend on earlier images, they can only be computed from the first image on: the sample of such a run
    is the beginning of one of its streams, see `first_of_a_stream`.
    """
    places = [
        (run, dataset, position)
        for run, facts in sorted(runs.items())
        if not facts["ordered"]
        for dataset, entry in sorted(facts["datasets"].items())
        for position in range(int(entry["answers"]))
    ]
    order = _numbers(drawn_by, "images", len(places), min(size, len(places)))
    found: dict[tuple[str, str], list[int]] = {}
    for at in order:
        run, dataset, position = places[at]
        found.setdefault((run, dataset), []).append(position)
    return {key: sorted(positions) for key, positions in sorted(found.items())}


def first_of_a_stream(drawn_by: str, run: str, facts: Mapping[str, Any]) -> tuple[str, int]:
    """Return the dataset and the seed of the stream of an ordered run whose beginning is the sample."""
    streams = [(dataset, int(seed)) for dataset in sorted(facts["datasets"]) for seed in facts["config"]["seeds"]]
    return streams[_numbers(drawn_by, run, len(streams), 1)[0]]


def _numbers(drawn_by: str, purpose: str, below: int, count: int) -> list[int]:
    """Return ``count`` different numbers below ``below``."""
    found: dict[int, None] = {}
    at = 0
    while len(found) < min(count, below):
        mark = hashlib.sha256(f"{drawn_by} {purpose} {at}".encode()).digest()
        found.setdefault(int.from_bytes(mark[:8], "big") % below)
        at += 1
    return list(found)


def sampled(
    content: Mapping[str, Any], trees: Mapping[tuple[str, str], Sequence[Answers]], size: int
) -> dict[str, Any]:
    """Return the sample that a record's content draws, with proofs that its answers are among all answers."""
    drawn_by = commitment(content)
    chosen = sample_positions(drawn_by, content["runs"], trees, size)
    entries = []
    for (run, dataset), positions in sorted(chosen.items()):
        found = trees[run, dataset]
        entries.append(
            {
                "run": run,
                "dataset": dataset,
                "positions": positions,
                "answers": [found[position].plain() for position in positions],
                "proof": prove([each.leaf() for each in found], positions),
            }
        )
    return {"drawn_by": drawn_by, "entries": entries}


def sample_positions(
    drawn_by: str, runs: Mapping[str, Any], trees: Mapping[tuple[str, str], Sequence[Answers]], size: int
) -> dict[tuple[str, str], list[int]]:
    """Return the positions of `draw`, and of the beginnings of streams."""
    chosen = draw(drawn_by, runs, size)
    for run, facts in sorted(runs.items()):
        if facts["ordered"]:
            dataset, seed = first_of_a_stream(drawn_by, run, facts)
            found = trees[run, dataset]
            chosen[run, dataset] = sorted(in_stream(facts, found, seed)[: max(1, size // len(runs))])
    return chosen


def in_stream(facts: Mapping[str, Any], answers: Sequence[Answers], seed: int) -> list[int]:
    """Return the positions of a seed's answers in the order of the stream that gave them."""
    members = [at for at, each in enumerate(answers) if each.seed == seed]
    classes = [each.label for each in answers] if facts["config"].get("order") == BY_CLASS else None
    return stream([each.id for each in answers], members, seed, classes)


def write(record: Mapping[str, Any], path: Path) -> None:
    """Write a record in its canonical form."""
    write_atomic(path, canonical(record) + b"\n")


def read(path: str | Path) -> dict[str, Any]:
    """Read a record, and check that it is whole.

    Raises:
        InvalidRecordError: It is not a record, or was changed: the hash of its content, a hash in it, or the sample
            does not fit the rest.
    """
    try:
        content = json.loads(read_bounded(path, 2 * MAX_BYTES))
        problem = problem_of(content)
    except (OSError, ValueError, RecursionError) as error:
        problem = reason_of(error)
    if problem:
        raise InvalidRecordError(
            f"The record '{path}' can't be used: {problem}.", hint="Ask for the file that `poise reproduce` wrote."
        )
    return dict(content)


def problem_of(record: Any) -> str:
    """Return what is wrong with a record; "" if it is whole."""
    if not isinstance(record, dict) or record.get("format") != FORMAT:
        return f"it is not of the format {FORMAT}"
    if record.get("sha256") != sealed(record)["sha256"]:
        return "it was changed: the hash of its content is another one"
    try:
        return _inner_problem(record)
    except (KeyError, TypeError, ValueError, AttributeError, IndexError) as error:
        return f"a part is missing or is of another kind ({reason_of(error)})"


def _inner_problem(record: Mapping[str, Any]) -> str:
    for run, facts in record["runs"].items():
        outputs = {dataset: entry["outputs_root"] for dataset, entry in facts["datasets"].items()}
        for key, expected in (("results_sha256", facts["results"]), ("outputs_sha256", outputs)):
            if facts[key] != checksum(canonical(expected)):
                return f"'{key}' of '{run}' is not the hash of what is there"
    sample = record["sample"]
    if sample["drawn_by"] != commitment(record):
        return "the sample was drawn for another content"
    listed = {(entry["run"], entry["dataset"]): entry for entry in sample["entries"]}
    alone = [entry for (run, _), entry in listed.items() if not record["runs"][run]["ordered"]]
    drawn = draw(sample["drawn_by"], record["runs"], sum(len(entry["positions"]) for entry in alone))
    for run, facts in record["runs"].items():
        if facts["ordered"]:
            dataset, _ = first_of_a_stream(sample["drawn_by"], run, facts)
            drawn[run, dataset] = listed[run, dataset]["positions"]  # the ids of all images would be needed
    if {key: entry["positions"] for key, entry in listed.items()} != drawn:
        return "the sample is not the one that is drawn"
    for (run, dataset), entry in listed.items():
        facts = record["runs"][run]["datasets"][dataset]
        leaves = [Answers.of(each).leaf() for each in entry["answers"]]
        known = dict(zip(entry["positions"], leaves, strict=True))
        if not proven(facts["outputs_root"], int(facts["answers"]), known, entry["proof"]):
            return f"the sampled answers on '{dataset}' are not among those of the run"
    return ""


def declared(record: Mapping[str, Any]) -> dict[str, list[str]]:
    """Return what the rules of the board ask to be declared: templates, settings by dataset, and use of labels."""
    runs = record["runs"].values()
    templates = {
        str(run["config"].get("template") or entry["template"]) for run in runs for entry in run["datasets"].values()
    }
    per_dataset = {name for run in runs for name, method in run["methods"].items() if method.get("published")}
    labels = {name for run in runs for name in run["methods"] if run["config"].get("calibrate", 0) or _labelled(name)}
    return {
        "Templates": sorted(templates),
        "settings that differ between datasets": sorted(per_dataset),
        "methods that use labelled images": sorted(labels),
    }


def _labelled(method: str) -> bool:
    from poise import methods

    try:
        return "labels" in methods.get(method).needs
    except PoiseError:  # of a package that is not installed here
        return False


def whole(record: Mapping[str, Any]) -> bool:
    """Return whether all images of published test splits were taken."""
    entries = [(name, entry) for run in record["runs"].values() for name, entry in run["datasets"].items()]
    return all(name in catalog.datasets and entry["images"] == catalog.row(name).images for name, entry in entries)
