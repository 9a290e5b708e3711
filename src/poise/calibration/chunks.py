"""Large tables of probabilities [N, C] in chunks of rows that fit into the cache, on a few threads."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

from poise.cores import available_cores
from poise.metrics.sample import check_table

Table: TypeAlias = NDArray[np.floating]  # [N, C] in float32 or float64

CHUNK = 1 << 17  # entries of a chunk
THREADED = 8 * CHUNK  # smaller tables are processed by the calling thread
MAX_THREADS = 8


def as_table(probs: ArrayLike) -> Table:
    """Return ``probs`` [N, C] as float32 if they are in half or single precision, otherwise as float64.

    The entries are to be checked chunk by chunk (`check_table`), where they are read anyway.
    """
    table = np.asarray(probs)
    table = table.astype(np.float32 if table.dtype in (np.float16, np.float32) else np.float64, copy=False)
    if table.ndim != 2 or 0 in table.shape:
        check_table(table)  # raises
    return table


def in_chunks(work: Callable[[slice], None], rows: int, columns: int) -> None:
    """Call ``work`` with slices that cover all rows; NumPy releases the interpreter's lock, so threads help."""
    size = max(1, CHUNK // columns)
    chunks = [slice(first, min(first + size, rows)) for first in range(0, rows, size)]
    if rows * columns < THREADED:
        for chunk in chunks:
            work(chunk)
        return
    with ThreadPoolExecutor(min(MAX_THREADS, available_cores())) as pool:
        for _ in pool.map(work, chunks):  # reading the results raises errors here
            pass
