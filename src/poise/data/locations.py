"""Finding a dataset's folder and files on disk, whichever published layout they are in."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

from poise.data.catalog import DatasetRow, Location
from poise.errors import InvalidDatasetError
from poise.images import SUFFIXES

ABSENT = "dataset_absent"  # the error code for: no trace of this dataset here


def check_root(root: str | Path | None) -> Path:
    """The data folder, which must be there."""
    if root is None:
        raise InvalidDatasetError(
            "No data folder was given.", hint="Name the folder that holds the datasets (--data DIR)."
        )
    folder = Path(root).expanduser()
    if not folder.is_dir():
        raise InvalidDatasetError(
            f"The data folder '{folder}' does not exist or is not a folder.", hint="Check --data."
        )
    return folder


def _key(name: str) -> str:
    return re.sub(r"[-_]", "", name).casefold()


def find_folder(root: Path, relative: str) -> Path | None:
    """The folder ``relative`` under ``root``; where it isn't there to the letter, case, '-' and '_' are ignored."""
    if (root / relative).is_dir():
        return root / relative
    first, _, rest = relative.partition("/")
    alike = [entry for entry in sorted(root.iterdir()) if _key(entry.name) == _key(first) and entry.is_dir()]
    inner = (find_folder(entry, rest) if rest else entry for entry in alike)
    return next((folder for folder in inner if folder is not None), None)


def found_places(row: DatasetRow, root: Path, split: str = "val") -> Iterator[tuple[Location, Path]]:
    """The places of ``row`` that exist, each folder once, in the catalogue's order."""
    seen: set[Path] = set()
    for place in row.places:
        folder = find_folder(root, place.folder.format(split=split))
        if folder is not None and folder.resolve() not in seen:
            seen.add(folder.resolve())
            yield place, folder


def find_split_file(row: DatasetRow, root: Path) -> Path | None:
    """CoOp's split file: beside the images, above them, or in the one folder that TPT's layout keeps for all."""
    folders: list[Path] = []
    for _, folder in found_places(row, root):
        folders += [folder, *(above for above in folder.parents if above.is_relative_to(root))]
    tops = [find_folder(root, place.folder.split("/")[0]) for place in row.places]
    folders += [top for top in tops if top is not None]
    folders += [root, root / "data_splits", root / "data" / "data_splits", root / "splits"]
    return next((folder / row.split_file for folder in folders if (folder / row.split_file).is_file()), None)


def absent(row: DatasetRow, root: Path, looked_for: Iterable[str]) -> InvalidDatasetError:
    """The error for a dataset of which nothing was found."""
    return InvalidDatasetError(
        f"{row.title} is not in '{root}': looked for {', '.join(looked_for)}.", hint=how_to_get(row), code=ABSENT
    )


def how_to_get(row: DatasetRow, *, by_hand: bool = False) -> str:
    """What a person does to have this dataset on disk."""
    if row.torchvision and not by_hand:
        return f"To get it: poise data get {row.name} --data DIR (from {row.get})."
    folder = row.places[0].folder.format(split="val")
    steps = [f"images into '{folder}' ({row.get})"]
    if row.split_file:
        steps.append(f"{row.split_file} into '{folder.split('/')[0]}' ({row.split_url})")
    return f"To get it{' by hand' if by_hand else ''}: {'; '.join(steps)}."


def walk_images(folder: Path) -> Iterator[str]:
    """The image files below ``folder`` as relative paths with '/', in no order; hidden files are left out."""
    for place, folders, files in os.walk(folder):
        folders[:] = [name for name in folders if not name.startswith(".")]
        inner = Path(place).relative_to(folder).as_posix()
        for name in files:
            if name.lower().endswith(SUFFIXES) and not name.startswith("."):
                yield name if inner == "." else f"{inner}/{name}"


def list_images(folder: Path) -> list[str]:
    """The image files below ``folder`` as sorted relative paths."""
    return sorted(walk_images(folder))


def has_images(row: DatasetRow, root: Path) -> bool:
    """Whether any place of ``row`` holds an image; a folder with nothing but a split file does not."""
    return any(True for _, folder in found_places(row, root) for _ in walk_images(folder))
