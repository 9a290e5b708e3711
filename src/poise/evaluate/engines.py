"""Where units are computed: an engine maps them to finished files, in any order, on one machine or many."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Protocol

import numpy as np

from poise.data import ImageSet
from poise.errors import InvalidOptionError
from poise.evaluate.units import Unit
from poise.evaluate.worker import Finished, Job, Worker
from poise.inference.predictor import Watch
from poise.registry import Registry


class Engine(Protocol):
    """A way to have units done. Each unit is yielded once, when its file's bytes are complete."""

    def run(self, units: Sequence[Unit], watch: Watch) -> Iterator[Finished]:
        """The units' files, in any order."""

    def text_features(self, dataset: str, positions: Sequence[int], seed: int) -> dict[str, np.ndarray]:
        """`Worker.text_features`, wherever the model is."""


class EngineMaker(Protocol):
    """What a registered engine is: a class or function with this signature."""

    def __call__(self, job: Job, sets: Mapping[str, ImageSet], address: str) -> Engine:
        """An engine for ``job``; ``sets`` are the datasets that this process has opened already."""


__all__ = ["Engine", "EngineMaker", "LocalEngine", "Watch", "engines"]

engines = Registry[EngineMaker]("engine")


@engines.add("local")
class LocalEngine:
    """This process, one unit after the other; reading runs ahead in threads."""

    def __init__(self, job: Job, sets: Mapping[str, ImageSet], address: str = "") -> None:
        if address or job.actors:
            raise InvalidOptionError("address and actors require the engine ray.", hint="Add --engine ray.")
        self._worker = Worker(job, sets)

    def run(self, units: Sequence[Unit], watch: Watch) -> Iterator[Finished]:
        """In the order of the units."""
        return self._worker.work(units, watch)

    def text_features(self, dataset: str, positions: Sequence[int], seed: int) -> dict[str, np.ndarray]:
        """From this process's model."""
        return self._worker.text_features(dataset, positions, seed)


@engines.add("ray")
def _ray(job: Job, sets: Mapping[str, ImageSet], address: str = "") -> Engine:
    from poise.evaluate.ray_engine import RayEngine

    return RayEngine(job, address)
