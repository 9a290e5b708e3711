"""Units of work on a Ray cluster: one actor per GPU (or share of the CPUs), each with the model loaded once.

A unit is never split, so ordered streams stay whole. What an actor returns is the unit's file; the run writes it, so a
run on a cluster leaves the same folder as a local one, and either can resume the other.
"""

from __future__ import annotations

import logging
import os
from collections import Counter, deque
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from poise.errors import MissingDependency, PoiseError
from poise.evaluate.engines import Watch
from poise.evaluate.units import Unit
from poise.evaluate.worker import Finished, Job, Worker

log = logging.getLogger(__name__)
TRIES = 3  # of a unit whose actor dies under it
_CPUS_EACH = 4  # of an actor without a GPU, where nobody says how many actors there are to be
_PATIENCE = 0.5  # seconds between two looks at whether the run is to stop


class WorkersLost(PoiseError, RuntimeError):
    """A unit whose workers died again and again."""

    code = "workers_lost"


class _Actor:
    """A worker in a process of Ray's. The model is loaded when the first unit comes."""

    def __init__(self, job: Job, threads: int) -> None:
        import torch

        torch.set_num_threads(threads)
        self._job = job
        self._worker: Worker | None = None

    def work(self, unit: Unit) -> Finished:
        """One unit's file."""
        (done,) = self._get().work([unit])
        return done

    def text_features(self, dataset: str, positions: Sequence[int], seed: int) -> dict[str, np.ndarray]:
        """`Worker.text_features`."""
        return self._get().text_features(dataset, positions, seed)

    def _get(self) -> Worker:
        if self._worker is None:
            self._worker = Worker(self._job)
        return self._worker


class RayEngine:
    """Runs units on the cluster at ``address``; without one, on a Ray of this machine's own."""

    def __init__(self, job: Job, address: str = "") -> None:
        self._ray = connect(address)
        self._job = job
        totals = self._ray.cluster_resources()
        cpus, gpus = int(totals.get("CPU", 1)), int(totals.get("GPU", 0))
        on_gpu = job.config.device.startswith("cuda")
        self._count = max(1, job.actors or (gpus if on_gpu else cpus // _CPUS_EACH))
        self._threads = max(1, cpus // self._count)
        options = {"num_cpus": 1, "num_gpus": 1 if on_gpu else 0}
        self._make = self._ray.remote(_Actor).options(**options).remote
        self._idle: list[Any] = []

    def run(self, units: Sequence[Unit], watch: Watch) -> Iterator[Finished]:
        """The units' files as they come; a unit whose actor dies is done again by a new one."""
        open_units, losses = deque(units), Counter[str]()
        busy: dict[Any, tuple[Unit, Any]] = {}
        try:
            while open_units or busy:
                watch.check()
                while open_units and len(busy) < self._count:
                    actor, unit = self._actor(), open_units.popleft()
                    busy[actor.work.remote(unit)] = (unit, actor)
                ready, _ = self._ray.wait(list(busy), num_returns=1, timeout=_PATIENCE)
                for reference in ready:
                    unit, actor = busy.pop(reference)
                    done = self._collect(reference, unit, losses)
                    if done is None:
                        open_units.appendleft(unit)
                        continue
                    self._idle.append(actor)
                    watch.progress(done.images)
                    yield done
        finally:
            for _, actor in busy.values():
                self._ray.kill(actor)

    def text_features(self, dataset: str, positions: Sequence[int], seed: int) -> dict[str, np.ndarray]:
        """From one of the actors."""
        actor = self._actor()
        found: dict[str, np.ndarray] = self._ray.get(actor.text_features.remote(dataset, positions, seed))
        self._idle.append(actor)
        return found

    def _actor(self) -> Any:
        return self._idle.pop() if self._idle else self._make(self._job, self._threads)

    def _collect(self, reference: Any, unit: Unit, losses: Counter[str]) -> Finished | None:
        """The unit's file; None where its actor is gone and the unit may be tried again."""
        try:
            done: Finished = self._ray.get(reference)
        except self._ray.exceptions.RayTaskError as error:
            if isinstance(error.cause, PoiseError):
                raise error.cause from None
            raise
        except self._ray.exceptions.RayError as error:
            losses[unit.id] += 1
            log.warning("A worker was lost with %s (%s); attempt %d.", unit.id, type(error).__name__, losses[unit.id])
            if losses[unit.id] >= TRIES:
                raise WorkersLost(
                    f"{TRIES} workers died with the unit {unit.id}.",
                    hint="What is finished is kept. Look at Ray's logs (often: out of memory), then run again.",
                ) from error
            return None
        return done


def connect(address: str = "") -> Any:
    """The module ``ray``, connected."""
    try:
        import ray
    except ImportError:
        raise MissingDependency.of("A run on a cluster", "ray", "ray") from None
    if not ray.is_initialized():
        os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")  # Ray warns as long as nobody chooses
        ray.init(
            address=address or "local",
            log_to_driver=False,
            logging_level=logging.ERROR,
            **({} if address else {"include_dashboard": False}),
        )
    return ray
