"""Features of images that were encoded once: what `poise embed` writes, and every command answers from.

A folder has ``_manifest.json`` (which model, preprocessing and views) and parts in Parquet, one per shard: the id of
each image, its label if it has one, a hash of its pixels, and the unit features of its views in float16. A receipt in
``_ledger/`` says that a part is complete.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from poise.data.items import NO_LABEL, ImageSet, Item
from poise.data.tables import count_rows
from poise.errors import InvalidDatasetError, reason_of
from poise.filesystems import is_remote, join, name_of, open_input
from poise.parts import MANIFEST, finished_parts, read_manifest

FORMAT = "poise-features/1"
FACTS = b"poise"  # in the metadata of a part
_MAX_VIEWS, _MAX_WIDTH = 4096, 1 << 16
_READ = ["source", "key", "notes", "error_code", "error_message", "features"]
_OPEN = 16  # parts in memory, of readers that ask for single rows


@dataclass(frozen=True)
class Made:
    """How features were made.

    Attributes:
        model: name of the model.
        fingerprint: of the model, which covers its weights and preprocessing.
        recipe: views, seed, augmix, crops and engine of the views.
    """

    model: str
    fingerprint: str
    recipe: Mapping[str, Any]

    @property
    def views(self) -> int:
        """Number of stored views."""
        return int(self.recipe["views"])

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> Made:
        """Read plain values."""
        made = cls(str(values["model"]), str(values["fingerprint"]), dict(values["recipe"]))
        if not 1 <= made.views <= _MAX_VIEWS:
            raise ValueError(f"it has {made.views} views")
        return made


@dataclass(frozen=True, eq=False)
class FeatureBlock:
    """The images of a part, or of a piece of it. Images without features have zeros and a code and message."""

    sources: Sequence[str]
    keys: Sequence[str]  # hashes of the pixels
    notes: Sequence[Sequence[str]]  # changes beyond decoding when an image was read
    failures: Sequence[tuple[str, str] | None]
    features: np.ndarray  # [N, V, D] float16
    made: Made


@dataclass(frozen=True)
class Stored:
    """What a folder of features says about itself.

    Attributes:
        folder: where it is.
        made: how its features were made.
        classes: names of the labels, if the images have labels.
    """

    folder: str
    made: Made
    classes: tuple[str, ...] = ()

    def parts(self) -> list[str]:
        """Return the addresses of the finished parts, in order."""
        return [join(self.folder, name) for name in finished_parts(self.folder)]


def has_features(folder: str) -> bool:
    """Return whether a folder was written by `poise embed`."""
    try:
        return (read_manifest(folder) or {}).get("format") == FORMAT
    except InvalidDatasetError:
        return False


def read_stored(folder: str) -> Stored:
    """Read the manifest of a folder of features."""
    found = read_manifest(folder)
    try:
        if found is None:
            raise ValueError(f"there is no '{MANIFEST}'")
        if found.get("format") != FORMAT:
            raise ValueError(f"the format in '{MANIFEST}' is {str(found.get('format'))[:40]!r}, not '{FORMAT}'")
        return Stored(folder, Made.of(found), tuple(map(str, found.get("classes") or ())))
    except (ValueError, KeyError, TypeError) as error:
        raise InvalidDatasetError(
            f"'{folder}' has no features: {reason_of(error)}.", hint="Give the folder that `poise embed` wrote."
        ) from None


def read_blocks(part: str, rows: int = 8192) -> Iterator[FeatureBlock]:
    """Yield the images of a part, in pieces of at most ``rows``."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    with pq.ParquetFile(part if not is_remote(part) else open_input(part), memory_map=not is_remote(part)) as file:
        made, shape = read_facts((file.schema_arrow.metadata or {}).get(FACTS), f"'{part}'")
        for batch in file.iter_batches(rows, columns=_READ):
            column = batch.column("features")
            if not pa.types.is_fixed_size_list(column.type) or column.type.list_size != shape[0] * shape[1]:
                raise InvalidDatasetError(f"'{part}' has features of the type {column.type}, not {shape}.")
            values = np.asarray(column.flatten().to_numpy(zero_copy_only=False), dtype=np.float16)
            codes, errors = batch.column("error_code").to_pylist(), batch.column("error_message").to_pylist()
            yield FeatureBlock(
                batch.column("source").to_pylist(),
                batch.column("key").to_pylist(),
                batch.column("notes").to_pylist(),
                [None if code is None else (code, error) for code, error in zip(codes, errors, strict=True)],
                values.reshape(len(batch), *shape),
                made,
            )


