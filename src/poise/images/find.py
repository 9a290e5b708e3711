"""Finds the image files that paths, folders and glob patterns refer to."""

from __future__ import annotations

import glob
import os
from collections.abc import Iterable, Iterator
from pathlib import Path

from poise.errors import InvalidOptionError

SUFFIXES = (".jpg", ".jpeg", ".png", ".webp", ".gif", ".bmp", ".tif", ".tiff")


def walk_images(folder: Path) -> Iterator[str]:
    """Yield the image files below ``folder`` as relative paths with '/', unordered; hidden files are skipped.

    A folder that can't be listed is yielded as well, so that reading it reports the error.
    """
    closed: list[str] = []
    for parent, folders, files in os.walk(folder, onerror=lambda error: closed.append(str(error.filename))):
        folders[:] = [name for name in folders if not name.startswith(".")]
        inner = Path(parent).relative_to(folder).as_posix()
        for name in files:
            if name.lower().endswith(SUFFIXES) and not name.startswith("."):
                yield name if inner == "." else f"{inner}/{name}"
    yield from (Path(path).relative_to(folder).as_posix() for path in closed)


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
    return InvalidOptionError(f"No images found in '{place}'.", hint=f"Files ending in {', '.join(SUFFIXES)} are read.")


def _images_below(folder: Path) -> list[Path]:
    return sorted(folder / name for name in walk_images(folder))
