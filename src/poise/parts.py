"""Folders of parts, local or remote: a manifest, one Parquet file per shard, and a ledger of finished shards.

The worker that computed a part writes it, and then its receipt in ``_ledger/``, each complete or absent. A part without
a receipt does not count: whoever resumes the job computes it again under the same name, so nothing is lost or doubled.

Readers of Parquet folders (pyarrow, pandas, Spark and others) skip names with an underscore in front, so they read the
parts alone. Folders of earlier versions have the names without it, which are read too.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from poise.errors import InvalidDatasetError, reason_of
from poise.files import checksum
from poise.filesystems import join, list_files, read_whole, write_whole

MANIFEST = "_manifest.json"
ANSWERS = "poise-answers/1"  # what the manifest of `poise classify` has as its format
LEDGER = "_ledger"
_BEFORE = {MANIFEST: "manifest.json", LEDGER: "ledger"}
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
    return sorted(_receipt_places(folder))


def _receipt_places(folder: str) -> dict[str, str]:
    """Return the addresses of the receipts, by the names of their parts."""
    places = (join(folder, ledger) for ledger in (_BEFORE[LEDGER], LEDGER))  # of two for one part, the new one counts
    return {
        name.removesuffix(".json"): join(place, name)
        for place in places
        for name in list_files(place)
        if name.endswith(".json")
    }


def finished_parts(folder: str) -> list[str]:
    """Return the file names of the parts that have a receipt, in order."""
    return [f"{name}.parquet" for name in listed_parts(folder)]


def receipts(folder: str) -> dict[str, dict[str, Any]]:
    """Return the receipts of the parts that are there with the size they were written with, by name.

    One that can't be read, or whose part is missing, is left out: the part is computed again.
    """
    sizes, places = list_files(folder), _receipt_places(folder)
    names = sorted(places)

    def read(name: str) -> dict[str, Any] | None:
        try:
            found = json.loads(read_whole(places[name]))
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
    for name in (MANIFEST, _BEFORE[MANIFEST]):
        try:
            found = json.loads(read_whole(join(folder, name)))
            if not isinstance(found, dict):
                raise ValueError("it is not a table")
            return found
        except FileNotFoundError:
            continue
        except (OSError, ValueError, RecursionError) as error:
            raise InvalidDatasetError(
                f"'{join(folder, name)}' can't be read: {reason_of(error)}.", hint="Give another folder."
            ) from None
    return None


def write_manifest(folder: str, manifest: Mapping[str, Any]) -> None:
    """Write the manifest of a folder."""
    write_whole(join(folder, MANIFEST), (json.dumps(manifest, indent=1, ensure_ascii=False) + "\n").encode())
