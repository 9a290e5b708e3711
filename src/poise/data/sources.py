"""Unlabelled images in shards: what `poise classify` and `poise embed` read, on this machine or in many workers.

A shard is small and picklable. The worker that receives it reads its images; nobody else does. A damaged shard gives
the images before the damage and one `Failure`; one that can't be reached raises an error, and can be tried again.
"""

from __future__ import annotations

import os
import tarfile
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Protocol

from poise.data.items import NO_LABEL, Held, Item, Remote
from poise.data.tars import SUFFIXES, content_of, members
from poise.errors import InvalidDatasetError, InvalidOptionError, MissingDependencyError, UnreachableError, reason_of
from poise.filesystems import folder_of, is_remote, join, name_of, open_input, size_of
from poise.results import Failure
from poise.text import as_utf8, counted

PER_SHARD = 512  # images of a shard that is made of files or rows
BAD_SHARD = "bad_shard"  # code of the row of a damaged shard
_SAMPLED = 8  # shards of a sample
_COUNTED = 1000  # tables that are opened only to count their rows; each may be a request
_MISTAKES = (InvalidOptionError, MissingDependencyError)  # of the user, not of the shard


class Shard(Protocol):
    """A part of a source."""

    @property
    def name(self) -> str:
        """What it is called in rows and messages; the same on every machine."""

    def items(self) -> Iterator[Item]:
        """Yield its images in order; an error if the rest can't be read."""

    def images(self) -> float | None:
        """Return the number of its images, as far as that is known without reading it; None if it is not."""


def read_shard(shard: Shard) -> Iterator[Item | Failure]:
    """Yield the images of a shard, and a `Failure` where it is damaged.

    Raises:
        UnreachableError: The shard can't be reached; another attempt may succeed.
    """
    images = 0
    try:
        for item in shard.items():
            yield item
            images += 1
    except UnreachableError:
        raise
    except (FileNotFoundError, PermissionError) as error:
        raise UnreachableError(f"The shard '{shard.name}' can't be read: {reason_of(error)}.") from error
    except (OSError, ValueError, tarfile.TarError, OverflowError) as error:  # those of pyarrow are ValueErrors
        if error.__class__ in _MISTAKES:
            raise
        message = f"The shard is damaged after {counted(images, 'image')}: {reason_of(error)[:300]}. Make it again."
        yield Failure(shard.name, BAD_SHARD, message)


def read_all(shards: Iterable[Shard]) -> Iterator[Item | Failure]:
    """Yield the images of shards, one shard after the other; see `read_shard`."""
    for shard in shards:
        yield from read_shard(shard)


def count_images(shards: Sequence[Shard]) -> int:
    """Return the number of images; 0 if it is not known without reading them, or without many requests."""
    if len(shards) > _COUNTED and not all(isinstance(shard, FileShard | ListShard | ItemShard) for shard in shards):
        return 0
    try:
        numbers = [shard.images() for shard in shards]
    except (OSError, ValueError):  # a shard that is damaged, or can't be reached, is reported when its turn comes
        return 0
    return 0 if None in numbers else int(sum(number or 0 for number in numbers))


@dataclass(frozen=True)
class FileShard:
    """Image files, by their paths or addresses."""

    name: str
    paths: tuple[str, ...]

    def items(self) -> Iterator[Item]:
        """Yield an item per file."""
        yield from map(_item, self.paths)

    def images(self) -> float:
        """Return the number of files."""
        return len(self.paths)


@dataclass(frozen=True)
class ListShard:
    """Lines of a text file with one path or address per line, relative to the file's folder."""

    path: str
    offset: int  # in bytes
    lines: int

    @property
    def name(self) -> str:
        """The file and the position of its first line."""
        return f"{name_of(self.path)}@{self.offset}"

    def items(self) -> Iterator[Item]:
        """Yield an item per line that is not blank."""
        folder = folder_of(self.path)
        with open_input(self.path) as file:
            file.seek(self.offset)
            for _ in range(self.lines):
                line = os.fsdecode(file.readline()).strip()
                if line:
                    yield _item(line if is_remote(line) or os.path.isabs(line) else join(folder, line))

    def images(self) -> float:
        """Return the number of lines."""
        return self.lines


