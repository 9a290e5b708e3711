"""Work done ahead of the computation and in order: by threads, and on a GPU in stages that overlap.

Each stage has a thread, and on CUDA a stream, of its own, so that no copy to or from the host holds up another stage.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache
from typing import Generic, TypeVar

import torch

A = TypeVar("A")
M = TypeVar("M")
Z = TypeVar("Z")


def map_ahead(work: Callable[[A], Z], jobs: Iterable[A], *, threads: int, window: int) -> Iterator[Z]:
    """``work`` of each job, in order, with at most ``window`` of them begun before they are asked for.

    >>> list(map_ahead(str, range(4), threads=2, window=2))
    ['0', '1', '2', '3']
    """
    pool = ThreadPoolExecutor(max_workers=threads, thread_name_prefix="poise")
    begun: deque[Future[Z]] = deque()
    try:
        for job in jobs:
            begun.append(pool.submit(work, job))
            if len(begun) > window:
                yield begun.popleft().result()
        while begun:
            yield begun.popleft().result()
    finally:
        pool.shutdown(wait=False, cancel_futures=True)


def run_stages(
    jobs: Iterable[A], device: torch.device, first: Callable[[A], M], second: Callable[[M], Z]
) -> Iterator[Z]:
    """``second(first(job))`` of each job, in order; on CUDA ``first`` works on the next job meanwhile.

    Each stage is called from one thread, one job at a time. Elsewhere both share the same cores, and nothing overlaps.
    """
    if device.type != "cuda":
        for job in jobs:
            yield second(first(job))
        return
    made = map_ahead(_on_stream("first", device, first), jobs, threads=1, window=1)
    done = map_ahead(_on_stream("second", device, lambda result: second(result.take())), made, threads=1, window=1)
    for result in done:
        yield result.take()


@dataclass(frozen=True)
class _StreamResult(Generic[Z]):
    """A result, and when the device will have finished it."""

    value: Z
    ready: torch.cuda.Event
    device: torch.device

    def take(self) -> Z:
        """The result, for use on the caller's stream."""
        torch.cuda.current_stream(self.device).wait_event(self.ready)
        return self.value


def _on_stream(stage: str, device: torch.device, work: Callable[[A], Z]) -> Callable[[A], _StreamResult[Z]]:
    stream = _stream(stage, device)

    def run(job: A) -> _StreamResult[Z]:
        with torch.cuda.stream(stream):
            value = work(job)
            return _StreamResult(value, stream.record_event(), device)

    return run


@cache
def _stream(stage: str, device: torch.device) -> torch.cuda.Stream:
    """Kept, because the memory that was allocated on a stream serves that stream alone."""
    return torch.cuda.Stream(device)
