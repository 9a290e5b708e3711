"""Checks that the images of a run are still those that it has answered.

The ledger has a hash of the sizes and modification times of the files of each unit. Images of units where it is another
one, or unknown, are decoded and their pixels compared with the hashes in the records.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterator, Mapping, Sequence

from poise.cores import available_cores
from poise.data import ImageSet, Item
from poise.data.items import Slice
from poise.errors import PoiseError, RunConflictError
from poise.evaluate.storage.parts import pixels_in, read_parts
from poise.evaluate.storage.run_folder import RunFolder
from poise.evaluate.units import Unit
from poise.images import read_image
from poise.loading.overlap import map_ahead
from poise.progress import progress_bar


def stamps(sets: Mapping[str, ImageSet], units: Sequence[Unit]) -> dict[str, str | None]:
    """Return a hash of the sizes and modification times of each unit's files, by its id; None if it has no files."""
    known: dict[tuple[str, int], str | None] = {}  # seeds share their images

    def of(unit: Unit) -> str | None:
        state = hashlib.blake2b(digest_size=16)
        for position in unit.items:
            key = unit.dataset, position
            if key not in known:
                known[key] = _file_stamp(sets[unit.dataset].items[position])
            stamp = known[key]
            if stamp is None:
                return None
            state.update(f"{sets[unit.dataset].items[position].id} {stamp}\0".encode())
        return state.hexdigest()

    return {unit.id: of(unit) for unit in units}


def check(
    folder: RunFolder, sets: Mapping[str, ImageSet], finished: Sequence[Unit], *, deep: bool, quiet: bool = False
) -> None:
    """Raise an error if an image of a finished unit was replaced, since the run would mix answers for both.

    Args:
        folder: the run's folder.
        sets: its datasets.
        finished: its finished units.
        deep: compare the pixels of all images.
        quiet: show no progress.
    """
    lines, now = folder.ledger.finished(), stamps(sets, finished)
    doubtful = [
        unit.id for unit in finished if deep or now[unit.id] is None or lines[unit.id].get("files") != now[unit.id]
    ]
    if not doubtful:
        return
    pixels = pixels_in(read_parts(folder.path, doubtful), folder.run_id)
    with progress_bar(f"{folder.run_id}: comparing images", sum(map(len, pixels.values())), quiet=quiet) as progress:
        for images in sets.values():
            item = next(_changed(images.items, pixels.get(images.name, {}), progress), None)
            if item is not None:
                raise RunConflictError(
                    f"The image '{item.id}' of '{images.name}' is not the one that the run '{folder.run_id}' has "
                    "answered.",
                    hint="Restore it (the records have the hash of its pixels), or give this run another name "
                    "(--name).",
                )


def _file_stamp(item: Item) -> str | None:
    """Return size and modification time of the file that contains an image; None if it is in no file."""
    if not isinstance(item.read, str | Slice):
        return None
    path, place = (item.read, "") if isinstance(item.read, str) else (item.read.path, f"{item.read.offset} ")
    try:
        found = os.stat(path)
    except OSError:
        return "absent"
    return f"{place}{found.st_size} {found.st_mtime_ns}"


def _changed(items: Sequence[Item], pixels: Mapping[str, str], progress: Callable[[int], None]) -> Iterator[Item]:
    """Yield the items whose pixels have another hash than the one in ``pixels``, or can't be read any more."""

    def differs(item: Item) -> bool:
        try:
            return read_image(item.source()).key != pixels[item.id]
        except (PoiseError, OSError, MemoryError):
            return True

    known = [item for item in items if item.id in pixels]
    threads = min(8, available_cores())
    for item, other in zip(known, map_ahead(differs, known, threads=threads, window=4 * threads), strict=True):
        progress(1)
        if other:
            yield item
