"""Units of work on a Ray cluster: one process per GPU (or share of the CPUs), each with the model loaded once.

A unit is never split, so ordered streams stay whole. What a process returns is the unit's file; the run writes it, so a
run on a cluster leaves the same folder as a local one, and either can resume the other.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from functools import partial

import numpy as np
import torch

from poise.cluster.connection import is_gpu
from poise.cluster.pool import Pool
from poise.evaluate.engines import Watch
from poise.evaluate.units import Unit
from poise.evaluate.worker import Finished, Job, Worker

log = logging.getLogger(__name__)


class UnitWorker:
    """A worker that gets its units one by one."""

    def __init__(self, job: Job, threads: int) -> None:
        torch.set_num_threads(threads)
        self._worker = Worker(job)

    def work(self, unit: Unit) -> Finished:
        """One unit's file."""
        (done,) = self._worker.work([unit])
        return done

    def text_features(self, dataset: str, positions: Sequence[int], seed: int) -> dict[str, np.ndarray]:
        """`Worker.text_features`."""
        return self._worker.text_features(dataset, positions, seed)


class RayEngine:
    """Runs units on the cluster at ``address``; without one, on a Ray of this machine's own."""

    def __init__(self, job: Job, address: str = "") -> None:
        on_gpu = is_gpu(job.config.device)
        self._pool = Pool(partial(UnitWorker, job), address=address, actors=job.actors, gpu=on_gpu)
        if self._pool.gpus and not on_gpu:
            log.warning("The device is %s, so the cluster's %d GPUs are idle.", job.config.device, self._pool.gpus)
        self._check = Watch().check

    def run(self, units: Sequence[Unit], watch: Watch) -> Iterator[Finished]:
        """The units' files as they come; a unit whose process dies is done again by another one."""
        self._check = watch.check
        for _, done in self._pool.run(units, name=lambda unit: f"the unit {unit.id}", check=watch.check):
            watch.progress(done.images)
            yield done

    def text_features(self, dataset: str, positions: Sequence[int], seed: int) -> dict[str, np.ndarray]:
        """From one of the processes."""
        ask = (dataset, tuple(positions), seed)
        answers = self._pool.run(
            [ask], method="text_features", arguments=lambda task: task,
            name=lambda task: f"the text features of {dataset}", check=self._check,
        )  # fmt: skip
        ((_, found),) = answers
        return dict(found)
