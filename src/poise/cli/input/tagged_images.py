"""Images with any number of labels each, as users have them: a CSV file, folders of tags, or JSON in COCO's form."""

from __future__ import annotations

import csv
import io
import itertools
import json
from pathlib import Path
from typing import Any

from poise.cli.input.labelled_images import MAX_ROWS, read_labelled
from poise.errors import InvalidDatasetError, reason_of
from poise.files import read_bounded

SEPARATOR = ";"  # between the labels of one image
_HINT = (
    "Give a folder with one subfolder per label (copies of an image count once), a CSV file whose first line is "
    "path,labels with labels such as cat;indoor, or a JSON file in COCO's form."
)
Tagged = tuple[list[Path], list[list[str]], list[str]]  # paths, the labels of each image, and all labels in order


def read_tagged(images: Path) -> Tagged:
    """Return the paths of the images, the labels of each, and all labels."""
    if images.is_dir():
        paths, truth, known = read_labelled(images)
        return paths, [[label] for label in truth], known
    try:
        text = read_bounded(images).decode("utf-8-sig")
        found = _coco(json.loads(text)) if images.suffix.lower() == ".json" else _rows(text)
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError, csv.Error) as problem:
        reason = f"{problem} is missing" if isinstance(problem, KeyError) else reason_of(problem)
        raise InvalidDatasetError(f"'{images}' can't be read as labelled images: {reason}.", hint=_HINT) from None
    if not found:
        raise InvalidDatasetError(f"'{images}' has no images.", hint=_HINT)
    known = list(dict.fromkeys(label for labels in found.values() for label in labels))
    return [images.parent / name for name in found], list(found.values()), known


def _rows(text: str) -> dict[str, list[str]]:
    """Return the labels by path, of a table with the columns path and labels, or path and label; rows add up."""
    reader = csv.DictReader(io.StringIO(text, newline=""))
    column = "labels" if "labels" in (reader.fieldnames or ()) else "label"
    found: dict[str, list[str]] = {}
    for number, row in enumerate(itertools.islice(reader, MAX_ROWS + 1), start=2):
        path, labels = row["path"], row[column] or ""
        if not (path or "").strip() or number > MAX_ROWS + 1:
            raise ValueError(f"line {number} has no path" if number <= MAX_ROWS + 1 else f"more than {MAX_ROWS:,} rows")
        given = [label.strip() for label in labels.split(SEPARATOR) if label.strip()]
        found[path] = list(dict.fromkeys([*found.get(path, []), *given]))
    return found


def _coco(values: Any) -> dict[str, list[str]]:
    """Return the labels by path, of COCO's form: images, categories and annotations; boxes are not read."""
    names = {row["id"]: str(row["name"]) for row in values["categories"]}
    files = {row["id"]: str(row["file_name"]) for row in values["images"]}
    found: dict[str, dict[str, None]] = {file: {} for file in files.values()}
    for row in values["annotations"]:
        if row["image_id"] not in files or row["category_id"] not in names:
            raise ValueError("an annotation names an image or a category that does not exist")
        found[files[row["image_id"]]][names[row["category_id"]]] = None
    return {file: list(labels) for file, labels in found.items()}
