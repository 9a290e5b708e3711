"""What a job would take, from a sample of its images."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from poise.data.items import Held
from poise.data.sources import ItemShard, Shard, bytes_of, sample
from poise.data.stored_features import FeatureShard
from poise.errors import InvalidOptionError

SAMPLE = 200  # images
_TAR_OVERHEAD = 1024  # bytes of a member beside its content: its header, and half a block


@dataclass(frozen=True)
class Estimate:
    """What a job would take with one worker like this process.

    Attributes:
        images: of the whole job; estimated from the size of tars, otherwise counted.
        counted: whether they were counted.
        sampled: images that were computed for this.
        rate: images per second.
        bytes: of the parts.
    """

    images: float
    counted: bool
    sampled: int
    rate: float
    bytes: float

    @property
    def seconds(self) -> float:
        """Time of one worker."""
        return self.images / self.rate


def estimate(job: Any, shards: Sequence[Shard]) -> Estimate:
    """Compute a sample of the images, into a temporary folder, and extrapolate."""
    with tempfile.TemporaryDirectory() as folder:
        worker = replace(job, out=folder).worker()
        if isinstance(shards[0], FeatureShard):
            chosen: Shard = shards[0]
            each = 0.0
        else:
            items = sample(shards, SAMPLE)
            if not items:
                raise InvalidOptionError("None of the sampled images can be read.", hint="Check the sources.")
            chosen = ItemShard("sample", tuple(items))
            held = [len(item.read.content) + _TAR_OVERHEAD for item in items if isinstance(item.read, Held)]
            each = sum(held) / len(held) if held else 0.0
        began = time.perf_counter()
        done = worker.work((0, chosen))
        seconds = time.perf_counter() - began
        size = (Path(folder) / "part-000000.parquet").stat().st_size
    known = [shard.images() for shard in shards]
    images = sum(number for number in known if number is not None)
    if each:
        images += sum(bytes_of(shards).values()) / each
    return Estimate(images, None not in known, done.images, done.images / seconds, size / done.images * images)
