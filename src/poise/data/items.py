"""What a dataset is to the rest of poise: class names in label order, and images read when they are needed."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

from poise.errors import InvalidDatasetError, InvalidOptionError
from poise.storage import hash_names


class Stored(Protocol):
    """An image inside something larger: a tar shard, a table."""

    def load(self) -> Path | bytes:
        """The encoded image, or the file that holds it."""


@dataclass(frozen=True, slots=True)
class Slice:
    """A stretch of bytes of a file: a member of an uncompressed tar."""

    path: str
    offset: int
    size: int

    def load(self) -> bytes:
        """The bytes; a file that has become shorter is an error, never a short read."""
        with open(self.path, "rb") as file:
            file.seek(self.offset)
            data = file.read(self.size)
        if len(data) != self.size:
            raise InvalidDatasetError(
                f"'{self.path}' ends after {len(data)} of {self.size} bytes at offset {self.offset}.",
                hint="The shard has changed or was cut off since it was indexed; fetch it again.",
            )
        return data


@dataclass(frozen=True, slots=True)
class Item:
    """One labelled image: cheap to hold by the ten thousand, and picklable for loading in other processes."""

    id: str  # the same on every machine: the path within the dataset
    label: int
    read: str | Stored  # a file's path, or where in a container the image lies

    def source(self) -> Path | bytes:
        """What ``poise.images.read_image`` takes."""
        return Path(self.read) if isinstance(self.read, str) else self.read.load()


@dataclass(frozen=True)
class ImageSet:
    """A dataset split that is ready to be classified."""

    name: str
    classes: tuple[str, ...]  # as they enter the template, in label order
    items: tuple[Item, ...]
    template: str = "a photo of a {}."
    augmix: bool = False  # whether the views of this set are mixed with AugMix
    shift: bool = False  # a distribution shift of ImageNet
    reference_accuracy: float | None = None  # published, zero-shot, CLIP ViT-B/16, as a fraction
    split: str = "test"
    folder: str = ""  # where the images were found
    layout: str = ""  # which published arrangement was found there

    def __len__(self) -> int:
        return len(self.items)

    @property
    def class_hash(self) -> str:
        """The hash of the class names in label order."""
        return hash_names(self.classes)

    def subset(self, count: int, seed: int = 0) -> ImageSet:
        """``count`` images in an order that depends on ``seed`` and the ids alone; a smaller subset is its beginning.

        Split files list class after class, so the first images of a set say nothing about the set.
        """
        if count < 1:
            raise InvalidOptionError(f"A subset of {count} images was asked for.", hint="Ask for at least 1.")

        def rank(item: Item) -> bytes:
            return hashlib.blake2b(f"{seed}\n{item.id}".encode(), digest_size=16).digest()

        return replace(self, items=tuple(sorted(self.items, key=rank)[:count]))
