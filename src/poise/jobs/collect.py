"""Merges, filters and samples the parts of a folder, in pieces: memory does not depend on the number of rows."""

from __future__ import annotations

import csv
import json
import os
import re
from collections.abc import Callable, Iterator, Sequence
from functools import reduce
from pathlib import Path
from typing import Any, TextIO

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from poise.errors import InvalidDatasetError, InvalidOptionError, UnknownNameError, reason_of
from poise.files import TEMPORARY
from poise.filesystems import join, open_input
from poise.parts import listed_parts, read_manifest, receipts
from poise.text import safe_cell

_ROWS = 65_536  # at a time
_NAMES = {"<=": "less_equal", ">=": "greater_equal", "!=": "not_equal", "<": "less", ">": "greater", "=": "equal"}
_TERM = re.compile(r"\s*(\w+)\s*(<=|>=|!=|<|>|=)\s*(.*?)\s*", re.DOTALL)


def finished_files(folder: str) -> list[str]:
    """Return the addresses of the parts that count, in order.

    Raises:
        InvalidDatasetError: The folder has no manifest, or a part that has a receipt is not as it was written.
    """
    if read_manifest(folder) is None:
        raise InvalidDatasetError(
            f"'{folder}' has no _manifest.json.", hint="Give the folder of `poise classify --out FOLDER/`."
        )
    good, there = receipts(folder), listed_parts(folder)
    if damaged := [name for name in there if name not in good]:
        raise InvalidDatasetError(
            f"{len(damaged)} of {len(there)} parts in '{folder}' are missing or damaged, e.g. '{damaged[0]}'.",
            hint="Run the command that wrote it again, with --resume: it repairs them.",
        )
    return [join(folder, f"{name}.parquet") for name in good]


def read_rows(
    folder: str, where: Sequence[str] = (), columns: Sequence[str] = ()
) -> tuple[pa.Schema, Iterator[pa.RecordBatch]]:
    """Return the schema of the rows, and the rows in order, a piece at a time.

    Args:
        folder: of the parts.
        where: conditions that all hold, such as "label = cat", "confidence < 0.5" or "error_code != null".
        columns: those that are kept; none for all but features.
    """
    files = finished_files(folder)
    if not files:
        raise InvalidDatasetError(f"'{folder}' has no finished part.", hint="Wait for the job, or resume it.")
    with open_input(files[0]) as stream:
        schema = pq.read_schema(stream)
    wanted = list(columns) or [name for name in schema.names if name != "features"]
    for name in wanted:
        if name not in schema.names:
            raise UnknownNameError.of("column", name, schema.names)
    conditions = [_condition(text, schema) for text in where]
    needed = list(dict.fromkeys([*wanted, *(name for name, _ in conditions)]))

    def rows() -> Iterator[pa.RecordBatch]:
        for file in files:
            try:
                with open_input(file) as stream:
                    for batch in pq.ParquetFile(stream).iter_batches(_ROWS, columns=needed):
                        if conditions:
                            mask = reduce(pc.and_, (test(batch.column(name)) for name, test in conditions))
                            batch = batch.filter(mask, null_selection_behavior="drop")
                        yield batch.select(wanted)
            except (OSError, pa.ArrowException) as error:
                raise InvalidDatasetError(
                    f"'{file}' can't be read: {reason_of(error)}.", hint="Run its job again with --resume."
                ) from error

    return pa.schema([schema.field(name) for name in wanted]), rows()


def _condition(text: str, schema: pa.Schema) -> tuple[str, Callable[[Any], Any]]:
    """Return the column of a condition, and the test of its values."""
    found = _TERM.fullmatch(text)
    if found is None:
        raise InvalidOptionError(
            f"'{text}' is not a condition.", hint="Use COLUMN OP VALUE with <, <=, =, !=, >= or >: confidence < 0.5"
        )
    name, sign, value = found.groups()
    if name not in schema.names:
        raise UnknownNameError.of("column", name, schema.names)
    kind = schema.field(name).type
    if value.lower() == "null" and sign in ("=", "!="):
        return name, (pc.is_null if sign == "=" else pc.is_valid)
    if pa.types.is_nested(kind):
        raise InvalidOptionError(f"'{name}' has lists, which have no order.", hint="Compare it with null only.")
    try:
        constant = pa.scalar(value, pa.string()).cast(kind)
    except pa.ArrowException as error:
        raise InvalidOptionError(f"{value!r} is no value of '{name}' ({kind}).", hint="Check the condition.") from error
    return name, lambda column: pc.call_function(_NAMES[sign], [column, constant])


def sampled(batches: Iterator[pa.RecordBatch], count: int, seed: int = 0) -> Iterator[pa.RecordBatch]:
    """Yield ``count`` rows drawn at random, in their order; all of them if there are no more."""
    numbers = np.random.default_rng(seed)
    kept: list[pa.RecordBatch] = []
    keys = np.empty(0)
    for batch in batches:
        fresh = numbers.random(len(batch))
        together = np.concatenate([keys, fresh])
        kept.append(batch)
        if len(together) > 2 * count + _ROWS:
            table, keys = _smallest(kept, together, count)
            kept = table.combine_chunks().to_batches()
        else:
            keys = together
    if kept:
        table, _ = _smallest(kept, keys, count)
        yield from table.to_batches()


def _smallest(kept: list[pa.RecordBatch], keys: np.ndarray, count: int) -> tuple[pa.Table, np.ndarray]:
    chosen = np.sort(np.argsort(keys, kind="stable")[:count])
    return pa.Table.from_batches(kept).take(chosen), keys[chosen]


def write(schema: pa.Schema, batches: Iterator[pa.RecordBatch], out: str | TextIO, format: str) -> int:
    """Write rows to one file (parquet, csv or jsonl) as they come; return their number.

    A file appears when it is complete.
    """
    if not isinstance(out, str):
        return _write_text(schema, batches, out, format)
    part = str(Path(out).with_name(f"{TEMPORARY}{Path(out).name}"))
    try:
        if format == "parquet":
            rows = _write_parquet(schema, batches, part)
        else:
            with open(part, "w", encoding="utf-8", newline="") as file:
                rows = _write_text(schema, batches, file, format)
        os.replace(part, out)
    except BaseException:
        Path(part).unlink(missing_ok=True)
        raise
    return rows


def _write_parquet(schema: pa.Schema, batches: Iterator[pa.RecordBatch], out: str) -> int:
    rows = 0
    with pq.ParquetWriter(out, schema, compression="zstd") as writer:
        for batch in batches:
            writer.write_batch(batch)
            rows += len(batch)
    return rows


def _write_text(schema: pa.Schema, batches: Iterator[pa.RecordBatch], file: TextIO, format: str) -> int:
    rows, table = 0, csv.writer(file, lineterminator="\n")
    if format == "csv":
        table.writerow(schema.names)
    for batch in batches:
        for row in batch.to_pylist():
            if format == "csv":
                table.writerow([_cell(value) for value in row.values()])
            else:
                file.write(json.dumps(row, ensure_ascii=False) + "\n")
        rows += len(batch)
    return rows


def _cell(value: Any) -> Any:
    return json.dumps(value, ensure_ascii=False) if isinstance(value, list) else safe_cell(value)
