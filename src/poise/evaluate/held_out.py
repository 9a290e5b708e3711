"""Calibration images of a run (``calibrate``): how they are drawn, and which numbers of them are refused.

A run computes all images alike. Reports take the N images with the lowest hash of a fixed seed and their id: the same
ones for every method and seed, whatever the order of the files and their labels. They are a random sample, as the
guarantees of prediction sets and certified thresholds require; a class may have no image among them.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING

from poise.calibration import images_for_coverage, images_for_error
from poise.errors import InvalidOptionError
from poise.evaluate.streams import stream
from poise.text import counted

if TYPE_CHECKING:
    from poise.evaluate.config import RunConfig

SEED = 0
DELTA = 0.05  # accepted probability that a certified threshold has a larger error


def draw(ids: Collection[str], number: int) -> frozenset[str]:
    """Return the ids of the calibration images.

    >>> draw(["a", "b", "c", "d"], 2) == draw(["d", "c", "b", "a"], 2)
    True
    """
    names = sorted(ids)
    return frozenset(names[position] for position in stream(names, range(len(names)), SEED)[:number])


def check_calibration(config: RunConfig) -> None:
    """Refuse a number of calibration images that can't give what was asked for, and answers that depend on order."""
    from poise.evaluate.resolve import is_ordered, make_methods

    if config.calibrate == 0:
        for name in ("coverage", "max_error"):
            if getattr(config, name) != getattr(type(config), name):
                raise InvalidOptionError(
                    f"'{name}' is {getattr(config, name)}, and there are no calibration images.",
                    hint="Give their number as well (--calibrate).",
                )
        return
    for_sets, for_error = images_for_coverage(config.coverage), images_for_error(config.max_error, DELTA)
    if config.calibrate < max(for_sets, for_error):
        raise InvalidOptionError(
            f"'calibrate' is {config.calibrate}. Sets with a coverage of {config.coverage:g} need at least {for_sets} "
            f"images, and a certified error of at most {config.max_error:g} at least {for_error}.",
            hint="Give more images, or set lower levels, such as --set coverage=0.8 --set max_error=0.1.",
        )
    if is_ordered(config, make_methods(config)):
        raise InvalidOptionError(
            f"'calibrate' is {config.calibrate}, and some answers depend on the images before: calibration images "
            "would not be like the others.",
            hint="Leave out 'calibrate', or the framework and the methods that learn from a stream.",
        )


def remaining(config: RunConfig, dataset: str, images: int) -> int:
    """Return how many of a dataset's ``images`` are left for the metrics."""
    if 0 < images <= config.calibrate:
        raise InvalidOptionError(
            f"'calibrate' is {config.calibrate}, and '{dataset}' has {counted(images, 'image')} in this run: none "
            "would be left.",
            hint="Give fewer calibration images, or more images (--limit).",
        )
    return images - config.calibrate
