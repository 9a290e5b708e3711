"""Maps functions over jobs ahead of time and in order: in threads, and on a GPU in two overlapping stages.

Each stage has its own thread and its own CUDA stream, so copies to or from the host do not delay the other stage.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from functools import cache
from typing import TypeVar

import torch

A = TypeVar("A")
M = TypeVar("M")
Z = TypeVar("Z")


def map_ahead(work: Callable[[A], Z], jobs: Iterable[A], *, threads: int, window: int) -> Iterator[Z]:
    """Yield ``work(job)`` of each job, in order, computed in threads, at most ``window`` of them ahead.

    >>> list(map_ahead(str, range(4), threads=2, window=2))
    ['0', '1', '2', '3']
    """
    pool = ThreadPoolExecutor(max_workers=threads, thread_name_prefix="poise")
    futures: deque[Future[Z]] = deque()
    try:
        for job in jobs:
            futures.append(pool.submit(work, job))
            if len(futures) > window:
                yield futures.popleft().result()
        while futures:
            yield futures.popleft().result()
    finally:
        pool.shutdown(wait=False, cancel_futures=True)


def run_stages(
    jobs: Iterable[A], device: torch.device, first: Callable[[A], M], second: Callable[[M], Z]
) -> Iterator[Z]:
    """Yield ``second(first(job))`` of each job, in order; on CUDA, the stages work on different jobs in parallel.

    Each stage is called from one thread. On other devices both would share the same cores, so nothing overlaps.
    """
    if device.type != "cuda":
        for job in jobs:
            yield second(first(job))
        return

    def finish(intermediate: tuple[M, torch.cuda.Event]) -> Z:
        return second(_wait(intermediate, device))

    intermediates = map_ahead(_on_stream("first", device, first), jobs, threads=1, window=1)
    for result in map_ahead(_on_stream("second", device, finish), intermediates, threads=1, window=1):
        yield _wait(result, device)


def _on_stream(stage: str, device: torch.device, work: Callable[[A], Z]) -> Callable[[A], tuple[Z, torch.cuda.Event]]:
    """Return ``work`` on the stream of a stage; its result comes with the event that marks its completion."""
    stream = _stream(stage, device)

    def run(job: A) -> tuple[Z, torch.cuda.Event]:
        with torch.cuda.stream(stream):
            return work(job), stream.record_event()

    return run


def _wait(result: tuple[Z, torch.cuda.Event], device: torch.device) -> Z:
    """Return the value of a result after making the caller's stream wait for it."""
    value, ready = result
    torch.cuda.current_stream(device).wait_event(ready)
    return value


@cache  # because memory that was allocated on a stream is reused by that stream only
def _stream(stage: str, device: torch.device) -> torch.cuda.Stream:
    return torch.cuda.Stream(device)
