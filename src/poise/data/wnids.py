"""ImageNet and its shifts: one folder per class, named by WordNet id or, in ImageNet-V2, by class index.

A folder's label follows from its name, not from its position among the folders, so a missing class or the string order
of ImageNet-V2 (0, 1, 10, 100, ...) does not shift the labels. WordNet ids are timm's, class names those of open_clip.
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
from poise.data.locations import how_to_get, list_images, require_folders
from poise.errors import InvalidDatasetError, MissingDependencyError
from poise.text import counted


@cache
def wordnet_ids(subset: str = "imagenet") -> tuple[str, ...]:
    """Return the WordNet ids of "imagenet", "imagenet_a" or "imagenet_r" in label order."""
    # timm's public ImageNetInfo has no lists for ImageNet-A and ImageNet-R, so its data files are read directly.
    package = find_spec("timm")
    if package is None or not package.submodule_search_locations:
        raise MissingDependencyError.of("ImageNet's class list", "timm")
    path = Path(package.submodule_search_locations[0], "data", "_info", f"{subset}_synsets.txt")
    if not path.is_file():
        raise InvalidDatasetError(f"The installed timm has no class list '{path.name}'.", hint="Update timm.")
    return tuple(path.read_text(encoding="utf-8").split())


def imagenet_names(subset: str = "imagenet") -> tuple[str, ...]:
    """Return the class names of ``subset`` by CLIP's authors, in label order."""
    from open_clip import IMAGENET_CLASSNAMES  # not at the top, because the import takes seconds

    names = dict(zip(wordnet_ids(), IMAGENET_CLASSNAMES, strict=True))
    return tuple(tidy(names[wnid]) for wnid in wordnet_ids(subset))


def label_folders(row: DatasetRow, folder: Path) -> dict[str, int]:
    """Return the label of each class folder in ``folder``, in label order; other folders are ignored."""
    known = {wnid: label for label, wnid in enumerate(wordnet_ids(row.wnids))}
    labels: dict[str, int] = {}
    foreign = []
    for name in sorted(entry.name for entry in os.scandir(folder) if entry.is_dir()):
        if name in known:
            labels[name] = known[name]
        elif row.name == "imagenet-v2" and name.isascii() and name.isdecimal() and int(name) < row.classes:
            labels[name] = int(name)
        elif re.fullmatch(r"n\d{8}", name):
            foreign.append(name)
    if foreign:
        raise InvalidDatasetError(
            f"'{folder}' has {counted(len(foreign), 'class')} not in {row.title} (e.g. '{foreign[0]}').",
            hint="The folder contains another dataset, or a mixture.",
        )
    return dict(sorted(labels.items(), key=lambda pair: pair[1]))


def open_wnids(row: DatasetRow, root: Path, split: str) -> tuple[tuple[str, ...], list[Item], str, Path]:
    """Return class names, items, layout and folder of ImageNet or one of its shifts."""
    part = {"test": "val", "train": "train"}.get(split)
    if part is None or (split != "test" and row.shift):
        raise InvalidDatasetError(
            f"{row.title} has no '{split}' split.", hint="It has 'test'" + ("." if row.shift else " and 'train'.")
        )
    folders = require_folders(row, root, part)
    for place, folder in folders:
        labels = label_folders(row, folder)
        if labels:
            items = [
                Item(id=f"{name}/{image}", label=label, read=f"{folder}/{name}/{image}")
                for name, label in labels.items()
                for image in list_images(folder / name)
            ]
            return imagenet_names(row.wnids), items, place.layout, folder
    kind = "class index or WordNet id" if row.name == "imagenet-v2" else "WordNet id"
    raise InvalidDatasetError(
        f"{row.title}: '{folders[0][1]}' has no folder named by a {kind} such as '{wordnet_ids(row.wnids)[0]}'.",
        hint=f"Sort the images into one folder per class. {how_to_get(row)}",
    )
