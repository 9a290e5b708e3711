"""Units of work: (dataset, seed, chunk of images), with ids that stay the same from run to run."""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Unit:
    """The images ``items`` (positions in the dataset) under one seed, for all methods: one file of records."""

    dataset: str
    folder: str  # the dataset's name as a folder name
    seed: int
    chunk: int
    items: tuple[int, ...]

    @property
    def id(self) -> str:
        """Where the unit's file lies in the run's folder, without the ending."""
        return f"{self.folder}/seed{self.seed}/part-{self.chunk:05d}"

    @property
    def path(self) -> str:
        """The unit's file, relative to the run's folder."""
        return f"{self.id}.parquet"


def choose(ids: Sequence[str], labels: Sequence[int], limit: int) -> list[int]:
    """Positions of at most ``limit`` items (0 = all), in the order in which they are done.

    Within each class the items are shuffled by a hash of their ids and spread evenly over [0, 1); low ones come first.
    So classes appear in proportion to their size in every beginning of the list, a larger limit only adds images, and
    the order depends on ids and labels alone: not on seeds, methods or the file system.

    >>> labels = [0, 0, 1, 1]
    >>> sorted(labels[position] for position in choose(["a", "b", "c", "d"], labels, 2))
    [0, 1]
    """
    members: dict[int, list[int]] = defaultdict(list)
    marks = [hashlib.blake2b(name.encode(), digest_size=8).digest() for name in ids]
    for position, label in enumerate(labels):
        members[label].append(position)
    places: list[tuple[float, bytes, int]] = []
    for positions in members.values():
        shuffled = sorted(positions, key=lambda position: marks[position])
        places += [((rank + 0.5) / len(shuffled), marks[position], position) for rank, position in enumerate(shuffled)]
    ordered = [position for _, _, position in sorted(places)]
    return ordered[:limit] if limit > 0 else ordered


def plan(dataset: str, folder: str, items: Sequence[int], seeds: Sequence[int], chunk: int) -> list[Unit]:
    """The units of one dataset, seed by seed. A chunk of 0 keeps each seed's stream whole (ordered methods)."""
    width = chunk or max(1, len(items))
    return [
        Unit(dataset, folder, seed, index, tuple(items[start : start + width]))
        for seed in seeds
        for index, start in enumerate(range(0, len(items), width))
    ]
