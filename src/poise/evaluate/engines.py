"""Who does the units: an engine maps them to finished files, in any order, on one machine or many."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from poise.data import ImageSet
from poise.errors import InvalidOptionError
from poise.evaluate.units import Unit
from poise.evaluate.worker import Finished, Job, Worker
from poise.registry import Registry


@dataclass(frozen=True)
class Watch:
    """How an engine speaks with the run: it reports images done, and asks whether to stop."""

    progress: Callable[[int], None] = lambda images: None
    check: Callable[[], None] = lambda: None  # raises to stop


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


engines = Registry[EngineMaker]("engine")


@engines.add("local")
class LocalEngine:
    """This process, one unit after the other; reading runs ahead in threads."""

    def __init__(self, job: Job, sets: Mapping[str, ImageSet], address: str = "") -> None:
        if address or job.actors:
            raise InvalidOptionError(
                "address and actors are of a Ray cluster.", hint="Add --engine ray, or leave them out."
            )
        self._worker = Worker(job, sets)

    def run(self, units: Sequence[Unit], watch: Watch) -> Iterator[Finished]:
        """In the order of the units."""
        return self._worker.work(units, progress=watch.progress, check=watch.check)

    def text_features(self, dataset: str, positions: Sequence[int], seed: int) -> dict[str, np.ndarray]:
        """From this process's model."""
        return self._worker.text_features(dataset, positions, seed)


@engines.add("ray")
def _ray(job: Job, sets: Mapping[str, ImageSet], address: str = "") -> Engine:
    from poise.evaluate.ray_engine import RayEngine

    return RayEngine(job, address)
