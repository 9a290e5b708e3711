"""Folders of parts, local or remote: a manifest, one Parquet file per shard, and a ledger of finished shards.

The worker that computed a part writes it, and then its receipt in ``ledger/``, each complete or absent. A part without
a receipt does not count: whoever resumes the job computes it again under the same name, so nothing is lost or doubled.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from poise.errors import InvalidDatasetError, reason_of
from poise.files import checksum
from poise.filesystems import join, list_files, read_whole, write_whole

MANIFEST = "manifest.json"
ANSWERS = "poise-answers/1"  # what the manifest of `poise classify` has as its format
LEDGER = "ledger"
_READERS = 16  # threads that read receipts


def part_name(number: int) -> str:
    """Return the name of a part, without its suffix.

    >>> part_name(12)
    'part-000012'
    """
    return f"part-{number:06d}"


def write_part(folder: str, number: int, content: bytes, receipt: Mapping[str, Any]) -> None:
    """Write a part, then its receipt."""
    name = part_name(number)
    write_whole(join(folder, f"{name}.parquet"), content)
    facts = {**receipt, "bytes": len(content), "sha256": checksum(content)}
    write_whole(join(folder, LEDGER, f"{name}.json"), json.dumps(facts, ensure_ascii=False).encode())


def listed_parts(folder: str) -> list[str]:
    """Return the names of the parts that have a receipt, in order."""
    return [name.removesuffix(".json") for name in list_files(join(folder, LEDGER)) if name.endswith(".json")]


def finished_parts(folder: str) -> list[str]:
    """Return the file names of the parts that have a receipt, in order."""
    return [f"{name}.parquet" for name in listed_parts(folder)]


def receipts(folder: str) -> dict[str, dict[str, Any]]:
    """Return the receipts of the parts that are there with the size they were written with, by name.

    One that can't be read, or whose part is missing, is left out: the part is computed again.
    """
    sizes, names = list_files(folder), listed_parts(folder)

    def read(name: str) -> dict[str, Any] | None:
        try:
            found = json.loads(read_whole(join(folder, LEDGER, f"{name}.json")))
            return found if isinstance(found, dict) and sizes.get(f"{name}.parquet") == found.get("bytes") else None
        except (ValueError, RecursionError):
            return None

    with ThreadPoolExecutor(_READERS) as threads:
        found = zip(names, threads.map(read, names), strict=True)
        return {name: receipt for name, receipt in found if receipt is not None}


def read_manifest(folder: str) -> dict[str, Any] | None:
    """Return the manifest of a folder; None if it has none.

    Raises:
        InvalidDatasetError: It can't be read.
    """
    try:
        found = json.loads(read_whole(join(folder, MANIFEST)))
        if not isinstance(found, dict):
            raise ValueError("it is not a table")
    except FileNotFoundError:
        return None
    except (OSError, ValueError, RecursionError) as error:
        raise InvalidDatasetError(
            f"'{join(folder, MANIFEST)}' can't be read: {reason_of(error)}.", hint="Give another folder."
        ) from None
    return found


def write_manifest(folder: str, manifest: Mapping[str, Any]) -> None:
    """Write the manifest of a folder."""
    write_whole(join(folder, MANIFEST), (json.dumps(manifest, indent=1, ensure_ascii=False) + "\n").encode())
