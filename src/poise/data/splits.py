"""CoOp's split files: ``{"train" | "val" | "test": [[path, label, class name], ...]}``."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path, PurePosixPath

from poise.data.catalog import DatasetRow
from poise.data.edits import tidy
from poise.data.items import Item
from poise.data.locations import absent, find_split_file, found_places, how_to_get
from poise.errors import InvalidDatasetError

Entry = tuple[str, int, str]  # path below the image folder, label, class name
SPLITS = ("train", "val", "test")


def read_split_file(path: Path) -> dict[str, list[Entry]]:
    """The three lists of a split file, checked."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as problem:
        raise InvalidDatasetError(
            f"The split file '{path}' can't be read: {problem}.", hint="Fetch it again."
        ) from problem
    if not isinstance(content, dict) or not all(isinstance(content.get(name), list) for name in SPLITS):
        raise InvalidDatasetError(
            f"The split file '{path}' has no lists 'train', 'val' and 'test'.", hint="Fetch it again."
        )
    return {name: [_entry(path, entry) for entry in content[name]] for name in SPLITS}


def _entry(path: Path, entry: object) -> Entry:
    if not (isinstance(entry, list) and len(entry) == 3 and isinstance(entry[0], str) and isinstance(entry[2], str)):
        raise InvalidDatasetError(f"The split file '{path}' holds {entry!r}, which is not [path, label, class name].")
    if isinstance(entry[1], bool) or not isinstance(entry[1], int):
        raise InvalidDatasetError(
            f"The split file '{path}' gives '{entry[0]}' the label {entry[1]!r}; labels are integers."
        )
    image = entry[0].lstrip("/")
    if ".." in PurePosixPath(image).parts or "\\" in image:
        raise InvalidDatasetError(f"The split file '{path}' leads out of the image folder: '{entry[0]}'.")
    return image, entry[1], tidy(entry[2])


def class_names(path: Path, splits: dict[str, list[Entry]]) -> tuple[str, ...]:
    """The class names in label order; every label from 0 on must have exactly one name."""
    names: dict[int, str] = {}
    for entries in splits.values():
        for image, label, name in entries:
            if names.setdefault(label, name) != name:
                raise InvalidDatasetError(
                    f"The split file '{path}' calls class {label} both '{names[label]}' and '{name}' ('{image}')."
                )
    if sorted(names) != list(range(len(names))):
        gaps = sorted(set(range(max(names, default=0) + 1)) - set(names))[:5]
        raise InvalidDatasetError(f"The split file '{path}' has no image of class {gaps}, or a label below 0.")
    return tuple(names[label] for label in range(len(names)))


def find_images(row: DatasetRow, root: Path, images: Sequence[str]) -> tuple[str, Path]:
    """The layout and folder in which most of a few listed images lie."""
    probes = images[:: max(1, len(images) // 8)]
    best, hits = None, 0
    for place, folder in found_places(row, root):
        there = sum((folder / image).is_file() for image in probes)
        if there > hits:
            best, hits = (place.layout, folder), there
    if best is None:
        tried = ", ".join(f"'{place.folder}'" for place in row.places)
        raise InvalidDatasetError(
            f"None of the images that {row.split_file} lists was found (e.g. '{images[0]}') below {tried} of '{root}'.",
            hint=how_to_get(row),
        )
    return best


def open_split(row: DatasetRow, root: Path, split: str) -> tuple[tuple[str, ...], list[Item], str, Path]:
    """Class names, items, layout and image folder of a dataset with a split file."""
    path = find_split_file(row, root)
    if path is None:
        folders = [folder for _, folder in found_places(row, root)]
        if not folders:
            raise absent(row, root, _looked_for(row))
        raise InvalidDatasetError(
            f"{row.title}: '{folders[0]}' is there, but {row.split_file} is not, neither there nor in 'data_splits'.",
            hint=f"Fetch it from {row.split_url} and put it beside the images.",
        )
    splits = read_split_file(path)
    classes = class_names(path, splits)
    if not splits[split]:
        raise InvalidDatasetError(
            f"The split file '{path}' lists no '{split}' images.", hint="Use CoOp's complete file."
        )
    layout, folder = find_images(row, root, [image for image, _, _ in splits[split]])
    return classes, _items(folder, splits[split]), layout, folder


def _items(folder: Path, entries: Iterable[Entry]) -> list[Item]:
    return [Item(id=image, label=label, read=f"{folder}/{image}") for image, label, _ in entries]


def _looked_for(row: DatasetRow) -> list[str]:
    return [row.split_file, *(f"'{place.folder}'" for place in row.places)]
