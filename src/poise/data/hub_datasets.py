"""Hugging Face datasets: ``hf:org/name[:split]``, or a local folder in their format. Needs the package ``datasets``."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from poise.data.edits import tidy
from poise.data.items import NO_LABEL, ImageSet, Item
from poise.errors import InvalidDatasetError, MissingDependencyError, reason_of


@dataclass(frozen=True, slots=True)
class HubRow:
    """An image in a row of a table. The table is opened once per process."""

    spec: str
    column: str
    row: int

    def load(self) -> Path | bytes:
        """Return the encoded image, or the path of its file."""
        cell = open_table(self.spec)[self.row][self.column]
        return Path(cell["path"]) if cell["bytes"] is None else bytes(cell["bytes"])


@lru_cache(maxsize=8)
def open_table(spec: str) -> Any:
    """Return the table of one split without decoding its images."""
    try:
        import datasets
    except ImportError as error:
        raise MissingDependencyError.of("A Hugging Face dataset", "datasets", "data") from error
    source, _, split = spec.partition(":")
    try:
        table = _load(datasets, source, split or "test")
    except (OSError, ValueError, KeyError, datasets.exceptions.DatasetsError) as error:
        raise InvalidDatasetError(
            f"The Hugging Face dataset 'hf:{spec}' can't be opened: {reason_of(error)}.",
            hint="Use hf:org/name:split or hf:/folder:split. Datasets that are not in the cache need the network.",
        ) from error
    for name, feature in table.features.items():
        if isinstance(feature, datasets.Image):
            table = table.cast_column(name, datasets.Image(decode=False))
    return table


def _load(datasets: Any, source: str, split: str) -> Any:
    folder = Path(source).expanduser()
    if (folder / "dataset_dict.json").is_file():
        return datasets.load_from_disk(str(folder))[split]
    if (folder / "state.json").is_file():
        return datasets.load_from_disk(str(folder))
    return datasets.load_dataset(str(folder) if folder.is_dir() else source, split=split)


def _column(features: Any, kind: type, spec: str) -> str:
    columns = [name for name, feature in features.items() if isinstance(feature, kind)]
    if len(columns) != 1:
        raise InvalidDatasetError(
            f"'hf:{spec}' has {len(columns)} columns of type {kind.__name__} ({', '.join(features)}).",
            hint="Exactly one column of images (Image) and one of labels (ClassLabel) is needed.",
        )
    return columns[0]


@dataclass(frozen=True)
class HubShard:
    """Rows of one split of a dataset."""

    spec: str
    column: str
    first: int
    end: int

    @property
    def name(self) -> str:
        """The dataset and its first row."""
        return f"hf:{self.spec}@{self.first}"

    def items(self) -> Iterator[Item]:
        """Yield an item per row."""
        for row in range(self.first, self.end):
            yield Item(str(row), NO_LABEL, HubRow(self.spec, self.column, row))

    def images(self) -> float:
        """Return the number of rows."""
        return self.end - self.first


def hub_shards(spec: str, per_shard: int) -> list[HubShard]:
    """Divide the rows of one split of a dataset with an image column."""
    table = open_table(spec)
    import datasets

    column, rows = _column(table.features, datasets.Image, spec), len(table)
    return [HubShard(spec, column, at, min(at + per_shard, rows)) for at in range(0, rows, per_shard)]


def open_hub(spec: str) -> ImageSet:
    """Open one split of a dataset with an image column and a class-label column."""
    table = open_table(spec)
    import datasets

    image = _column(table.features, datasets.Image, spec)
    label = _column(table.features, datasets.ClassLabel, spec)
    labels = table[label][:]
    unlabelled = next((row for row, value in enumerate(labels) if value is None or value < 0), None)
    if unlabelled is not None:
        raise InvalidDatasetError(f"Row {unlabelled} of 'hf:{spec}' has no label.", hint="Use a labelled split.")
    items = tuple(Item(id=str(row), label=value, read=HubRow(spec, image, row)) for row, value in enumerate(labels))
    classes = tuple(tidy(name) for name in table.features[label].names)
    source, _, split = spec.partition(":")
    return ImageSet(f"hf:{spec}", classes, items, split=split or "test", folder=source, layout="hugging-face")
