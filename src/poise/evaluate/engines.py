"""Engines compute units of work, on this machine or on a cluster."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Protocol

import numpy as np

from poise.data import ImageSet
from poise.errors import InvalidOptionError
from poise.evaluate.units import Unit
from poise.evaluate.worker import Finished, Worker, WorkerSettings
from poise.inference.batches import Watch
from poise.registry import Registry

__all__ = ["Engine", "EngineMaker", "LocalEngine", "Watch", "engines"]


class Engine(Protocol):
    """Computes units of work."""

    def run(self, units: Sequence[Unit], watch: Watch) -> Iterator[Finished]:
        """Yield the file of each unit once, in any order."""

    def text_features(self, dataset: str, positions: Sequence[int], seed: int) -> dict[str, np.ndarray]:
        """Return the result of `Worker.text_features`."""


class EngineMaker(Protocol):
    """The signature of a registered class or function that creates an engine."""

    def __call__(self, job: WorkerSettings, sets: Mapping[str, ImageSet], address: str) -> Engine:
        """Return an engine for ``job``; ``sets`` are the datasets that this process has already opened."""


engines = Registry[EngineMaker]("engine")


@engines.add("local")
class LocalEngine(Worker):
    """Computes the units in this process, in order; images are read ahead in threads."""

    def __init__(self, job: WorkerSettings, sets: Mapping[str, ImageSet], address: str = "") -> None:
        if address or job.actors:
            raise InvalidOptionError("address and actors require the engine ray.", hint="Add --engine ray.")
        super().__init__(job, sets)


@engines.add("ray")
def _ray(job: WorkerSettings, sets: Mapping[str, ImageSet], address: str = "") -> Engine:
    from poise.evaluate.ray_engine import RayEngine

    return RayEngine(job, address)
