"""How much is done at a time: batch sizes by device, and what happens where memory does not suffice."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

import torch
from torch import Tensor

from poise.errors import PoiseError

S = TypeVar("S", Tensor, list)
Z = TypeVar("Z")

_VIEWS_TOGETHER = {"cuda": 2048, "cpu": 256}  # views of a batch: enough to fill a device, bounded in memory
_IMAGES_TOGETHER = {"cuda": 128, "cpu": 16}  # images of a batch, however few views they have
_VIEWS_PER_GIBIBYTE = 32  # of a GPU's memory: what a ViT-B/16 leaves room for


@dataclass(frozen=True)
class Limits:
    """How much is done at a time. Nothing here changes an answer by more than rounding.

    Args:
        batch_size: images encoded and tuned together; 0 = by device and number of views.
        workers: threads (on CUDA: processes) that read images; 0 = by the number of cores, at most 8.
        processes: whether files are read by processes; None = where the model is on CUDA.
    """

    batch_size: int = 0
    workers: int = 0
    processes: bool | None = None


def default_batch_size(device: torch.device, views: int) -> int:
    """Images that are encoded and tuned together, where nobody says how many."""
    kind = "cuda" if device.type == "cuda" else "cpu"
    together = _VIEWS_TOGETHER[kind]
    if kind == "cuda":
        gibibytes = torch.cuda.get_device_properties(device).total_memory / 2**30
        together = min(together, int(gibibytes * _VIEWS_PER_GIBIBYTE))
    return max(1, min(_IMAGES_TOGETHER[kind], together // views))


def in_halves(work: Callable[[S], Z], batch: S, join: Callable[[list[Z]], Z]) -> Z:
    """``work(batch)``; a batch that does not fit the device's memory is halved until it does.

    Raises:
        PoiseError: Not even one image fits (code "out_of_memory").
    """
    try:
        return work(batch)
    except torch.OutOfMemoryError as problem:
        if len(batch) == 1:
            raise PoiseError(
                "One image does not fit the device's memory.",
                hint="Use fewer views, a smaller model or dtype float16, or free memory on the device.",
                code="out_of_memory",
            ) from problem
    torch.cuda.empty_cache()  # here, where the failed attempt's tensors are no longer held by its traceback
    middle = len(batch) // 2
    return join([in_halves(work, part, join) for part in (batch[:middle], batch[middle:])])
