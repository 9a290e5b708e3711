"""The board: a folder of records and attestations as tables and as one static page."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from markupsafe import Markup, escape

from poise.data import catalog
from poise.errors import InvalidDatasetError
from poise.files import write_atomic
from poise.report.colours import order
from poise.report.html import rendered, source
from poise.report.published import paper
from poise.report.published.peers import PEER_ROWS
from poise.report.records.scores import printed
from poise.report.tables import formats
from poise.report.tables.block import LAYOUTS
from poise.report.tables.table import Cell, Line, Table
from poise.reproduce import record as records
from poise.reproduce import verify
from poise.reproduce.comparison import AVERAGE, verdicts
from poise.reproduce.signature import check
from poise.text import counted

STATUSES = {
    "published": "a paper prints the number, and nobody has put a record of it here",
    "recorded": "somebody measured it with poise and put the record here",
    "reproduced": "a record has the published number: accuracy and ECE are inside of the band around it",
    "outside": "a record has the number of the same method and datasets, and it is outside of the band",
    "verified": "somebody else computed the sample of that record again, and got the same answers",
}
RULES = (
    "An entry is a file that `poise reproduce` wrote. A pull request adds it to `docs/board`, with the page. "
    "Continuous integration checks all hashes in it, and verifies it where it has the images.",
    "No method uses labels of test images: no weight, epoch, threshold or template was chosen on them. Methods that "
    "need labelled images of another split say so.",
    "Templates, and settings that differ between datasets, are in the record and are shown.",
    "The order of a stream of images follows from the seed.",
    "ECE has 20 bins of equal width, and is shown with its floor: what a perfectly calibrated model would have on as "
    "many images. Metrics are of all images that could be read.",
    "Verified needs an attestation: the file that `poise reproduce verify --out` writes, of the whole sample of the "
    "record, by another person than the record's, preferably signed (`poise reproduce sign`).",
    "A record whose sample does not verify is removed, and the pull request that removes it says why.",
)
TITLE = "Board of records"
SIGNERS = "allowed_signers"  # in the folder: the keys of known people, in OpenSSH's format


@dataclass(frozen=True)
class Seen:
    """An attestation: what somebody found who computed a record's sample again."""

    content: Mapping[str, Any]
    signer: str = ""


