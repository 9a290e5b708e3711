"""Image files that paths, folders and glob patterns stand for."""

from __future__ import annotations

import glob
import os
from collections.abc import Iterable
from pathlib import Path

from poise.errors import InvalidOptionError

SUFFIXES = (".jpg", ".jpeg", ".png", ".webp", ".gif", ".bmp", ".tif", ".tiff")


def find_images(paths: Iterable[str | Path]) -> list[Path]:
    """The image files that the given files, folders (searched recursively) and glob patterns stand for.

    Order is that of ``paths``, sorted within a folder or pattern; a file is listed once. A plain file name is taken as
    it is, even if it is missing or has an unusual suffix: reading it will tell.

    Raises:
        InvalidOptionError: There are no images in a folder, or behind a pattern.
    """
    found: dict[Path, None] = {}
    for given in paths:
        path = Path(given).expanduser()
        if path.is_dir():
            matches = _images_below(path)
        elif path.exists() or not glob.has_magic(str(path)):
            matches = [path]
        else:
            hits = [Path(hit) for hit in sorted(glob.glob(str(path), recursive=True))]
            matches = [image for hit in hits for image in (_images_below(hit) if hit.is_dir() else [hit])]
        if not matches:
            raise InvalidOptionError(
                f"No images found in '{given}'.", hint=f"Files ending in {', '.join(SUFFIXES)} are read."
            )
        found.update(dict.fromkeys(matches))
    return list(found)


def _images_below(folder: Path) -> list[Path]:
    names = (Path(parent) / name for parent, _, files in os.walk(folder) for name in files if not name.startswith("."))
    return sorted(path for path in names if path.suffix.lower() in SUFFIXES)
