"""Images read and planned, here or in processes of their own, and cut into views where the device doesn't do it."""

from __future__ import annotations

import os
import threading
from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from poise.errors import ReaderProcessError
from poise.loading.processes import ReaderProcesses
from poise.loading.read import Failure, PlannedImage, Source, name_of, read_planned, travels
from poise.types import DualEncoder
from poise.views.recipe import ViewRecipe

FEW = 32  # images of one run that are read in this process, before starting others pays


class Preparer:
    """Makes images ready for one encoder. Any thread may call it; ``workers`` is how many should.

    Where the encoder is on CUDA, files are read by processes: threads would compete with those that feed the GPU.
    """

    def __init__(self, encoder: DualEncoder, *, workers: int = 0, processes: bool | None = None) -> None:
        self.encoder = encoder
        self.workers = workers or max(1, min(8, os.cpu_count() or 2))
        self._apart = encoder.device.type == "cuda" if processes is None else processes
        self._processes: ReaderProcesses | None = None
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
        if not self._apart or number < FEW or not travels(source):
            return read_planned(source, recipe)
        with self._lock:
            self._processes = self._processes or ReaderProcesses(self.workers)
        try:
            return self._processes.run(read_planned, source, recipe)
        except ReaderProcessError as problem:
            return Failure(name_of(source), problem.code, str(problem))

    def _cuts_on_device(self, recipe: ViewRecipe) -> bool:
        return self.encoder.device.type == "cuda" and recipe.engine != "pil"

    def _cut(self, images: Sequence[PlannedImage], recipe: ViewRecipe) -> Tensor:
        encoder = self.encoder
        where = encoder.device if self._cuts_on_device(recipe) else torch.device("cpu")
        pixels, plans = [image.pixels for image in images], [image.plan for image in images]
        return recipe.cut(pixels, plans, encoder.image, where, encoder.dtype)
