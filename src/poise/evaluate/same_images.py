"""Checks that the images of a run are still those that it has answered."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence

from poise.data import ImageSet, Item
from poise.errors import PoiseError, RunConflictError
from poise.evaluate.storage.parts import pixels_in, read_parts
from poise.evaluate.storage.run_folder import RunFolder
from poise.images import read_image
from poise.loading.overlap import map_ahead
from poise.threads import available_cores


def check_images(folder: RunFolder, sets: Mapping[str, ImageSet], finished: Collection[str]) -> None:
    """Raise an error if an image of a finished unit was replaced, since the run would mix answers for both."""
    pixels = pixels_in(read_parts(folder.path, finished), folder.run_id)
    for images in sets.values():
        item = next(_changed(images.items, pixels.get(images.name, {})), None)
        if item is not None:
            raise RunConflictError(
                f"The image '{item.id}' of '{images.name}' is not the one that the run '{folder.run_id}' has answered.",
                hint="Restore it (the records have the hash of its pixels), or give this run another name (--name).",
            )


def _changed(items: Sequence[Item], pixels: Mapping[str, str]) -> Iterator[Item]:
    """Yield the items whose pixels have another hash than the one in ``pixels``, or can't be read any more."""

    def differs(item: Item) -> bool:
        try:
            return read_image(item.source()).key != pixels[item.id]
        except (PoiseError, OSError, MemoryError):
            return True

    known = [item for item in items if item.id in pixels]
    threads = min(8, available_cores())
    results = map_ahead(differs, known, threads=threads, window=4 * threads)
    return (item for item, other in zip(known, results, strict=True) if other)
