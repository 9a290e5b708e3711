"""Hugging Face datasets: ``hf:org/name[:split]``, or a local folder in their format. Needs the package ``datasets``."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from poise.data.edits import tidy
from poise.data.items import ImageSet, Item
from poise.errors import InvalidDatasetError, MissingDependencyError


@dataclass(frozen=True, slots=True)
class HubRow:
    """An image in a row of a table; the table is opened once per process."""

    spec: str
    column: str
    row: int

    def load(self) -> Path | bytes:
        """The encoded image, or the file that holds it."""
        cell = open_table(self.spec)[self.row][self.column]
        if cell["bytes"] is not None:
            return bytes(cell["bytes"])
        return Path(cell["path"])


def parse_spec(spec: str) -> tuple[str, str]:
    """The id or path, and the split ("test" where none is given).

    >>> parse_spec("org/name:validation")
    ('org/name', 'validation')
    """
    source, _, split = spec.partition(":")
    return source, split or "test"


@lru_cache(maxsize=8)
def open_table(spec: str) -> Any:
    """The table of one split, with its images left encoded."""
    try:
        import datasets
    except ImportError as problem:
        raise MissingDependencyError.of("A Hugging Face dataset", "datasets", "data") from problem
    source, split = parse_spec(spec)
    try:
        table = _load(datasets, source, split)
    except (OSError, ValueError, KeyError, datasets.exceptions.DatasetsError) as problem:
        raise InvalidDatasetError(
            f"The Hugging Face dataset 'hf:{spec}' can't be opened: {problem}.",
            hint="Give hf:org/name:split or hf:/folder:split; an id needs the network or a filled cache.",
        ) from problem
    for name, feature in table.features.items():
        if isinstance(feature, datasets.Image):
            table = table.cast_column(name, datasets.Image(decode=False))
    return table


def _load(datasets: Any, source: str, split: str) -> Any:
    folder = Path(source).expanduser()
    if not folder.is_dir():
        return datasets.load_dataset(source, split=split)
    if (folder / "dataset_dict.json").is_file():
        return datasets.load_from_disk(str(folder))[split]
    if (folder / "state.json").is_file():
        return datasets.load_from_disk(str(folder))
    return datasets.load_dataset(str(folder), split=split)


def _column(features: Any, kind: type, spec: str) -> str:
    found = [name for name, feature in features.items() if isinstance(feature, kind)]
    if len(found) != 1:
        raise InvalidDatasetError(
            f"'hf:{spec}' has {len(found)} columns of type {kind.__name__} ({', '.join(features)}).",
            hint="Exactly one column of images (Image) and one of labels (ClassLabel) is needed.",
        )
    return found[0]


def open_hub(spec: str) -> ImageSet:
    """All rows of one split of a dataset with an image column and a class-label column."""
    table = open_table(spec)
    import datasets

    image = _column(table.features, datasets.Image, spec)
    label = _column(table.features, datasets.ClassLabel, spec)
    labels = table[label][:]
    unlabelled = next((row for row, value in enumerate(labels) if value is None or value < 0), None)
    if unlabelled is not None:
        raise InvalidDatasetError(
            f"Row {unlabelled} of 'hf:{spec}' has no label.", hint="Choose a split that is labelled."
        )
    items = tuple(Item(id=str(row), label=value, read=HubRow(spec, image, row)) for row, value in enumerate(labels))
    classes = tuple(tidy(name) for name in table.features[label].names)
    source, split = parse_spec(spec)
    return ImageSet(name=f"hf:{spec}", classes=classes, items=items, split=split, folder=source, layout="hugging-face")
