"""Webdataset shards read by offset: ``wds:/path/{000..012}.tar``, or a folder in CLIP_benchmark's layout.

A sample consists of ``key.jpg`` (or another image format) and ``key.cls`` (its label). Shards are indexed with the
standard library and never unpacked, so the names of their members cannot refer to other files.
"""

from __future__ import annotations

import re
import tarfile
from collections.abc import Iterator
from pathlib import Path

from poise.data.edits import tidy
from poise.data.file_patterns import MAX_FILES, check_files, find_files
from poise.data.items import ImageSet, Item, Slice
from poise.data.tars import SUFFIXES, members
from poise.data.text_files import read_lines
from poise.errors import InvalidDatasetError, reason_of
from poise.filesystems import folder_of, join, name_of, open_input, size_of
from poise.text import counted


def find_shards(pattern: str) -> list[str]:
    """Return the shard files of a pattern with braces, a glob, or a folder in CLIP_benchmark's layout."""
    folder = Path(pattern).expanduser()
    inner = folder / "test" if (folder / "test").is_dir() else folder
    if (inner / "nshards.txt").is_file():
        numbered = [str(inner / f"{number}.tar") for number in range(_count(inner / "nshards.txt"))]
        return check_files(numbered, f"wds:{pattern}")
    return find_files(str(inner) if folder.is_dir() else pattern, ".tar", "wds")


def _count(file: Path) -> int:
    text = "".join(read_lines(file))
    if not re.fullmatch(r"\d{1,9}", text, re.ASCII) or int(text) > MAX_FILES:
        raise InvalidDatasetError(
            f"'{file}' contains '{text[:40]}'.", hint=f"It is the number of shards, from 0 to {MAX_FILES:,}."
        )
    return int(text)


def read_samples(shard: str) -> Iterator[tuple[str, int, Slice]]:
    """Yield key, label and location of every image of a shard, in its order."""
    images: dict[str, Slice] = {}
    labels: dict[str, int] = {}
    try:
        with open_input(shard) as file:
            for key, kind, member in members(file):
                location = Slice(shard, member.offset_data, member.size)
                if kind in SUFFIXES:
                    images[key] = location
                elif kind == "cls":
                    labels[key] = _label(location, key)
    except (tarfile.TarError, OSError, ValueError, OverflowError) as error:
        if isinstance(error, InvalidDatasetError):
            raise
        raise InvalidDatasetError(
            f"The shard '{shard}' can't be read: {reason_of(error)}.", hint="Shards are uncompressed .tar files."
        ) from error
    incomplete = sorted(images.keys() ^ labels.keys())
    if incomplete:
        samples = counted(len(incomplete), "sample")
        raise InvalidDatasetError(
            f"'{shard}' has {samples} without an image or without a label, e.g. '{incomplete[0]}'.",
            hint="A sample is key.jpg (or .png, .webp) and key.cls.",
        )
    yield from ((key, labels[key], location) for key, location in images.items())


def _label(location: Slice, key: str) -> int:
    text = location.load().strip() if location.size <= 32 else b""
    if not text.isdigit():
        raise InvalidDatasetError(
            f"'{key}.cls' in '{location.path}' is not a label: {text[:20]!r}.", hint="A label is a whole number."
        )
    return int(text)


def open_shards(pattern: str) -> ImageSet:
    """Open shards. Class names are read from ``classnames.txt`` in their folder or its parent."""
    shards = find_shards(pattern)
    folder = folder_of(shards[0])
    candidates = [join(parent, "classnames.txt") for parent in (folder, folder_of(folder))]
    class_file = next((file for file in candidates if size_of(file) is not None), None)
    if class_file is None:
        raise InvalidDatasetError(
            f"Shards 'wds:{pattern}' have no classnames.txt.", hint=f"Put it into '{folder}', with one name per line."
        )
    classes = tuple(map(tidy, read_lines(class_file)))
    items = [
        Item(id=f"{name_of(shard).removesuffix('.tar')}/{key}", label=label, read=location)
        for shard in shards
        for key, label, location in read_samples(shard)
    ]
    beyond = next((item for item in items if item.label >= len(classes)), None)
    if beyond is not None or not items:
        problem = f"'{beyond.id}' has label {beyond.label}" if beyond else "there is no sample"
        raise InvalidDatasetError(
            f"Shards 'wds:{pattern}': {problem}, and '{class_file}' has {counted(len(classes), 'class')}."
        )
    return ImageSet(f"wds:{pattern}", classes, tuple(items), folder=folder, layout="webdataset")
