"""Images read and planned, here or in processes of their own, and cut into views where the device doesn't do it."""

from __future__ import annotations

import os
import threading
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace

import torch
from torch import Tensor

from poise.errors import ReaderProcessError
from poise.loading.processes import ReaderProcesses
from poise.loading.sources import Failure, PlannedImage, Source, name_of, read_planned, travels
from poise.types import DualEncoder
from poise.views.recipe import ViewRecipe

FEW = 32  # images of one run that are read in this process; starting others pays for more


class Preparer:
    """Makes images ready for one encoder. Any thread may call it; ``workers`` is how many should.

    Where the encoder is on CUDA, the files of a long run are read by processes: threads would compete with those that
    feed the GPU. Until the processes have started, and for a few images, threads do it.

    Args:
        encoder: the model that the images are for.
        workers: threads, and processes; 0 = by the number of cores, at most 8.
        processes: True: every file is read by a process, False: none is; None: as above.
    """

    def __init__(self, encoder: DualEncoder, *, workers: int = 0, processes: bool | None = None) -> None:
        self.encoder = encoder
        self.workers = workers or max(1, min(8, os.cpu_count() or 2))
        self._wanted = processes
        self._processes: Future[ReaderProcesses] | None = None
        self._lock = threading.Lock()

    def prepare(self, source: Source, recipe: ViewRecipe, number: int) -> PlannedImage | Failure:
        """The image ``number`` of a run, read and planned; and cut, where that is not the device's job."""
        image = self._read(source, recipe, number)
        if isinstance(image, Failure) or self._cuts_on_device(recipe):
            return image
        return replace(image, views=self._cut([image], recipe)[0])

    def views(self, images: Sequence[PlannedImage], recipe: ViewRecipe) -> Tensor:
        """[B, V, 3, S, S] on the encoder's device."""
        cut = [image.views for image in images if image.views is not None]
        return (torch.stack(cut) if cut else self._cut(images, recipe)).to(self.encoder.device)

    def _read(self, source: Source, recipe: ViewRecipe, number: int) -> PlannedImage | Failure:
        processes = self._started_processes(number) if travels(source) else None
        if processes is None:
            return read_planned(source, recipe)
        try:
            return processes.run(read_planned, source, recipe)
        except ReaderProcessError as problem:
            return Failure(name_of(source), problem.code, str(problem))

    def _started_processes(self, number: int) -> ReaderProcesses | None:
        """The processes, if the image ``number`` of a run is for them and they are ready."""
        if self._wanted is None and (self.encoder.device.type != "cuda" or number < FEW):
            return None
        if self._wanted is False:
            return None
        with self._lock:
            if self._processes is None:
                starter = ThreadPoolExecutor(max_workers=1)
                self._processes = starter.submit(_start, self.workers)
                starter.shutdown(wait=False)
        return self._processes.result() if self._wanted or self._processes.done() else None

    def _cuts_on_device(self, recipe: ViewRecipe) -> bool:
        return self.encoder.device.type == "cuda" and recipe.engine != "pil"

    def _cut(self, images: Sequence[PlannedImage], recipe: ViewRecipe) -> Tensor:
        encoder = self.encoder
        where = encoder.device if self._cuts_on_device(recipe) else torch.device("cpu")
        pixels, plans = [image.pixels for image in images], [image.plan for image in images]
        return recipe.cut(pixels, plans, encoder.image, where, encoder.dtype)


def _start(workers: int) -> ReaderProcesses:
    """Processes that have imported what they need."""
    processes = ReaderProcesses(workers)
    processes.warm(read_planned)
    return processes
