"""Pictures read, and cut into views or planned for it, ahead of the computation and in order."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

import torch
from torch import Tensor

from poise.errors import ReaderProcessError
from poise.loading.processes import Readers
from poise.loading.reading import Prepared, Reading, failed
from poise.types import ImageSpec
from poise.views import make_views, make_views_batched

if TYPE_CHECKING:
    from poise.data import Item

A = TypeVar("A")
Z = TypeVar("Z")


@dataclass(frozen=True)
class Preparation:
    """How a dataset's images become views."""

    spec: ImageSpec
    reading: Reading
    cut: bool  # make the views here, with Pillow; False: only plan them

    def __call__(self, item: Item, seed: int, readers: Readers | None = None) -> Prepared:
        """Read one item, here or by ``readers``. What can't be read costs this image its answer, never the run."""
        if self.cut:
            found = self.reading.open(item, seed)
            if isinstance(found, Prepared):
                return found
            picture, plan = found
            return Prepared(item, plan=plan, views=make_views(picture.image, self.spec, plan))
        if readers is None:
            return self.reading(item, seed)
        try:
            return readers.run(self.reading, item, seed)
        except ReaderProcessError as problem:
            return failed(item, problem)


def batch_views(batch: Sequence[Prepared], spec: ImageSpec, device: torch.device, dtype: torch.dtype) -> Tensor:
    """Views [B, V, 3, S, S] of pictures that were read and planned, made on the device in one go."""
    pixels = [torch.from_numpy(each.pixels).permute(2, 0, 1) for each in batch if each.pixels is not None]
    plans = [each.plan for each in batch if each.plan is not None]
    return make_views_batched(pixels, spec, plans, device, dtype=dtype)


def ahead(work: Callable[[A], Z], jobs: Iterable[A], *, threads: int, window: int) -> Iterator[Z]:
    """``work`` of each job, in order, with at most ``window`` of them begun before they are asked for.

    >>> list(ahead(str, range(4), threads=2, window=2))
    ['0', '1', '2', '3']
    """
    pool = ThreadPoolExecutor(max_workers=threads, thread_name_prefix="poise-prepare")
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
