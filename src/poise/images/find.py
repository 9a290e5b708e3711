"""Finds the image files that paths, folders and glob patterns refer to."""

from __future__ import annotations

import glob
import os
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path

from poise.errors import InvalidOptionError

SUFFIXES = (".jpg", ".jpeg", ".png", ".webp", ".gif", ".bmp", ".tif", ".tiff")
_PHOTOS = (".heic", ".heif", ".avif", ".dng", ".cr2", ".cr3", ".nef", ".arw")  # that people have, and poise can't read
_NAMED = 5  # suffixes in a message


def walk_images(folder: Path) -> Iterator[str]:
    """Yield the image files below ``folder`` as relative paths with '/', unordered; hidden files are skipped.

    A folder that can't be listed is yielded as well, so that reading it reports the error.
    """
    closed: list[str] = []
    for inner, name in _walk(folder, closed):
        if name.lower().endswith(SUFFIXES):
            yield name if inner == "." else f"{inner}/{name}"
    yield from (Path(path).relative_to(folder).as_posix() for path in closed)


def _walk(folder: Path, closed: list[str]) -> Iterator[tuple[str, str]]:
    """Yield the files below a folder that are not hidden, as folder and name; ``closed`` gets what can't be listed."""
    for parent, folders, files in os.walk(folder, onerror=lambda error: closed.append(str(error.filename))):
        folders[:] = [name for name in folders if not name.startswith(".")]
        inner = Path(parent).relative_to(folder).as_posix()
        yield from ((inner, name) for name in files if not name.startswith("."))


def count_skipped(folders: Iterable[Path]) -> Counter[str]:
    """Return how many files below folders are not read as images because of their suffix, by suffix."""
    names = (name.lower() for folder in folders for _, name in _walk(folder, []))
    return Counter(os.path.splitext(name)[1] for name in names if not name.endswith(SUFFIXES))


def in_words(skipped: Counter[str]) -> str:
    """Return the files that were skipped in words, and what to do about photos among them.

    >>> in_words(Counter({".heic": 2, "": 1}))
    '.heic 2, without a suffix 1. Convert photos to JPEG or PNG: .heic is not read.'
    """
    ordered = sorted(skipped.items(), key=lambda item: (item[0] not in _PHOTOS, -item[1], item[0]))
    text = ", ".join(f"{suffix or 'without a suffix'} {number}" for suffix, number in ordered[:_NAMED])
    text += f" and {len(ordered) - _NAMED} other suffixes." if len(ordered) > _NAMED else "."
    photos = [suffix for suffix, _ in ordered if suffix in _PHOTOS]
    are = "is" if len(photos) == 1 else "are"
    return f"{text} Convert photos to JPEG or PNG: {', '.join(photos)} {are} not read." if photos else text


def find_images(paths: Iterable[str | Path]) -> list[Path]:
    """Return the image files that files, folders (searched recursively) and glob patterns refer to.

    The order is that of ``paths``, and alphabetical within a folder or pattern; each file is listed once. Hidden files
    and folders are skipped. The path of a file is returned even if the file does not exist or has another suffix, so
    that reading it reports the error.

    Raises:
        InvalidOptionError: A folder or pattern contains no images.
    """
    images: dict[Path, None] = {}
    for pattern in paths:
        path = Path(os.path.expanduser(pattern))
        if not glob.has_magic(str(path)) or os.path.exists(path):
            matches = [path]
        else:
            matches = [Path(match) for match in sorted(glob.glob(str(path), recursive=True))]
        files = [file for match in matches for file in (_images_below(match) if os.path.isdir(match) else [match])]
        if not files:
            raise no_images(pattern)
        images.update(dict.fromkeys(files))
    return list(images)


def no_images(place: str | Path) -> InvalidOptionError:
    """Return the error of a place without images."""
    skipped = count_skipped([Path(place)]) if os.path.isdir(place) else None
    there = f" It has other files: {in_words(skipped)}" if skipped else ""
    return InvalidOptionError(
        f"No images found in '{place}'.{there}", hint=f"Files ending in {', '.join(SUFFIXES)} are read."
    )


def _images_below(folder: Path) -> list[Path]:
    return sorted(folder / name for name in walk_images(folder))
