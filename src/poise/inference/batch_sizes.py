"""Batch sizes by device, and halving of batches that do not fit into memory."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import torch
from torch import Tensor

from poise.errors import OUT_OF_MEMORY, PoiseError, is_out_of_memory

S = TypeVar("S", Tensor, list)
Z = TypeVar("Z")

_MAX_VIEWS = {"cuda": 2048, "cpu": 256}  # views per batch: enough to fill the device
_MAX_IMAGES = {"cuda": 128, "cpu": 16}  # images per batch, even if they have few views
_VIEWS_PER_GIBIBYTE = 32  # of GPU memory, measured with a ViT-B/16


def default_batch_size(device: torch.device, views: int) -> int:
    """Return the number of images with ``views`` views each that are encoded and tuned together by default."""
    kind = "cuda" if device.type == "cuda" else "cpu"
    most = _MAX_VIEWS[kind]
    if kind == "cuda":
        gibibytes = torch.cuda.get_device_properties(device).total_memory / 2**30
        most = min(most, int(gibibytes * _VIEWS_PER_GIBIBYTE))
    return max(1, min(_MAX_IMAGES[kind], most // views))


def in_halves(work: Callable[[S], Z], batch: S, join: Callable[[list[Z]], Z]) -> Z:
    """Return ``work(batch)``; a batch that does not fit into memory is halved until it does.

    Raises:
        PoiseError: A single image does not fit (code "out_of_memory").
    """
    try:
        return work(batch)
    except (MemoryError, RuntimeError) as error:  # torch.OutOfMemoryError is a RuntimeError
        if not is_out_of_memory(error):
            raise
        if len(batch) == 1:
            raise PoiseError(
                "One image does not fit into memory.",
                hint="Use fewer views, a smaller model or dtype float16, or free memory on the device.",
                code=OUT_OF_MEMORY,
            ) from error
    if torch.cuda.is_initialized():
        torch.cuda.empty_cache()  # outside the except clause, where the traceback no longer refers to the tensors
    middle = len(batch) // 2
    return join([in_halves(work, part, join) for part in (batch[:middle], batch[middle:])])
