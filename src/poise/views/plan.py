"""The random numbers behind the views of a picture, from a counter keyed by (seed, picture key, view index).

Crops follow torchvision's RandomResizedCrop at its defaults, AugMix follows Hendrycks et al. (2020) as TPT uses it.
"""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass

import numpy as np

from poise.errors import InvalidOptionError
from poise.views.magnitudes import OPERATIONS

SCALE = (0.08, 1.0)  # a crop's share of the picture's area
RATIO = (3 / 4, 4 / 3)  # a crop's width over its height
TRIES = 10  # draws of a crop's shape before the central fallback
CHAINS = 3
DEPTH = 3  # at most; each chain's depth is 1, 2 or 3
LEVELS = (0.1, 1.0)  # an operation's level at severity 1

# Each view owns this many numbers of the stream, used or not: so view v's numbers depend on no other view, on V, or
# on whether AugMix is on. Layout: crop shapes, crop place, flip, mix, chain weights, depths, operations.
_NUMBERS = 64
_SHAPES = slice(0, 2 * TRIES)
_PLACE = slice(20, 22)
_FLIP = 22
_KEEP = 23
_WEIGHTS = slice(24, 27)
_DEPTHS = slice(27, 30)
_STEPS = slice(30, 57)


@dataclass(frozen=True, eq=False)
class AugMixPlan:
    """AugMix's draws for views 1..V-1; the step d of chain k is applied where d < depths[:, k]."""

    depths: np.ndarray  # [V-1, 3] int64 in 1..3
    operations: np.ndarray  # [V-1, 3, 3] int64 into OPERATIONS; axes: view, chain, step
    levels: np.ndarray  # [V-1, 3, 3] float64
    signs: np.ndarray  # [V-1, 3, 3] float64, 1 or -1: direction of rotations, shears and shifts
    weights: np.ndarray  # [V-1, 3] float32: the chains' shares, summing to 1
    keep: np.ndarray  # [V-1] float32: share of the untouched crop in the result


@dataclass(frozen=True, eq=False)
class ViewPlan:
    """Everything random about the views of one picture. View 0 is the plain picture and needs no numbers."""

    size: tuple[int, int]  # width, height of the picture that the boxes are for
    boxes: np.ndarray  # [V-1, 4] int64: left, top, width, height
    flips: np.ndarray  # [V-1] bool
    augmix: AugMixPlan | None = None

    @property
    def views(self) -> int:
        """V, the plain view included."""
        return len(self.boxes) + 1


def plan_views(
    size: tuple[int, int], *, views: int = 64, seed: int = 0, key: str = "", augmix: bool = False
) -> ViewPlan:
    """Draw the crops, flips and AugMix parameters of a picture of the given (width, height).

    The numbers of view v depend on ``seed``, ``key`` (``LoadedImage.key``) and v alone: not on ``views``, on other
    pictures, or on ``augmix``.

    Raises:
        InvalidOptionError: ``views`` is below 1 or the size has no pixels.
    """
    if views < 1:
        raise InvalidOptionError(f"views={views} is not accepted.", hint="Give 1 (the plain view alone) or more.")
    width, height = size
    if width < 1 or height < 1:
        raise InvalidOptionError(
            f"A picture of {width} x {height} has no pixels.", hint="Both sides must be at least 1."
        )
    uniform = _uniform(seed, key, views - 1)
    boxes = _crop_boxes(uniform[:, _SHAPES], uniform[:, _PLACE], width, height)
    flips = uniform[:, _FLIP] < 0.5
    return ViewPlan((width, height), boxes, flips, _plan_augmix(uniform) if augmix else None)


def _uniform(seed: int, key: str, rows: int) -> np.ndarray:
    """[rows, numbers] float64 in [0, 1): row i from the counters of view i + 1."""
    digest = hashlib.blake2b(f"{seed}\0{key}".encode(), digest_size=16).digest()
    stream = np.random.Philox(key=np.frombuffer(digest, dtype="<u8").astype(np.uint64))
    raw = stream.random_raw(rows * _NUMBERS).reshape(rows, _NUMBERS)
    return np.asarray((raw >> np.uint64(11)) * 2.0**-53)


def _crop_boxes(shapes: np.ndarray, place: np.ndarray, width: int, height: int) -> np.ndarray:
    """The first of ten drawn shapes that fits, at a uniform place; if none fits, the largest allowed central crop."""
    area = width * height * (SCALE[0] + (SCALE[1] - SCALE[0]) * shapes[:, 0::2])  # [V-1, tries]
    low, high = math.log(RATIO[0]), math.log(RATIO[1])
    ratio = np.exp(low + (high - low) * shapes[:, 1::2])
    widths = np.rint(np.sqrt(area * ratio)).astype(np.int64)
    heights = np.rint(np.sqrt(area / ratio)).astype(np.int64)
    fits = (widths > 0) & (widths <= width) & (heights > 0) & (heights <= height)
    first = fits.argmax(axis=1)
    rows = np.arange(len(shapes))
    found, w, h = fits[rows, first], widths[rows, first], heights[rows, first]
    left = (place[:, 1] * (width - w + 1)).astype(np.int64)
    top = (place[:, 0] * (height - h + 1)).astype(np.int64)
    drawn = np.stack([left, top, w, h], axis=1)
    return np.where(found[:, None], drawn, np.array(_central_box(width, height), dtype=np.int64))


def _central_box(width: int, height: int) -> tuple[int, int, int, int]:
    w, h = width, height
    if width / height < RATIO[0]:
        h = round(width / RATIO[0])
    elif width / height > RATIO[1]:
        w = round(height * RATIO[1])
    return (width - w) // 2, (height - h) // 2, w, h


def _plan_augmix(uniform: np.ndarray) -> AugMixPlan:
    rows = len(uniform)
    steps = uniform[:, _STEPS].reshape(rows, CHAINS, DEPTH, 3)
    # Dirichlet(1, 1, 1) is three unit exponentials over their sum; 1 - u is never 0.
    exponentials = -np.log1p(-uniform[:, _WEIGHTS])
    total = np.maximum(exponentials.sum(axis=1, keepdims=True), np.finfo(np.float64).tiny)
    return AugMixPlan(
        depths=1 + (uniform[:, _DEPTHS] * DEPTH).astype(np.int64),
        operations=(steps[..., 0] * len(OPERATIONS)).astype(np.int64),
        levels=LEVELS[0] + (LEVELS[1] - LEVELS[0]) * steps[..., 1],
        signs=np.where(steps[..., 2] > 0.5, -1.0, 1.0),
        weights=(exponentials / total).astype(np.float32),
        keep=uniform[:, _KEEP].astype(np.float32),  # Beta(1, 1) is uniform
    )
