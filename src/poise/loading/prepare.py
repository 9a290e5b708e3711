"""Prepares images for an encoder: reads and plans them, in this process or in others, and cuts their views."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace

import torch
from torch import Tensor

from poise.cores import available_cores
from poise.data.items import Item
from poise.data.stored_features import Made, StoredRow
from poise.errors import ReaderProcessError, is_out_of_memory
from poise.loading.processes import ReaderProcesses
from poise.loading.sources import READABLE_ELSEWHERE, PlannedImage, Source, name_of, read_planned, too_large
from poise.loading.stored import check_made
from poise.results import Failure
from poise.text import counted
from poise.types import DualEncoder
from poise.views.recipe import ViewRecipe
from poise.views.triton import launch

FEW = 32  # images of a run that this process reads; starting reader processes pays off for longer runs


class Preparer:
    """Prepares images for one encoder. It is thread-safe; ``workers`` is the number of threads that should call it.

    If the encoder is on CUDA, processes read the files of a long run, because threads would compete with those that
    launch work on the GPU. Threads read the first images, until the processes have started. With ``processes`` True
    or False they read all files or none.
    """

    def __init__(self, encoder: DualEncoder, *, workers: int = 0, processes: bool | None = None) -> None:
        self.encoder = encoder
        self.workers = workers or min(8, available_cores())
        self._use_processes = processes
        self._processes: Future[ReaderProcesses] | None = None
        self._lock = threading.Lock()
        self._checked: tuple[Made, ViewRecipe] | None = None

    def prepare(self, source: Source, recipe: ViewRecipe, number: int) -> PlannedImage | Failure:
        """Read and plan image ``number`` of a run; cut its views too, unless the device does that."""
        if isinstance(source, Item) and isinstance(source.read, StoredRow):
            self._check_stored(source.read.block().made, recipe)
            return read_planned(source, recipe)
        processes = self._started_processes(number) if isinstance(source, READABLE_ELSEWHERE) else None
        try:
            image = processes.run(read_planned, source, recipe) if processes else read_planned(source, recipe)
        except ReaderProcessError as error:
            return Failure(name_of(source), error.code, str(error))
        if isinstance(image, Failure) or self._cuts_on_device(recipe):
            return image
        try:
            return replace(image, views=self._cut([image], recipe)[0])
        except (MemoryError, RuntimeError) as error:
            if not is_out_of_memory(error):
                raise
            return too_large(source)

    def views(self, images: Sequence[PlannedImage], recipe: ViewRecipe) -> Tensor:
        """Return the views [B, V, 3, S, S] of B images on the encoder's device."""
        views = [image.views for image in images if image.views is not None]
        return (torch.stack(views) if views else self._cut(images, recipe)).to(self.encoder.device)

    def describe(self, recipe: ViewRecipe, batch: int) -> str:
        """Return in words how images are read, cut and batched."""
        engine = "Triton kernels" if self._cuts_on_device(recipe) else "Pillow" if recipe.engine == "pil" else "torch"
        processes = self._use_processes or (self._use_processes is None and self.encoder.device.type == "cuda")
        readers = f"{self.workers} {'processes' if processes else 'threads'}"
        views = f"{counted(recipe.views, 'view')} per image cut by {engine} (view engine {recipe.engine})"
        return f"batches of {batch}, {views}, read by {readers}; torch uses {torch.get_num_threads()} threads"

    def _check_stored(self, made: Made, recipe: ViewRecipe) -> None:
        """Check once whether the model and the views of stored features are those that are asked for."""
        if (made, recipe) != self._checked:
            check_made(made, self.encoder, recipe)
            self._checked = made, recipe

    def _started_processes(self, number: int) -> ReaderProcesses | None:
        """Return the processes if they should read image ``number`` of a run and are ready."""
        long_run_on_gpu = self.encoder.device.type == "cuda" and number >= FEW
        if not (long_run_on_gpu if self._use_processes is None else self._use_processes):
            return None
        with self._lock:
            if self._processes is None:
                starter = ThreadPoolExecutor(max_workers=1)
                self._processes = starter.submit(ReaderProcesses, self.workers, read_planned)
                starter.shutdown(wait=False)
        return self._processes.result() if self._use_processes or self._processes.done() else None

    def _cuts_on_device(self, recipe: ViewRecipe) -> bool:
        return recipe.engine != "pil" and launch.usable(self.encoder.device, self.encoder.image)

    def _cut(self, images: Sequence[PlannedImage], recipe: ViewRecipe) -> Tensor:
        device = self.encoder.device if self._cuts_on_device(recipe) else torch.device("cpu")
        pixels, plans = [image.pixels for image in images], [image.plan for image in images]
        return recipe.cut(pixels, plans, self.encoder.image, device, self.encoder.dtype)