def read_facts(text: bytes | str | None, place: str) -> tuple[Made, tuple[int, int]]:
    """Return how features were made, and the shape (V, D) of those of an image.

    Args:
        text: what `write_facts` returned.
        place: where it was found, for messages.
    """
    try:
        found = json.loads(text or "")
        views, width = map(int, found["shape"])
        if not (1 <= views <= _MAX_VIEWS and 1 <= width <= _MAX_WIDTH):
            raise ValueError("its shape can't be used")
        return Made.of(found), (views, width)
    except (KeyError, ValueError, TypeError, AttributeError, RecursionError) as error:
        raise InvalidDatasetError(
            f"{place} has no features of poise: {reason_of(error)}.", hint="Give what `poise embed` wrote."
        ) from None


def write_facts(made: Made, views: int, width: int) -> str:
    """Return how features were made, and their shape, as text."""
    return json.dumps({**asdict(made), "shape": [views, width]})


@lru_cache(maxsize=_OPEN)
def whole_block(part: str) -> FeatureBlock:
    """Return all images of a part."""
    blocks = list(read_blocks(part))
    return FeatureBlock(
        [name for block in blocks for name in block.sources],
        [key for block in blocks for key in block.keys],
        [notes for block in blocks for notes in block.notes],
        [failure for block in blocks for failure in block.failures],
        np.concatenate([block.features for block in blocks]),
        blocks[0].made,
    )


class StoredRow(ABC):
    """An image of which there are features."""

    __slots__ = ()
    row: int  # of its block

    @abstractmethod
    def block(self) -> FeatureBlock:
        """Return features, of this image and perhaps of others."""

    def load(self) -> bytes:
        """Raise an error: there is no image any more."""
        raise InvalidDatasetError("Features are stored, not the image.", hint="Give the images themselves.")


@dataclass(frozen=True, slots=True)
class FeatureRow(StoredRow):
    """An image in a part of features."""

    part: str
    row: int

    def block(self) -> FeatureBlock:
        """Return the part, which is read once per process."""
        return whole_block(self.part)


@dataclass(frozen=True)
class FeatureShard:
    """One part of features."""

    path: str

    @property
    def name(self) -> str:
        """The name of the file."""
        return name_of(self.path)

    def items(self) -> Iterator[Item]:
        """Yield an item per image."""
        if not self.images():
            return
        for row, source in enumerate(whole_block(self.path).sources):
            yield Item(source, NO_LABEL, FeatureRow(self.path, row))

    def images(self) -> float:
        """Return the number of rows."""
        return count_rows(self.path)


def feature_shards(folder: str) -> list[FeatureShard]:
    """Return the parts of a folder of features."""
    return [FeatureShard(part) for part in read_stored(folder).parts()]


def open_features(folder: str) -> ImageSet:
    """Open features of labelled images as a dataset."""
    import pyarrow.parquet as pq

    stored = read_stored(folder)
    if not stored.classes:
        raise InvalidDatasetError(
            f"The features in '{folder}' have no labels.", hint="Use `poise embed --labelled` on a dataset."
        )
    items = []
    for part in stored.parts():
        with open_input(part) as stream:
            table = pq.read_table(stream, columns=["source", "label"])
        names, labels = (table.column(name).to_pylist() for name in ("source", "label"))
        for row, (name, label) in enumerate(zip(names, labels, strict=True)):
            if not 0 <= label < len(stored.classes):
                raise InvalidDatasetError(f"'{name}' in '{part}' has the label {label}.", hint="Make it again.")
            items.append(Item(name, label, FeatureRow(part, row)))
    return ImageSet(f"features:{folder}", stored.classes, tuple(items), folder=folder, layout="features")


def feature_table(images: Sequence[Mapping[str, Any]], features: np.ndarray, made: Made) -> Any:
    """Return the rows of a part.

    Args:
        images: source, label, key, notes, code and error of each image.
        features: unit features [N, V, D]; zeros for images that have none.
        made: how they were made.
    """
    import pyarrow as pa

    views, width = features.shape[1:]
    flat = pa.array(np.ascontiguousarray(features, dtype=np.float16).reshape(-1))
    kinds = dict.fromkeys(("source", "key", "error_code", "error_message"), pa.string())
    kinds |= {"label": pa.int64(), "notes": pa.list_(pa.string())}
    columns = {name: pa.array([image[name] for image in images], kind) for name, kind in kinds.items()}
    columns["features"] = pa.FixedSizeListArray.from_arrays(flat, views * width)
    return pa.table(columns).replace_schema_metadata({FACTS: write_facts(made, views, width)})
