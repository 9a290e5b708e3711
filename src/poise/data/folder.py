"""Any tree with one folder per class: ``folder:/path``."""

from __future__ import annotations

from pathlib import Path

from poise.data.class_trees import find_tree
from poise.data.edits import tidy
from poise.data.items import ImageSet, Item
from poise.data.locations import list_images
from poise.data.text_files import read_lines
from poise.errors import InvalidDatasetError
from poise.images.find import SUFFIXES
from poise.text import counted

_SPLITS = {"train", "training", "val", "valid", "validation", "test"}


def read_class_file(path: Path) -> dict[str, str]:
    """Read a file with one ``folder class name`` per line, in label order."""
    lines = [line.split(maxsplit=1) for line in read_lines(path)]
    unnamed = [line[0] for line in lines if len(line) < 2]
    if unnamed:
        raise InvalidDatasetError(
            f"'{path}' gives the folder '{unnamed[0]}' no name.", hint="Each line is: folder name."
        )
    return {folder: tidy(name) for folder, name in lines}


def open_folder(path: str) -> ImageSet:
    """Open a folder with one subfolder per class.

    The classes are the subfolders in alphabetical order, unless ``classnames.txt`` gives their order and names. A file
    ``tree.csv`` gives their paths through a tree.
    """
    root = Path(path).expanduser()
    if not root.is_dir():
        raise InvalidDatasetError(
            f"The folder '{root}' does not exist.", hint="Use folder:/path, with a folder per class."
        )
    folders = sorted(entry.name for entry in root.iterdir() if entry.is_dir() and not entry.name.startswith("."))
    if folders and {name.lower() for name in folders} <= _SPLITS:
        raise InvalidDatasetError(
            f"The folders in '{root}' are splits, not classes: {', '.join(folders)}.",
            hint=f"Name one of them, such as folder:{root / folders[0]}.",
        )
    class_file = root / "classnames.txt"
    names = read_class_file(class_file) if class_file.is_file() else {name: tidy(name) for name in folders}
    unnamed = [name for name in folders if name not in names]
    if unnamed:
        raise InvalidDatasetError(
            f"'{class_file}' has no line for the folder '{unnamed[0]}'.", hint="Add it, or move the folder."
        )
    items = [
        Item(id=f"{name}/{image}", label=label, read=f"{root}/{name}/{image}")
        for label, name in enumerate(names)
        for image in (list_images(root / name) if name in folders else [])
    ]
    if not items:
        raise InvalidDatasetError(f"No images in folders below '{root}'.", hint="Put each class into its own folder.")
    if len(names) == 1 and (below := _only_folders(root / folders[0])):
        raise InvalidDatasetError(
            f"The only class in '{root}' would be '{folders[0]}', which contains {counted(below, 'folder')}, no image.",
            hint=f"Did you mean folder:{root / folders[0]}?",
        )
    return ImageSet(
        f"folder:{path}",
        tuple(names.values()),
        tuple(items),
        folder=str(root),
        layout="folder",
        parents=find_tree(root, root),
    )


def _only_folders(folder: Path) -> int:
    """Return the number of folders in a folder that has no image beside them."""
    entries = [entry for entry in folder.iterdir() if not entry.name.startswith(".")]
    images = any(entry.suffix.lower() in SUFFIXES for entry in entries if entry.is_file())
    return 0 if images else sum(entry.is_dir() for entry in entries)
