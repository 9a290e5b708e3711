"""How long a run will take on this machine: a few images are computed, under the fewest and the most labels."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from poise.evaluate.prepare import PreparedRun
from poise.evaluate.units import Unit
from poise.evaluate.worker import Worker, WorkerSettings


@dataclass(frozen=True)
class Estimate:
    """The time of a run, from a few images."""

    seconds: float
    images: int  # times seeds, still to be computed
    timed: int  # images that were computed to know it


def estimate(prepared: PreparedRun, data: str, done: Mapping[str, int], *, workers: int = 0) -> Estimate:
    """Time two batches (the second one counts) under the fewest and the most labels of the run's datasets.

    Tuning passes all labels through the text tower, so that an image takes a fixed time and a time per label.

    Args:
        prepared: the run.
        data: the folder of the datasets.
        done: the images, times seeds, that are already finished, by dataset.
        workers: threads or processes that read images.
    """
    config, sets = prepared.config, prepared.sets
    left = {name: len(config.seeds) * len(prepared.chosen[name]) - done.get(name, 0) for name in sets}
    left = {name: number for name, number in left.items() if number > 0}
    if not left:
        return Estimate(0.0, 0, 0)
    worker = Worker(WorkerSettings(config, data, workers), sets)
    classes = {name: len(sets[name].classes) for name in left}
    timed = dict.fromkeys((min(left, key=classes.__getitem__), max(left, key=classes.__getitem__)))
    per_image, count = {}, 0
    for name in timed:
        items = tuple(prepared.chosen[name][: config.batch_size])
        for _ in range(2):  # the first one also compiles, allocates and encodes the labels
            began = time.perf_counter()
            list(worker.run([Unit(name, name, config.seeds[0], 0, items)]))
            per_image[classes[name]] = (time.perf_counter() - began) / len(items)
            count += len(items)
    known = sorted(per_image)
    seconds = sum(
        number * float(np.interp(classes[name], known, [per_image[k] for k in known])) for name, number in left.items()
    )
    return Estimate(seconds, sum(left.values()), count)


def spoken(seconds: float) -> str:
    """Return a time as people say it.

    >>> spoken(95), spoken(7300), spoken(200000)
    ('2 minutes', '2.0 hours', '2.3 days')
    """
    if seconds < 90:
        return f"{seconds:.0f} seconds"
    if seconds < 5400:
        return f"{seconds / 60:.0f} minutes"
    return f"{seconds / 3600:.1f} hours" if seconds < 172800 else f"{seconds / 86400:.1f} days"
