"""What a run is going to do, without a model: its methods, datasets, images and units."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from poise.data import ImageSet
from poise.data.class_trees import class_tree
from poise.errors import InvalidDatasetError, InvalidOptionError
from poise.evaluate.config import RunConfig
from poise.evaluate.held_out import remaining
from poise.evaluate.resolve import is_ordered, open_set, resolve
from poise.evaluate.storage.header import header
from poise.evaluate.streams import BY_CLASS
from poise.evaluate.units import Plan, Unit, choose
from poise.methods import Method
from poise.text import file_name

_MOST = {"cuda": 128, "cpu": 16}  # images of a chunk, if their number is not configured
_SHARE = 20  # a chunk is at most so small a part of a run, rounded up to whole batches


@dataclass(frozen=True)
class PreparedRun:
    """A run whose names are resolved on this machine.

    Attributes:
        config: the configuration, resolved.
        methods: its methods.
        sets: the datasets that could be opened, by their configured names.
        chosen: the positions of the images that take part, by dataset.
        missing: why the other datasets could not be opened.
    """

    config: RunConfig
    methods: Sequence[Method]
    sets: Mapping[str, ImageSet]
    chosen: Mapping[str, Sequence[int]]
    missing: Mapping[str, InvalidDatasetError] = field(default_factory=dict)

    @property
    def plan(self) -> Plan:
        """How the images are divided into units."""
        return Plan(
            self.config.seeds, self.config.chunk, is_ordered(self.config, self.methods), self.config.order == BY_CLASS
        )

    def header(self) -> dict[str, Any]:
        """Return the content of ``run.json``."""
        return header(self.config, self.methods, self.sets, self.chosen)

    def units(self) -> list[Unit]:
        """Return all units, dataset by dataset."""
        return [
            unit
            for name, images in self.sets.items()
            for unit in self.plan.units(
                name,
                file_name(images.name),
                self.chosen[name],
                [item.id for item in images.items],
                [item.label for item in images.items],
            )
        ]


def prepare(
    config: RunConfig, data: str, methods: Sequence[Method], stored: Mapping[str, Any] | None = None
) -> PreparedRun:
    """Open the datasets of a run and choose its images; what can't be opened is `PreparedRun.missing`.

    Args:
        config: what to run.
        data: the folder of the datasets.
        methods: the configured methods (see `poise.evaluate.resolve.check_init`).
        stored: the header of a run that is resumed, whose batch size and chunks it keeps.
    """
    kept = (stored or {}).get("config", {})
    resolved = replace(
        resolve(replace(config, batch_size=config.batch_size or int(kept.get("batch_size", 0)))),
        # Resolving changes the hash; header and rows have the folder's name all the same.
        name=str(stored["run"]) if stored else config.run_id,
    )
    sets, missing = _open_sets(resolved, data)
    chosen = {
        name: choose([item.id for item in images.items], [item.label for item in images.items], resolved.limit)
        for name, images in sets.items()
    }
    for name, positions in chosen.items():
        remaining(resolved, name, len(positions))
    images = sum(map(len, chosen.values())) * len(resolved.seeds)
    chunk = resolved.chunk or int(kept.get("chunk", 0)) or default_chunk(images, resolved)
    return PreparedRun(replace(resolved, chunk=chunk), methods, sets, chosen, missing)


def default_chunk(images: int, config: RunConfig) -> int:
    """Return the images per file of a run of ``images`` images: what a kill loses is a small part of the work.

    >>> default_chunk(50, RunConfig(device="cpu", batch_size=4)), default_chunk(5000, RunConfig(batch_size=4))
    (4, 16)
    """
    most = _MOST["cuda" if config.device.startswith("cuda") else "cpu"]
    batch = max(1, config.batch_size)
    return batch * max(1, math.ceil(min(most, images / _SHARE) / batch))


def _open_sets(config: RunConfig, data: str) -> tuple[dict[str, ImageSet], dict[str, InvalidDatasetError]]:
    """Open the datasets by their configured names; the names in the records must differ as well."""
    sets: dict[str, ImageSet] = {}
    missing: dict[str, InvalidDatasetError] = {}
    for name in config.datasets:
        try:
            sets[name] = images = open_set(name, data, config)
            if images.parents:
                class_tree(images.classes, images.parents)  # refused before the work, if it is none
        except InvalidDatasetError as error:
            missing[name] = error
    for name, count in Counter(images.name for images in sets.values()).items():
        if count > 1:
            raise InvalidOptionError(
                f"Several datasets are called '{name}'.", hint="Run each on its own, with a --name."
            )
    return sets, missing
