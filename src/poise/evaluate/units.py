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
    """Positions of at most ``limit`` items (0 = all), in the dataset's order.

    Within each class the items are shuffled by a hash of their ids and spread evenly over [0, 1); the ``limit`` lowest
    are taken. So classes appear in proportion to their size, the choice depends on ids and labels alone (not on seeds,
    methods or the file system's order), and a larger limit only adds images.

    >>> choose(["a", "b", "c", "d"], [0, 0, 1, 1], 2) in ([0, 2], [0, 3], [1, 2], [1, 3])
    True
    """
    if limit <= 0 or limit >= len(ids):
        return list(range(len(ids)))
    members: dict[int, list[int]] = defaultdict(list)
    marks = [hashlib.blake2b(name.encode(), digest_size=8).digest() for name in ids]
    for position, label in enumerate(labels):
        members[label].append(position)
    places: list[tuple[float, bytes, int]] = []
    for positions in members.values():
        shuffled = sorted(positions, key=lambda position: marks[position])
        places += [((rank + 0.5) / len(shuffled), marks[position], position) for rank, position in enumerate(shuffled)]
    return sorted(position for _, _, position in sorted(places)[:limit])


def plan(dataset: str, folder: str, items: Sequence[int], seeds: Sequence[int], chunk: int) -> list[Unit]:
    """The units of one dataset, seed by seed. A chunk of 0 keeps each seed's stream whole (ordered methods)."""
    width = chunk or max(1, len(items))
    return [
        Unit(dataset, folder, seed, index, tuple(items[start : start + width]))
        for seed in seeds
        for index, start in enumerate(range(0, len(items), width))
    ]
