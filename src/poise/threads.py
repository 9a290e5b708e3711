"""How many threads compute on a CPU, and work that is divided among them.

Torch divides each operation among its threads and waits for the slowest of them, thousands of times per image. On a
machine that others use, too, one of them is always delayed, and the others spin meanwhile. So parts of a batch are
computed side by side, each by one thread, which waits for no other.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from typing import TypeVar

from poise.cores import available_cores
from poise.errors import WrongProcessError

A = TypeVar("A")
Z = TypeVar("Z")

_making = threading.Lock()


def set_threads(count: int | None = None) -> None:
    """Set the number of threads that torch uses; None for the cores that are available.

    To be called before torch is imported, where possible: threads without work then sleep instead of spinning. A number
    that the environment gives (OMP_NUM_THREADS) is kept, unless ``count`` is given.
    """
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # OpenMP reads these variables when torch is imported
    if count is None and "OMP_NUM_THREADS" in os.environ:
        return
    chosen = count or available_cores()
    os.environ["OMP_NUM_THREADS"] = str(chosen)
    if "torch" in sys.modules:
        sys.modules["torch"].set_num_threads(chosen)


def check_process() -> None:
    """Remember that torch computes in this process, and refuse a process that was forked from such a one.

    Its parent's threads are not there, and torch would wait for them for ever.
    """
    import torch

    global _computing
    if _computing is None:
        _computing = os.getpid()
    if _computing != os.getpid() and torch.get_num_threads() > 1:
        raise WrongProcessError(
            "This process was forked from one that has loaded a model, so that torch would wait for ever.",
            hint="Start processes by 'spawn' (multiprocessing.set_start_method), or load models in the children only.",
        )


_computing: int | None = None  # the process that has loaded a model


def map_parallel(work: Callable[[A], Z], parts: Sequence[A]) -> list[Z]:
    """Return ``work(part)`` of each part, in order: each on one thread, as many side by side as torch has threads.

    Results do not depend on the number of threads, if there are several parts. Gradients are not recorded.
    """
    import torch

    threads = torch.get_num_threads()
    if threads == 1 or len(parts) == 1 or _inside.worker:
        return [work(part) for part in parts]
    return list(_pool(threads, os.getpid()).map(work, parts))


class _Inside(threading.local):
    worker = False  # whether this thread is one of a pool's


_inside = _Inside()


@lru_cache(maxsize=4)
def _pool(threads: int, process: int) -> ThreadPoolExecutor:
    """Return a pool of so many threads, in each of which torch uses one thread; a forked process makes its own."""
    import torch

    def start() -> None:
        _inside.worker = True
        torch.set_grad_enabled(False)  # as the thread number, for this thread alone
        torch.set_num_threads(1)
        torch.get_num_threads()  # the setting of this thread is now fixed
        ready.wait()

    with _making:
        ready = threading.Barrier(threads + 1)
        pool = ThreadPoolExecutor(threads, thread_name_prefix="poise-cpu", initializer=start)
        for _ in range(threads):
            pool.submit(int)
        ready.wait()
        torch.set_num_threads(threads)  # a thread's setting is also the one of threads that start later
        return pool
