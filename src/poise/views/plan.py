"""Random parameters of an image's views, from a counter-based generator keyed by (seed, image key, view index).

Crops follow torchvision's RandomResizedCrop with its defaults, AugMix follows Hendrycks et al. (2020) as TPT uses it.
"""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass

import numpy as np

from poise.defaults import DEFAULT_VIEWS
from poise.errors import InvalidOptionError
from poise.views.magnitudes import OPERATIONS

SCALE = (0.08, 1.0)  # area of a crop as a fraction of the image's area
RATIO = (3 / 4, 4 / 3)  # aspect ratio of a crop, width / height
TRIES = 10  # draws of a crop's shape before falling back to a centre crop
CHAINS = 3
DEPTH = 3  # maximum depth; a chain has 1, 2 or 3 operations
LEVELS = (0.1, 1.0)  # range of an operation's level at severity 1

# Each view reserves this many random numbers, used or not, so that its parameters depend neither on other views, nor on
# V, nor on whether AugMix is on. Layout: crop shapes, crop position, flip, mix, chain weights, depths, operations.
_NUMBERS = 64
_SHAPES = slice(0, 2 * TRIES)
_POSITION = slice(20, 22)
_FLIP = 22
_KEEP = 23
_WEIGHTS = slice(24, 27)
_DEPTHS = slice(27, 30)
_STEPS = slice(30, 57)


@dataclass(frozen=True, eq=False)
class AugMixPlan:
    """AugMix parameters of views 1..V-1; step d of chain k is applied if d < depths[:, k]."""

    depths: np.ndarray  # [V-1, 3] int64 in 1..3
    operations: np.ndarray  # [V-1, 3, 3] int64, index into OPERATIONS; axes: view, chain, step
    levels: np.ndarray  # [V-1, 3, 3] float64
    signs: np.ndarray  # [V-1, 3, 3] float64, 1 or -1: direction of rotations, shears and shifts
    weights: np.ndarray  # [V-1, 3] float32: weights of the chains, summing to 1
    keep: np.ndarray  # [V-1] float32: weight of the unmodified crop in the result


@dataclass(frozen=True, eq=False)
class ViewPlan:
    """Random parameters of the views of one image. View 0 is the plain image and has none."""

    size: tuple[int, int]  # width, height of the image to which the boxes refer
    boxes: np.ndarray  # [V-1, 4] int64: left, top, width, height
    flips: np.ndarray  # [V-1] bool
    augmix: AugMixPlan | None = None

    @property
    def views(self) -> int:
        """The number of views V, including the plain view."""
        return len(self.boxes) + 1


def plan_views(
    size: tuple[int, int],
    *,
    views: int = DEFAULT_VIEWS,
    seed: int = 0,
    key: str = "",
    augmix: bool = False,
    first: int = 1,
) -> ViewPlan:
    """Draw the crops, flips and AugMix parameters of an image of ``size`` (width, height).

    The seed, the image's ``key`` and the number of a view (from ``first`` on) determine the parameters of that view;
    the crops do not depend on ``augmix``.
    """
    if views < 1:
        raise InvalidOptionError(f"views={views} is not accepted.", hint="Give 1 (the plain view alone) or more.")
    width, height = size
    if width < 1 or height < 1:
        raise InvalidOptionError(
            f"An image of {width} x {height} pixels was given.", hint="Both sides must be at least 1."
        )
    uniform = _uniform(seed, key, first - 1 + views - 1)[first - 1 :]
    boxes = _crop_boxes(uniform[:, _SHAPES], uniform[:, _POSITION], width, height)
    flips = uniform[:, _FLIP] < 0.5
    return ViewPlan((width, height), boxes, flips, _plan_augmix(uniform) if augmix else None)


def _uniform(seed: int, key: str, rows: int) -> np.ndarray:
    """Return uniform numbers [rows, 64] in [0, 1), float64; row i belongs to view i + 1."""
    digest = hashlib.blake2b(f"{seed}\0{key}".encode(), digest_size=16).digest()
    stream = np.random.Philox(key=np.frombuffer(digest, dtype="<u8").astype(np.uint64))
    raw = stream.random_raw(rows * _NUMBERS).reshape(rows, _NUMBERS)
    return np.asarray((raw >> np.uint64(11)) * 2.0**-53)


def _crop_boxes(shapes: np.ndarray, position: np.ndarray, width: int, height: int) -> np.ndarray:
    """Return the first of ten drawn shapes that fits, at a uniform position, or else the largest centre crop."""
    area = width * height * (SCALE[0] + (SCALE[1] - SCALE[0]) * shapes[:, 0::2])  # [V-1, tries]
    low, high = math.log(RATIO[0]), math.log(RATIO[1])
    ratio = np.exp(low + (high - low) * shapes[:, 1::2])
    widths = np.rint(np.sqrt(area * ratio)).astype(np.int64)
    heights = np.rint(np.sqrt(area / ratio)).astype(np.int64)
    fits = (widths > 0) & (widths <= width) & (heights > 0) & (heights <= height)
    first = fits.argmax(axis=1)
    rows = np.arange(len(shapes))
    fitting, w, h = fits[rows, first], widths[rows, first], heights[rows, first]
    left = (position[:, 1] * (width - w + 1)).astype(np.int64)
    top = (position[:, 0] * (height - h + 1)).astype(np.int64)
    drawn = np.stack([left, top, w, h], axis=1)
    return np.where(fitting[:, None], drawn, np.array(_central_box(width, height), dtype=np.int64))


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
    # Three unit exponentials divided by their sum are Dirichlet(1, 1, 1) distributed; 1 - u is never 0.
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
