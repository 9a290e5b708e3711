"""Batches through a device: while one is tuned, the views of the next are made and the last one's answers are read.

Each stage has a thread, and on CUDA a stream, of its own, so that no copy to or from the host holds up another stage.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor

from poise.loading.prepare import ahead

A = TypeVar("A")
Z = TypeVar("Z")


@dataclass(frozen=True)
class _Handed(Generic[Z]):
    """A result, and when the device will have finished it."""

    value: Z
    ready: Any = None  # torch.cuda.Event

    def take(self) -> Z:
        """The result, for use on the stream of the caller."""
        if self.ready is not None:
            torch.cuda.current_stream().wait_event(self.ready)
        return self.value


def flow(
    batches: Iterable[A], device: torch.device, views: Callable[[A], Tensor | None], answer: Callable[[A, Tensor], Z]
) -> Iterator[tuple[A, Z | None]]:
    """``answer(batch, views(batch))`` of each batch, in order; None where a batch has no views.

    ``views`` and ``answer`` are each called from one thread, one batch at a time.
    """

    def make(batch: A) -> tuple[A, Tensor | None]:
        return batch, views(batch)

    def compute(made: _Handed[tuple[A, Tensor | None]]) -> tuple[A, Z | None]:
        batch, pictures = made.take()
        if pictures is None:
            return batch, None
        if pictures.is_cuda:
            pictures.record_stream(torch.cuda.current_stream())
        return batch, answer(batch, pictures)

    made = ahead(_on_stream("views", device, make), batches, threads=1, window=1)
    for done in ahead(_on_stream("answer", device, compute), made, threads=1, window=1):
        yield done.take()


def _on_stream(stage: str, device: torch.device, work: Callable[[A], Z]) -> Callable[[A], _Handed[Z]]:
    if device.type != "cuda":
        return lambda job: _Handed(work(job))
    stream = _stream(stage, device)

    def run(job: A) -> _Handed[Z]:
        with torch.cuda.stream(stream):
            value = work(job)
            return _Handed(value, stream.record_event())

    return run


@cache
def _stream(stage: str, device: torch.device) -> torch.cuda.Stream:
    """Kept, because the memory that was allocated on a stream serves that stream alone."""
    return torch.cuda.Stream(device)
