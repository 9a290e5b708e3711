"""Computes units of work on a Ray cluster: one process per GPU (or share of the CPUs), each with its own model.

A unit is never split, so ordered streams remain whole. The workers return the files and the driver writes them, so a
run on a cluster leaves the same folder as a local run, and each can resume the other.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from functools import partial

import numpy as np
import torch

from poise.cluster.connection import is_gpu
from poise.cluster.stream import Stream
from poise.evaluate.engines import Watch
from poise.evaluate.units import Unit
from poise.evaluate.worker import Finished, Worker, WorkerSettings

log = logging.getLogger(__name__)


class UnitWorker(Worker):
    """A worker that receives one unit at a time."""

    def __init__(self, job: WorkerSettings, threads: int) -> None:
        torch.set_num_threads(threads)
        super().__init__(job)

    def work(self, unit: Unit) -> Finished:
        """Return the file of one unit."""
        (done,) = self.run([unit])
        return done


class RayEngine:
    """Computes units on the Ray cluster at ``address``; without an address, Ray is started on this machine."""

    def __init__(self, job: WorkerSettings, address: str = "") -> None:
        on_gpu = is_gpu(job.config.device)
        self._stream = Stream(partial(UnitWorker, job), address=address, actors=job.actors, gpu=on_gpu)
        if self._stream.gpus and not on_gpu:
            log.warning("The device is %s, so the cluster's %d GPUs are idle.", job.config.device, self._stream.gpus)
        self._check: Callable[[], None] = lambda: None

    def run(self, units: Sequence[Unit], watch: Watch) -> Iterator[Finished]:
        """Yield the file of each unit, in the order of completion; if a process dies, its unit is repeated."""
        self._check = watch.check
        for _, done in self._stream.run(units, name=lambda unit: f"the unit {unit.id}", check=watch.check):
            watch.progress(done.images)
            yield done

    def text_features(self, dataset: str, positions: Sequence[int], seed: int) -> dict[str, np.ndarray]:
        """Return the result of `Worker.text_features` of one process."""
        ((_, arrays),) = self._stream.run(
            [(dataset, tuple(positions), seed)],
            method="text_features",
            arguments=lambda task: task,
            name=lambda task: f"the text features of {dataset}",
            check=self._check,
        )
        return dict(arrays)