def _item(path: str) -> Item:
    return Item(path, NO_LABEL, Remote(path) if is_remote(path) else path)


@dataclass(frozen=True)
class TarShard:
    """A tar of images, as webdataset has them: read once, from beginning to end."""

    path: str

    @property
    def name(self) -> str:
        """The name of the file."""
        return name_of(self.path)

    def items(self) -> Iterator[Item]:
        """Yield each image with its bytes."""
        stem = self.name.removesuffix(".tar")
        with open_input(self.path) as file:
            for key, kind, member in members(file):
                if kind in SUFFIXES:
                    yield Item(as_utf8(f"{stem}/{key}"), NO_LABEL, Held(content_of(file, member)))

    def images(self) -> None:
        """Nothing is known before the file is read."""
        return None


@dataclass(frozen=True)
class ItemShard:
    """Items of a dataset, which have labels."""

    name: str
    of: tuple[Item, ...]

    def items(self) -> Iterator[Item]:
        """Yield them."""
        yield from self.of

    def images(self) -> float:
        """Return their number."""
        return len(self.of)


def file_shards(paths: Sequence[Path | str], name: str = "images") -> list[Shard]:
    """Divide files into shards."""
    names = [str(path) for path in paths]
    starts = range(0, len(names), PER_SHARD)
    return [FileShard(f"{name}-{at // PER_SHARD:06d}", tuple(names[at : at + PER_SHARD])) for at in starts]


def item_shards(name: str, items: Sequence[Item]) -> list[Shard]:
    """Divide the items of a dataset into shards."""
    starts = range(0, len(items), PER_SHARD)
    return [ItemShard(f"{name}-{at // PER_SHARD:06d}", tuple(items[at : at + PER_SHARD])) for at in starts]


def list_shards(path: str) -> list[Shard]:
    """Divide the lines of a text file into shards; only their positions are kept."""
    found: list[Shard] = []
    try:
        with open_input(os.path.expanduser(path)) as file:
            offset = at = lines = 0
            for line in file:
                at, lines = at + len(line), lines + 1
                if lines == PER_SHARD:
                    found.append(ListShard(path, offset, lines))
                    offset, lines = at, 0
    except OSError as error:
        raise InvalidDatasetError(
            f"The list 'list:{path}' can't be read: {reason_of(error)}.",
            hint="Give a text file with one path or address of an image per line.",
        ) from error
    if lines:
        found.append(ListShard(path, offset, lines))
    return found


def are_files(shards: Iterable[Shard]) -> bool:
    """Return whether all images are files on this machine, with their paths as ids."""
    return all(isinstance(shard, FileShard) and not any(map(is_remote, shard.paths)) for shard in shards)


def sample(shards: Sequence[Shard], count: int) -> list[Item]:
    """Return about ``count`` images, spread over the shards: a few of each, if there are many.

    >>> [item.id for item in sample([FileShard("a", ("1", "2", "3")), FileShard("b", ("4", "5"))], 3)]
    ['1', '3', '5']
    """
    if all(isinstance(shard, FileShard | ItemShard) for shard in shards):
        items = [item for shard in shards for item in shard.items()]
        return [items[at] for at in _spread(len(items), count)]
    chosen = [shards[at] for at in _spread(len(shards), _SAMPLED)]
    readable = (islice(read_shard(shard), -(-count // len(chosen))) for shard in chosen)
    return [item for part in readable for item in part if isinstance(item, Item)]


def _spread(length: int, count: int) -> list[int]:
    """Return at most ``count`` positions of ``length``, evenly spaced, first and last included."""
    number = min(length, count)
    return [round(at * (length - 1) / max(1, number - 1)) for at in range(number)]


def bytes_of(shards: Iterable[Shard]) -> dict[str, int]:
    """Return the sizes of the files of shards whose images nobody has counted, by the shard's name."""
    paths = ((shard.name, getattr(shard, "path", None)) for shard in shards if shard.images() is None)
    return {name: size for name, path in paths if path and (size := size_of(path))}
