"""The board: a folder of records and attestations as tables and as one static page.

A number is *published*; it is *reproduced* once a record has it inside of the band, and *verified* once somebody has
computed a sample of that record again.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from markupsafe import Markup

from poise.data import catalog
from poise.errors import InvalidDatasetError, reason_of
from poise.files import checksum, read_bounded, write_atomic
from poise.report.colours import order
from poise.report.html import rendered, source
from poise.report.published import paper
from poise.report.published.peers import PEER_ROWS
from poise.report.records.scores import printed
from poise.report.tables import formats
from poise.report.tables.table import Cell, Line, Table
from poise.reproduce import record as records
from poise.reproduce import verify
from poise.reproduce.answers import canonical
from poise.reproduce.comparison import AVERAGE
from poise.text import counted

RULES = (
    "A record is a file that `poise reproduce` wrote. A pull request adds it to the folder; continuous integration "
    "checks all of its hashes, and verifies it where it has the images.",
    "No method uses labels of test images: no weight, epoch, threshold or template chosen on them. Methods that need "
    "labelled images of another split say so.",
    "Templates are in the record. Settings that differ between datasets are in the record and are shown.",
    "The order of a stream follows from the seed.",
    "ECE has 20 bins of equal width, and is shown with its floor. Metrics are of all images that were read.",
    "Verified means that somebody else computed the sample again: an attestation of `poise reproduce verify --out` by "
    "another person than the record's.",
    "A record whose sample does not verify is removed, and the pull request that removes it says why.",
)


@dataclass(frozen=True)
class Entry:
    """A record of the board and what others found."""

    name: str  # of its file
    record: Mapping[str, Any]
    seen: tuple[Mapping[str, Any], ...] = ()

    @property
    def status(self) -> str:
        """Whether somebody verified it."""
        return "verified" if any(each.get("verified") for each in self.seen) else "recorded"

    @property
    def model(self) -> str:
        """The model of its first run."""
        return str(next(iter(self.record["runs"].values()))["config"]["model"])


@dataclass(frozen=True)
class Board:
    """All records of a folder."""

    entries: tuple[Entry, ...]
    rows: tuple[paper.PublishedRow, ...] = field(default_factory=lambda: (*paper.ROWS, *PEER_ROWS))

    def tables(self) -> list[Table]:
        """Return the records, then what is published."""
        return [*(self._record(entry) for entry in self.entries), self._published()]

    def _record(self, entry: Entry) -> Table:
        lines = [line for run in entry.record["runs"].values() for line in _results(run)]
        columns = ("Method", "Dataset", "Images", "Accuracy", "ECE", "ECE floor", "Brier", "AUROC")
        return Table(
            f"{entry.name}: {entry.model}, {entry.status}", columns, tuple(lines), tuple(_notes(entry)), texts=2
        )

    def _published(self) -> Table:
        """One line for each published average: whether a record has it."""
        lines = []
        by_row: dict[tuple[str, str, str, str], dict[str, paper.PublishedRow]] = {}
        for row in self.rows:
            if row.average is not None:
                by_row.setdefault((row.table, row.init, row.method, row.label), {})[row.metric] = row
        for (table, init, method, label), metrics in by_row.items():
            values = [metrics[name].average if name in metrics else None for name in ("accuracy", "ece")]
            shown = ["—" if value is None else f"{value:.2f}" for value in values]
            start = method if init == "template" else f"{init}: {method}"
            lines.append(Line.of(table, start, label, *shown, self._status(table, init, method), section=table))
        columns = ("Table", "Method", "As printed", "Accuracy", "ECE", "Status")
        note = "Averages over the table's datasets, of CLIP ViT-B/16, in percent. Reproduced: both are in the band."
        return Table("Published", columns, tuple(lines), (note,), texts=3, more_texts=frozenset({5}))

    def _status(self, table: str, init: str, method: str) -> str:
        found = []
        for entry in self.entries:
            cells = [
                cell
                for cell in entry.record["comparison"]
                if (cell["method"], cell["init"], cell["dataset"]) == (method, init, AVERAGE)
                and entry.record["name"] == table
            ]
            if cells and all(cell["verdict"] == "inside" for cell in cells):
                found.append("verified" if entry.status == "verified" else "reproduced")
            elif any(cell["verdict"] == "outside" for cell in cells):
                found.append("outside")
        return next((status for status in ("verified", "reproduced", "outside") if status in found), "published")


def _results(run: Mapping[str, Any]) -> Iterator[Line]:
    for dataset, methods in run["results"].items():
        images = run["datasets"][dataset]["images"]
        title = catalog.row(dataset).title if dataset in catalog.datasets else dataset
        for method, metrics in sorted(methods.items(), key=lambda item: order(item[0])):
            cells = [Cell(method), Cell(title), Cell(str(images))]
            for name in ("accuracy", "ece", "ece_floor", "brier", "auroc"):
                cells.append(_cell(name, metrics.get(name)))
            yield Line(tuple(cells), dataset)


def _cell(metric: str, numbers: Any) -> Cell:
    if not numbers:
        return Cell("—")
    value, low, high, _ = numbers
    extra = "" if metric == "ece_floor" else f"[{printed(metric, low)}, {printed(metric, high)}]"
    return Cell(printed(metric, value), extra)


def _notes(entry: Entry) -> Iterator[str]:
    record, run = entry.record, next(iter(entry.record["runs"].values()))
    answers = sum(len(part["answers"]) for part in record["sample"]["entries"])
    yield (
        f"poise {run['versions'].get('poise')}, commit {str(run['commit'])[:12]}, {run['device']}, "
        f"{run['config']['dtype']}, seeds {', '.join(map(str, run['config']['seeds']))}, "
        f"{run['config']['views']} views."
    )
    weights, own = str(record["weights_sha256"])[:16], record["sha256"][:16]
    yield f"Model {run['model_fingerprint']}, weights {weights}, record {own}."
    declared = records.declared(record)
    yield "; ".join(f"{name}: {', '.join(values) or 'none'}" for name, values in declared.items()) + "."
    verdicts = [cell["verdict"] for cell in record["comparison"]]
    if verdicts:
        counts = {name: verdicts.count(name) for name in ("inside", "outside", "not comparable")}
        yield "Beside published numbers: " + ", ".join(f"{number} {name}" for name, number in counts.items()) + "."
    yield f"{counted(answers, 'image')} in the sample that others compute again."
    for seen in entry.seen:
        result = "the same" if seen["verified"] else "NOT the same"
        again = f"{counted(seen['images'], 'image')} computed again on {seen['device']}"
        yield f"{again}: {seen['same']} of {counted(seen['answers'], 'answer')} {result}."


def load(folder: str | Path) -> Board:
    """Read all records and attestations in a folder.

    Raises:
        InvalidDatasetError: A file is neither, or an attestation was changed or belongs to no record.
    """
    root = Path(folder)
    files = sorted(root.glob("*.json"))
    if not files:
        raise InvalidDatasetError(f"No records are in '{root}'.", hint="Give a folder of records (*.json).")
    seen: dict[str, list[Mapping[str, Any]]] = {}
    found: dict[str, dict[str, Any]] = {}
    for file in files:
        content = _json(file)
        if content.get("format") == verify.FORMAT:
            body = {key: value for key, value in content.items() if key != "sha256"}
            if content.get("sha256") != checksum(canonical(body)):
                raise InvalidDatasetError(f"The attestation '{file}' was changed.", hint="Verify the record again.")
            seen.setdefault(str(content["record"]), []).append(content)
        else:
            found[file.stem.removesuffix(".record")] = records.read(file)
    for unknown in seen.keys() - {record["sha256"] for record in found.values()}:
        raise InvalidDatasetError(
            f"An attestation in '{root}' is of a record that is not there ({unknown[:16]}).", hint="Remove it."
        )
    return Board(tuple(Entry(name, record, tuple(seen.get(record["sha256"], ()))) for name, record in found.items()))


def _json(file: Path) -> dict[str, Any]:
    try:
        content = json.loads(read_bounded(file, 2 * records.MAX_BYTES))
    except (OSError, ValueError, RecursionError) as problem:
        raise InvalidDatasetError(f"'{file}' can't be read: {reason_of(problem)}.", hint="Remove it.") from None
    return content if isinstance(content, dict) else {}


def page(board: Board) -> str:
    """Return the board as one HTML page that needs no network and no script."""
    cards = [(table.title, Markup(formats.html([table]))) for table in board.tables()]
    return str(rendered("board.html", title="Board of records", css=source("page.css"), cards=cards, rules=RULES))


def write(folder: str | Path, out: str | Path) -> Path:
    """Write the page of a folder of records."""
    path = Path(out)
    write_atomic(path, page(load(folder)).encode())
    return path
