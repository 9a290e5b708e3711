"""Datasets with published lists of their images.

CoOp's split files are ``{"train" | "val" | "test": [[path, label, class name], ...]}``. FGVC Aircraft has text files:
``variants.txt`` with the classes in order, and ``images_variant_*.txt`` with one ``image variant`` per line.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path, PurePosixPath

from poise.data.catalog import DatasetRow
from poise.data.edits import tidy
from poise.data.items import Item
from poise.data.locations import existing_folders, find_split_file, how_to_get, require_folders
from poise.data.text_files import read_lines
from poise.errors import InvalidDatasetError, reason_of
from poise.files import read_bounded
from poise.text import counted

Entry = tuple[str, int, str]  # path below the image folder, label, class name
SPLITS = ("train", "val", "test")


def read_split_file(path: Path) -> dict[str, list[Entry]]:
    """Read and check the three lists of a split file."""
    try:
        content = json.loads(read_bounded(path))
    except (OSError, ValueError, RecursionError) as error:
        raise InvalidDatasetError(
            f"The split file '{path}' can't be read: {reason_of(error)}.", hint="Fetch it again."
        ) from error
    if not isinstance(content, dict) or not all(isinstance(content.get(name), list) for name in SPLITS):
        raise InvalidDatasetError(
            f"The split file '{path}' has no lists 'train', 'val' and 'test'.", hint="Fetch it again."
        )
    return {name: [_entry(path, entry) for entry in content[name]] for name in SPLITS}


def _entry(path: Path, entry: object) -> Entry:
    if not (isinstance(entry, list) and len(entry) == 3 and isinstance(entry[0], str) and isinstance(entry[2], str)):
        raise InvalidDatasetError(f"The split file '{path}' has {entry!r}, which is not [path, label, class name].")
    image, label, name = entry
    if isinstance(label, bool) or not isinstance(label, int):
        raise InvalidDatasetError(f"The split file '{path}' gives '{image}' the label {label!r}; labels are integers.")
    relative = image.lstrip("/")
    if ".." in PurePosixPath(relative).parts or "\\" in relative:
        raise InvalidDatasetError(f"The split file '{path}' leads out of the image folder: '{image}'.")
    return relative, label, tidy(name)


def class_names(path: Path, splits: dict[str, list[Entry]]) -> tuple[str, ...]:
    """Return the class names in label order; every label from 0 on must have exactly one name."""
    names: dict[int, str] = {}
    for entries in splits.values():
        for image, label, name in entries:
            if names.setdefault(label, name) != name:
                raise InvalidDatasetError(
                    f"The split file '{path}' calls class {label} both '{names[label]}' and '{name}' ('{image}')."
                )
    if gaps := [label for label in range(len(names)) if label not in names]:
        raise InvalidDatasetError(
            f"The split file '{path}' has {counted(len(names), 'class')}, but no image of class {gaps[0]}.",
            hint="Labels are whole numbers from 0 on, without gaps.",
        )
    return tuple(names[label] for label in range(len(names)))


def find_images(row: DatasetRow, root: Path, images: Sequence[str]) -> tuple[str, Path]:
    """Return the layout and folder that contain the most of a sample of the listed images."""
    sample = images[:: max(1, len(images) // 8)]
    candidates = [
        (sum((folder / image).is_file() for image in sample), place.layout, folder)
        for place, folder in existing_folders(row, root)
    ]
    hits, layout, folder = max(candidates, key=lambda candidate: candidate[0], default=(0, "", root))
    if not hits:
        tried = ", ".join(f"'{place.folder}'" for place in row.places)
        raise InvalidDatasetError(
            f"None of the images that {row.split_file} lists was found (e.g. '{images[0]}') below {tried} of '{root}'.",
            hint=how_to_get(row),
        )
    return layout, folder


def open_split(row: DatasetRow, root: Path, split: str) -> tuple[tuple[str, ...], list[Item], str, Path]:
    """Return class names, items, layout and image folder of a dataset with a split file."""
    path = find_split_file(row, root)
    if path is None:
        _, folder = require_folders(row, root)[0]
        raise InvalidDatasetError(
            f"{row.title}: '{folder}' exists, but {row.split_file} is not there and not in 'data_splits'.",
            hint=f"Fetch it from {row.split_url} and put it beside the images.",
        )
    splits = read_split_file(path)
    classes = class_names(path, splits)
    if not splits[split]:
        raise InvalidDatasetError(f"The split file '{path}' lists no '{split}' images.", hint="Use CoOp's file.")
    layout, folder = find_images(row, root, [image for image, _, _ in splits[split]])
    items = [Item(id=image, label=label, read=f"{folder}/{image}") for image, label, _ in splits[split]]
    return classes, items, layout, folder


def open_variants(row: DatasetRow, root: Path, split: str) -> tuple[tuple[str, ...], list[Item], str, Path]:
    """Return class names, items, layout and folder of FGVC Aircraft."""
    listing = f"images_variant_{split}.txt"
    folders = require_folders(row, root)
    for place, folder in folders:
        if (folder / "variants.txt").is_file() and (folder / listing).is_file():
            variants = read_lines(folder / "variants.txt")
            return tuple(map(tidy, variants)), _variant_items(folder, listing, variants), place.layout, folder
    raise InvalidDatasetError(
        f"{row.title}: '{folders[0][1]}' has no variants.txt or no {listing}.", hint=how_to_get(row)
    )


def _variant_items(folder: Path, listing: str, variants: list[str]) -> list[Item]:
    labels = {variant: label for label, variant in enumerate(variants)}
    items = []
    for line in read_lines(folder / listing):
        image, _, variant = line.partition(" ")
        if variant not in labels or not image.isalnum():
            raise InvalidDatasetError(
                f"'{folder / listing}' has the line '{line}', which is not 'image variant'.", hint="Fetch it again."
            )
        items.append(Item(id=f"images/{image}.jpg", label=labels[variant], read=f"{folder}/images/{image}.jpg"))
    return items
