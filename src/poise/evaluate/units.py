"""Units of work: (dataset, seed, chunk of images), with ids that stay the same from run to run."""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from poise.evaluate.streams import BY_CLASS, stream


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
        """The path of the unit's file in the run's folder, without extension."""
        return f"{self.folder}/seed{self.seed}/part-{self.chunk:05d}"

    @property
    def path(self) -> str:
        """The unit's file, relative to the run's folder."""
        return f"{self.id}.parquet"


def choose(ids: Sequence[str], labels: Sequence[int], limit: int) -> list[int]:
    """Return the positions of at most ``limit`` items (0 = all), in the order in which they are computed.

    Within each class the items are shuffled by a hash of their ids and spread evenly over [0, 1); low ones come first.
    So classes appear in proportion to their size in every prefix of the list, a larger limit only adds images, and the
    order depends only on ids and labels: not on seeds, methods or the file system.

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


@dataclass(frozen=True)
class Plan:
    """How a run's images are divided into units. It is stored with the run, so that all counts of units agree."""

    seeds: tuple[int, ...]
    chunk: int
    ordered: bool = False  # answers depend on earlier images: each seed's images are one unit, in the order of `stream`
    by_class: bool = False  # of a stream: the images of a class follow each other

    @classmethod
    def of(cls, header: Mapping[str, Any]) -> Plan:
        """Return the plan of a stored run."""
        config = header["config"]
        by_class = config.get("order") == BY_CLASS
        return cls(tuple(config["seeds"]), int(config["chunk"]), bool(header.get("ordered", False)), by_class)

    def units(
        self,
        dataset: str,
        folder: str,
        items: Sequence[int],
        ids: Sequence[str] | None = None,
        labels: Sequence[int] | None = None,
    ) -> list[Unit]:
        """Return the units of one dataset, seed by seed; ``ids`` and ``labels`` are needed where order matters."""
        width = max(1, len(items)) if self.ordered else self.chunk
        units = []
        for seed in self.seeds:
            classes = labels if self.by_class else None
            order = stream(ids, items, seed, classes) if self.ordered and ids is not None else items
            parts = [tuple(order[first : first + width]) for first in range(0, len(order), width)]
            units += [Unit(dataset, folder, seed, index, part) for index, part in enumerate(parts)]
        return units
