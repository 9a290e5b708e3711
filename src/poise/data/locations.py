"""Finds a dataset's folders and files on disk, in any published layout."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from poise.data.catalog import DatasetRow, Location
from poise.errors import InvalidDatasetError
from poise.images.find import walk_images

ABSENT = "dataset_absent"  # error code if no folder of the dataset exists


def check_root(root: str | Path | None) -> Path:
    """Return the data folder; raise an error if it does not exist."""
    if root is None:
        raise InvalidDatasetError("No data folder was given.", hint="Give the folder of the datasets (--data DIR).")
    folder = Path(root).expanduser()
    if not folder.is_dir():
        raise InvalidDatasetError(f"The data folder '{folder}' does not exist or is a file.", hint="Check --data.")
    return folder


def _key(name: str) -> str:
    return re.sub(r"[-_]", "", name).casefold()


def find_folder(root: Path, relative: str) -> Path | None:
    """Return the folder ``relative`` below ``root``, or else one that differs only in case, '-' and '_'."""
    if (root / relative).is_dir():
        return root / relative
    first, _, rest = relative.partition("/")
    similar = [entry for entry in sorted(root.iterdir()) if _key(entry.name) == _key(first) and entry.is_dir()]
    inner = (find_folder(entry, rest) if rest else entry for entry in similar)
    return next((folder for folder in inner if folder is not None), None)


def existing_folders(row: DatasetRow, root: Path, split: str = "val") -> Iterator[tuple[Location, Path]]:
    """Yield the locations of a dataset that exist, in the order of the catalogue; each folder once."""
    seen: set[Path] = set()
    for place in row.places:
        folder = find_folder(root, place.folder.format(split=split))
        if folder is not None and folder.resolve() not in seen:
            seen.add(folder.resolve())
            yield place, folder


def require_folders(row: DatasetRow, root: Path, split: str = "val") -> list[tuple[Location, Path]]:
    """Return `existing_folders` as a list; raise an error with the code `ABSENT` if there are none."""
    folders = list(existing_folders(row, root, split))
    if not folders:
        tried = [f"'{place.folder.format(split=split)}'" for place in row.places]
        looked_for = ", ".join([row.split_file, *tried] if row.split_file else tried)
        message = f"{row.title} is not in '{root}': looked for {looked_for}."
        raise InvalidDatasetError(message, hint=how_to_get(row), code=ABSENT)
    return folders


def find_split_file(row: DatasetRow, root: Path) -> Path | None:
    """Find CoOp's split file next to the images, in a parent folder, or in TPT's common folder of split files."""
    folders: list[Path] = []
    for _, folder in existing_folders(row, root):
        folders += [folder, *(parent for parent in folder.parents if parent.is_relative_to(root))]
    tops = [find_folder(root, place.folder.split("/")[0]) for place in row.places]
    folders += [top for top in tops if top is not None]
    folders += [root, root / "data_splits", root / "data" / "data_splits", root / "splits"]
    return next((folder / row.split_file for folder in folders if (folder / row.split_file).is_file()), None)


def how_to_get(row: DatasetRow, *, by_hand: bool = False) -> str:
    """Return instructions for downloading a dataset."""
    if row.torchvision and not by_hand:
        return f"To get it: poise data get {row.name} --data DIR (from {row.get})."
    folder = row.places[0].folder.format(split="val")
    steps = [f"images into '{folder}' ({row.get})"]
    if row.split_file:
        steps.append(f"{row.split_file} into '{folder.split('/')[0]}' ({row.split_url})")
    return f"To get it{' by hand' if by_hand else ''}: {'; '.join(steps)}."


def list_images(folder: Path) -> list[str]:
    """Return the image files below ``folder`` as sorted relative paths."""
    return sorted(walk_images(folder))


def has_images(row: DatasetRow, root: Path) -> bool:
    """Return whether any folder of the dataset contains an image."""
    return any(True for _, folder in existing_folders(row, root) for _ in walk_images(folder))