@dataclass(frozen=True)
class Entry:
    """A record of the board and what others found."""

    name: str  # of its file
    record: Mapping[str, Any]
    seen: tuple[Seen, ...] = ()
    signer: str = ""

    @property
    def sample(self) -> int:
        """The number of images that others compute again."""
        return sum(len(part["answers"]) for part in self.record["sample"]["entries"])

    @property
    def status(self) -> str:
        """Whether somebody verified all of its sample."""
        whole = (each.content["verified"] and int(each.content["images"]) >= self.sample for each in self.seen)
        return "verified" if any(whole) else "recorded"

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
        return [*(self._record(entry) for entry in self.entries), *self.published()]

    def _record(self, entry: Entry) -> Table:
        lines = [line for run in entry.record["runs"].values() for line in _results(run)]
        columns = ("Method", "Dataset", "Accuracy", "ECE", "ECE floor", "Brier", "AUROC", "Images")
        status = "verified" if entry.status == "verified" else "recorded, not verified yet"
        title = f"Record {entry.name}: the model {entry.model} ({status})"
        return Table(title, columns, tuple(lines), tuple(_notes(entry)), texts=2)

    def published(self) -> list[Table]:
        """Return a table for each published one: a line for each average, and whether a record has it."""
        by_table: dict[str, dict[tuple[str, str, str], dict[str, paper.PublishedRow]]] = {}
        for row in self.rows:
            if row.average is not None:
                lines = by_table.setdefault(row.table, {})
                lines.setdefault((row.init, row.method, row.label), {})[row.metric] = row
        return [self._published(table, lines) for table, lines in by_table.items()]

    def _published(self, table: str, rows: Mapping[tuple[str, str, str], dict[str, paper.PublishedRow]]) -> Table:
        lines = []
        for (init, method, label), metrics in rows.items():
            values = [metrics[name].average if name in metrics else None for name in ("accuracy", "ece")]
            shown = ["—" if value is None else f"{value:.2f}" for value in values]
            start = method if init == "template" else f"{init}: {method}"
            origin = next(iter(metrics.values())).origin or label
            lines.append(Line.of(start, self._status(table, init, method), *shown, origin))
        columns = ("Method", "Status", "Accuracy", "ECE", "As printed")
        own = table in paper.LAYOUTS
        where = f"{paper.PAPER}, Table {table.removeprefix('table')}. " if own else ""
        about = f"{where}Averages over the table's datasets, of {paper.MODEL}, in percent."
        notes = (f"{about} To reproduce them: `poise reproduce {table} --data DATA`.",)
        name = f"Table {table.removeprefix('table')}: " if own else ""
        title = f"Published, {name}{LAYOUTS[table].title}" if table in LAYOUTS else f"Published, {table}"
        return Table(title, columns, tuple(lines), notes, texts=2, more_texts=frozenset({4}))

    def _status(self, table: str, init: str, method: str) -> str:
        found = []
        for entry in self.entries:
            cells = [
                cell
                for cell in verdicts(entry.record)
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
            numbers = [_cell(name, metrics.get(name)) for name in ("accuracy", "ece", "ece_floor", "brier", "auroc")]
            yield Line((Cell(method), Cell(title), *numbers, Cell(str(images))), dataset)


def _cell(metric: str, numbers: Any) -> Cell:
    if not numbers:
        return Cell("—")
    value, low, high, _ = numbers
    extra = "" if metric == "ece_floor" else f"[{printed(metric, low)}, {printed(metric, high)}]"
    return Cell(printed(metric, value), extra)


def _notes(entry: Entry) -> Iterator[str]:
    record, run = entry.record, next(iter(entry.record["runs"].values()))
    yield "All but the Brier score in percent; in brackets, 95 % intervals over images."
    yield (
        f"poise {run['versions'].get('poise')}, commit {str(run['commit'])[:12]}, {run['device']}, "
        f"{run['config']['dtype']}, seeds {', '.join(map(str, run['config']['seeds']))}, "
        f"{run['config']['views']} views."
    )
    weights, own = str(record["weights_sha256"])[:16], record["sha256"][:16]
    yield f"Fingerprint of the model {run['model_fingerprint']}, hash of its weights {weights}, of the record {own}."
    yield "; ".join(f"{name}: {', '.join(values) or 'none'}" for name, values in records.declared(record).items()) + "."
    said = [cell["verdict"] for cell in verdicts(record)]
    if said:
        counts = {name: said.count(name) for name in ("inside", "outside", "not comparable")}
        yield "Beside published numbers: " + ", ".join(f"{number} {name}" for name, number in counts.items()) + "."
    signed = f" Signed by {entry.signer}." if entry.signer else ""
    again = f"poise reproduce verify {entry.name}.json --data DATA"
    yield f"To compute its sample of {counted(entry.sample, 'image')} again: `{again}`.{signed}"
    for seen in entry.seen:
        found = seen.content
        result = "verified" if found["verified"] else "NOT verified"
        again = f"{counted(found['images'], 'image')} computed again on {found['device']}"
        by = f", signed by {seen.signer}" if seen.signer else ""
        yield f"{result}: {again}, {found['same']} of {counted(found['answers'], 'answer')} the same{by}."


def load(folder: str | Path) -> Board:
    """Read all records and attestations in a folder, and check their signatures (FILE.sig) where there are some.

    Raises:
        InvalidDatasetError: There are no records, or an attestation belongs to none.
        InvalidRecordError: A file is neither, or was changed, or its signature is not of it.
    """
    root = Path(folder)
    seen: dict[str, list[Seen]] = {}
    found: dict[str, tuple[dict[str, Any], str]] = {}
    for file in sorted(root.glob("*.json")):
        content = verify.read_file(file)
        signer = _signer(content, file)
        if content["format"] == verify.FORMAT:
            seen.setdefault(str(content["record"]), []).append(Seen(content, signer))
        else:
            found[file.stem.removesuffix(".record")] = content, signer
    if not found:
        raise InvalidDatasetError(f"No records are in '{root}'.", hint="Give a folder of records (*.json).")
    for unknown in seen.keys() - {record["sha256"] for record, _ in found.values()}:
        raise InvalidDatasetError(
            f"An attestation in '{root}' is of a record that is not there ({unknown[:16]}).", hint="Remove it."
        )
    return Board(
        tuple(
            Entry(name, record, tuple(seen.get(record["sha256"], ())), signer)
            for name, (record, signer) in found.items()
        )
    )


def _signer(content: Mapping[str, Any], file: Path) -> str:
    signature, signers = file.with_name(f"{file.name}.sig"), file.with_name(SIGNERS)
    return check(content, signature, signers if signers.is_file() else None) if signature.is_file() else ""


def page(board: Board) -> str:
    """Return the board as one HTML page that needs no network and no script."""
    cards = [(table.title, _code(formats.html([table]))) for table in board.tables()]
    rules = [_code(escape(rule)) for rule in RULES]
    return str(rendered("board.html", title=TITLE, css=source("page.css"), cards=cards, rules=rules, statuses=STATUSES))


def _code(escaped: str) -> Markup:
    """Return HTML whose texts in backticks are code."""
    return Markup(re.sub("`([^`]*)`", r"<code>\1</code>", escaped))


def write(folder: str | Path, out: str | Path) -> Path:
    """Write the page of a folder of records."""
    path = Path(out)
    write_atomic(path, page(load(folder)).encode())
    return path
