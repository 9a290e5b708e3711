"""ImageNet and its shifts: a folder per class, called by WordNet id or (ImageNet-V2) by class index.

A folder's label comes from its name, never from its rank among the folders: a missing class or ImageNet-V2's string
order (0, 1, 10, 100, ...) can't shift the labels. WordNet ids are timm's, names are those of CLIP as in open_clip.
"""

from __future__ import annotations

import os
import re
from functools import cache
from importlib.util import find_spec
from pathlib import Path

from poise.data.catalog import DatasetRow
from poise.data.edits import tidy
from poise.data.items import Item
from poise.data.locations import absent, found_places, how_to_get, list_images
from poise.errors import InvalidDatasetError, MissingDependencyError


@cache
def wordnet_ids(subset: str = "imagenet") -> tuple[str, ...]:
    """The list ``subset`` of timm ("imagenet", "imagenet_a", "imagenet_r"), in label order."""
    # timm's public ImageNetInfo has no lists for ImageNet-A and ImageNet-R, so its data files are read where they lie.
    found = find_spec("timm")
    if found is None or not found.submodule_search_locations:
        raise MissingDependencyError.of("ImageNet's class list", "timm", "data")
    path = Path(found.submodule_search_locations[0], "data", "_info", f"{subset}_synsets.txt")
    if not path.is_file():
        raise InvalidDatasetError(f"The installed timm has no class list '{path.name}'.", hint="Update timm.")
    return tuple(path.read_text(encoding="utf-8").split())


@cache
def _clip_names() -> dict[str, str]:
    from open_clip import IMAGENET_CLASSNAMES  # here, because the import takes seconds

    return dict(zip(wordnet_ids(), IMAGENET_CLASSNAMES, strict=True))


def imagenet_names(subset: str = "imagenet") -> tuple[str, ...]:
    """The names that CLIP's authors give to the classes of ``subset``, in label order."""
    return tuple(tidy(_clip_names()[wnid]) for wnid in wordnet_ids(subset))


def label_folders(row: DatasetRow, folder: Path) -> dict[str, int]:
    """Label of each class folder in ``folder``, in label order; folders that can't be classes are left out."""
    labels = {wnid: label for label, wnid in enumerate(wordnet_ids(row.wnids))}
    found: dict[str, int] = {}
    foreign = []
    for name in sorted(entry.name for entry in os.scandir(folder) if entry.is_dir()):
        if name in labels:
            found[name] = labels[name]
        elif row.name == "imagenet-v2" and name.isascii() and name.isdecimal() and int(name) < row.classes:
            found[name] = int(name)
        elif re.fullmatch(r"n\d{8}", name):
            foreign.append(name)
    if foreign:
        raise InvalidDatasetError(
            f"'{folder}' holds {len(foreign)} classes that are not in {row.title} (e.g. '{foreign[0]}').",
            hint="Another dataset lies in this folder, or several are mixed.",
        )
    return dict(sorted(found.items(), key=lambda pair: pair[1]))


def open_wnids(row: DatasetRow, root: Path, split: str) -> tuple[tuple[str, ...], list[Item], str, Path]:
    """Class names, items, layout and folder of ImageNet or a shift of it."""
    part = {"test": "val", "train": "train"}.get(split)
    if part is None or (split != "test" and row.shift):
        raise InvalidDatasetError(
            f"{row.title} has no '{split}' split.", hint="It has 'test'" + ("." if row.shift else " and 'train'.")
        )
    folders = list(found_places(row, root, part))
    if not folders:
        raise absent(row, root, [f"'{place.folder.format(split=part)}'" for place in row.places])
    for place, folder in folders:
        labels = label_folders(row, folder)
        if labels:
            return imagenet_names(row.wnids), _items(folder, labels), place.layout, folder
    kind = "class index or WordNet id" if row.name == "imagenet-v2" else "WordNet id"
    raise InvalidDatasetError(
        f"{row.title}: '{folders[0][1]}' has no folder called by a {kind} such as '{wordnet_ids(row.wnids)[0]}'.",
        hint=f"Sort the images into one folder per class. {how_to_get(row)}",
    )


def _items(folder: Path, labels: dict[str, int]) -> list[Item]:
    return [
        Item(id=f"{name}/{image}", label=label, read=f"{folder}/{name}/{image}")
        for name, label in labels.items()
        for image in list_images(folder / name)
    ]
