"""Pictures read and cut into views by threads, ahead of the computation and in order."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

from torch import Tensor

from poise.errors import PoiseError
from poise.evaluate.config import RunConfig
from poise.images import Picture, read_image
from poise.types import ImageSpec
from poise.views import ViewPlan, make_views, plan_views

if TYPE_CHECKING:
    from poise.data import ImageSet, Item

A = TypeVar("A")
Z = TypeVar("Z")


@dataclass(frozen=True)
class Prepared:
    """One image, ready to be encoded; or the reason why it can't be."""

    item: Item
    picture: Picture | None = None
    plan: ViewPlan | None = None
    views: Tensor | None = None  # [V, 3, S, S]; None where the views are made in batch on the device
    error: str | None = None


@dataclass(frozen=True)
class Preparation:
    """How a dataset's images become views."""

    spec: ImageSpec
    views: int
    augmix: bool
    cut: bool  # make the views here, with Pillow; False: only plan them

    @classmethod
    def of(cls, config: RunConfig, images: ImageSet, spec: ImageSpec) -> Preparation:
        """As the configuration has it; AugMix, unless ordered on or off, as the dataset was opened."""
        augmix = config.augmix == "on" if config.augmix in ("on", "off") else images.augmix
        return cls(spec, config.views, augmix, cut=config.view_engine == "pil")

    def __call__(self, item: Item, seed: int) -> Prepared:
        """Read one item. What can't be read costs this image its answer, never the run."""
        try:
            picture = read_image(item.source())
        except PoiseError as problem:
            return Prepared(item, error=f"{problem.code}: {problem}")
        except OSError as problem:
            return Prepared(item, error=f"unreadable_image: {problem}")
        plan = plan_views(picture.image.size, views=self.views, seed=seed, key=picture.key, augmix=self.augmix)
        views = make_views(picture.image, self.spec, plan) if self.cut else None
        return Prepared(item, picture, plan, views)


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
