"""Labelled images of a dataset, read when they are needed, and its class names in label order."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

from poise.errors import InvalidDatasetError, InvalidOptionError
from poise.files import hash_names
from poise.filesystems import open_input, read_whole


class Stored(Protocol):
    """The location of an image in a container, such as a tar shard or a table."""

    def load(self) -> Path | bytes:
        """Return the encoded image, or the path of its file."""


LARGEST = 1 << 30  # bytes of an encoded image
NO_LABEL = -1


@dataclass(frozen=True, slots=True)
class Slice:
    """A range of bytes of a file: a member of an uncompressed tar."""

    path: str
    offset: int
    size: int

    def load(self) -> bytes:
        """Return the bytes. If the file is too short, an error is raised."""
        if self.size > LARGEST:
            raise InvalidDatasetError(
                f"'{self.path}' has a member of {self.size:,} bytes at offset {self.offset}.",
                hint=f"An image has at most {LARGEST:,} bytes.",
            )
        with open_input(self.path) as file:
            file.seek(self.offset)
            data = file.read(self.size)
        if len(data) != self.size:
            raise InvalidDatasetError(
                f"'{self.path}' ends after {len(data)} of {self.size} bytes at offset {self.offset}.",
                hint="The shard was changed or truncated after it was indexed; download it again.",
            )
        return data


@dataclass(frozen=True, slots=True)
class Remote:
    """A file of a remote filesystem."""

    address: str

    def load(self) -> bytes:
        """Return its bytes."""
        return read_whole(self.address, LARGEST)


@dataclass(frozen=True, slots=True)
class Held:
    """An encoded image that was read from its container already."""

    content: bytes

    def load(self) -> bytes:
        """Return the bytes."""
        return self.content


@dataclass(frozen=True, slots=True)
class Item:
    """One image, labelled if it is of a dataset. Items are picklable so that other processes can read them."""

    id: str  #: the same on every machine: the path within the dataset
    label: int  #: or `NO_LABEL`
    read: str | Stored  #: the path of a file, or the location in a container
    others: tuple[int, ...] = ()  #: further labels, where several may apply

    def source(self) -> Path | bytes:
        """Return the argument for `poise.images.read_image`."""
        return Path(self.read) if isinstance(self.read, str) else self.read.load()


@dataclass(frozen=True)
class ImageSet:
    """One split of a dataset."""

    name: str
    classes: tuple[str, ...]  #: names for the template, in label order
    items: tuple[Item, ...]
    template: str = "a photo of a {}."
    augmix: bool = False  #: whether views are mixed with AugMix
    shift: bool = False  #: whether it is a distribution shift of ImageNet
    reference_accuracy: float | None = None  #: published zero-shot accuracy of CLIP ViT-B/16, as a fraction
    split: str = "test"
    folder: str = ""  #: folder of the images
    layout: str = ""  #: published layout of that folder
    parents: tuple[str, ...] = ()  #: the path of each class through a tree, if they are in one
    independent: bool = False  #: whether any number of the classes may apply to an image

    def __len__(self) -> int:
        return len(self.items)

    @property
    def class_hash(self) -> str:
        """Hash of the class names in label order."""
        return hash_names(self.classes)

    def subset(self, count: int, seed: int = 0) -> ImageSet:
        """Return ``count`` images in an order that depends only on ``seed`` and the ids.

        A smaller subset is the beginning of a larger one. The first images of a dataset are not representative, since
        split files list one class after the other.

        Args:
            count: number of images, 1 or more; all of them if there are fewer.
            seed: another one gives another order.
        """
        if count < 1:
            raise InvalidOptionError(f"A subset of {count} images was requested.", hint="Request at least 1.")

        def rank(item: Item) -> bytes:
            return hashlib.blake2b(f"{seed}\n{item.id}".encode(), digest_size=16).digest()

        return replace(self, items=tuple(sorted(self.items, key=rank)[:count]))


def draw_shots(items: Sequence[Item], shots: int, seed: int = 1) -> list[Item]:
    """Draw ``shots`` items per class, or all items of a class that has fewer.

    One generator, seeded once, draws from the classes in the order of their first item. For CoOp's split files this
    gives the same items as CoOp's code with the same seed.
    """
    if shots < 1:
        raise InvalidOptionError(f"shots={shots} is not accepted.", hint="Request at least 1 image per class.")
    by_class: dict[int, list[Item]] = {}
    for item in items:
        by_class.setdefault(item.label, []).append(item)
    generator = random.Random(seed)
    drawn: list[Item] = []
    for members in by_class.values():
        drawn += generator.sample(members, shots) if len(members) >= shots else members
    return drawn
