"""Reads a run's files of records, after comparing them with the checksums in its ledger."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from poise.errors import InvalidDatasetError, reason_of
from poise.evaluate.records import SCHEMA
from poise.evaluate.storage.checks import MAX_PART, REPAIR
from poise.evaluate.storage.ledger import Ledger
from poise.files import checksum, read_bounded


def read_parts(folder: Path, units: Collection[str] | None = None) -> Iterator[pa.Table]:
    """Yield the records of the units that the ledger lists, or of those among them whose ids are in ``units``.

    Raises:
        InvalidDatasetError: A file is damaged or is not the one that was written.
    """
    ledger = Ledger(folder / "ledger.jsonl")
    if not ledger.path.is_file() and any(folder.rglob("part-*.parquet")):
        raise InvalidDatasetError(f"'{folder}' has no ledger, which the records are checked with.", hint=REPAIR)
    for unit, line in sorted(ledger.finished().items()):
        if units is not None and unit not in units:
            continue
        part = folder / f"{unit}.parquet"
        try:
            content = read_bounded(part, MAX_PART)
            if checksum(content) != line["sha256"]:
                raise OSError("it is not the file that was written")
            table = pq.read_table(pa.BufferReader(content))
            known = [SCHEMA.field(field.name) if field.name in SCHEMA.names else field for field in table.schema]
            yield table.cast(pa.schema(known))
        except (OSError, ValueError, KeyError, pa.ArrowException) as problem:
            raise InvalidDatasetError(f"The records '{part}' are damaged: {reason_of(problem)}.", hint=REPAIR) from None


def pixels_in(tables: Iterable[pa.Table], run: str) -> dict[str, dict[str, str]]:
    """Return the hash of the pixels of each image that a run has answered, by dataset and id.

    Raises:
        InvalidDatasetError: An image was replaced during the run, so that it has two hashes.
    """
    found: dict[str, dict[str, str]] = {}
    for table in tables:
        if "pixels" not in table.column_names:  # of an earlier version
            continue
        distinct = table.select(["dataset", "id", "pixels"]).group_by(["dataset", "id", "pixels"]).aggregate([])
        for dataset, name, key in zip(*(distinct[column].to_pylist() for column in distinct.column_names), strict=True):
            if key and found.setdefault(dataset, {}).setdefault(name, key) != key:
                raise InvalidDatasetError(
                    f"The image '{name}' of '{dataset}' was replaced while the run '{run}' was computed.",
                    hint="Its answers belong to different images: repeat the run under another name.",
                )
    return found
