"""Views of models that read an image in its own aspect ratio, as a sequence of patches (SigLIP 2 NaFlex).

Such an image has at most ``most`` patches, in rows and columns that depend on its shape. All views of a batch are
tensors of one size, so the patches are written row by row into a square that has room for one patch more. The last
patch holds a mark and the numbers of rows and columns.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from poise.types import PatchGrid

_MARK = -16384.0  # far outside of normalised pixels, and exact in all dtypes
_DIGIT = 64  # the numbers are written in two digits, which bfloat16 holds exactly


def grid_shape(size: tuple[int, int], grid: PatchGrid) -> tuple[int, int]:
    """Return the rows and columns of patches of an image of ``size`` (width, height).

    The image is resized by the largest factor (to five digits, by bisection as transformers does) with which both
    sides, rounded up to whole patches, have at most ``grid.most`` patches.
    """
    low, high = 1e-6, 100.0
    while high - low >= 1e-5:
        middle = (low + high) / 2
        rows, columns = _cells(size, middle, grid.patch)
        low, high = (middle, high) if rows * columns <= grid.most else (low, middle)
    return _cells(size, low, grid.patch)


def _cells(size: tuple[int, int], factor: float, patch: int) -> tuple[int, int]:
    width, height = (max(1, math.ceil(side * factor / patch)) for side in size)
    return height, width


def pack(image: Tensor, grid: PatchGrid) -> Tensor:
    """Return an image [3, rows * patch, columns * patch] as a view [3, S, S]."""
    side, cells = grid.patch, grid.size // grid.patch
    rows, columns = image.shape[1] // side, image.shape[2] // side
    slots = image.new_zeros(cells * cells, 3, side, side)
    slots[: rows * columns] = _split(image, side)
    slots[-1, 0, 0, 0] = _MARK
    slots[-1, 1, 0, :2] = torch.tensor(divmod(rows, _DIGIT))
    slots[-1, 2, 0, :2] = torch.tensor(divmod(columns, _DIGIT))
    return _join(slots, cells)


def unpack(views: Tensor, grid: PatchGrid) -> tuple[Tensor, Tensor]:
    """Return the patches [N, P, 3, patch, patch] and the rows and columns [N, 2] of views [N, 3, S, S].

    P is the number of patches of the largest view; what follows a view's own patches has no meaning. A view without the
    mark is an image of S x S pixels.
    """
    side, cells = grid.patch, grid.size // grid.patch
    slots = views.unflatten(3, (cells, side)).unflatten(2, (cells, side)).permute(0, 2, 4, 1, 3, 5).flatten(1, 2)
    head = slots[:, -1]
    digits = head[:, 1:, 0, :2].float()
    shapes = (digits[:, :, 0] * _DIGIT + digits[:, :, 1]).round()
    marked = (head[:, 0, 0, 0] == _MARK)[:, None]
    shapes = torch.where(marked, shapes, torch.full_like(shapes, cells)).long()
    return slots[:, : int(shapes.prod(1).max())], shapes


def image_of(view: Tensor, grid: PatchGrid) -> Tensor:
    """Return the image [3, H, W] of a view [3, S, S]: the inverse of `pack`."""
    patches, shapes = unpack(view[None], grid)
    return _join(patches[0], int(shapes[0, 1]))


def _split(image: Tensor, side: int) -> Tensor:
    rows, columns = image.shape[1] // side, image.shape[2] // side
    return image.reshape(3, rows, side, columns, side).permute(1, 3, 0, 2, 4).flatten(0, 1)


def _join(patches: Tensor, columns: int) -> Tensor:
    side = patches.shape[-1]
    rows = patches.shape[0] // columns
    return patches.unflatten(0, (rows, columns)).permute(2, 0, 3, 1, 4).reshape(3, rows * side, columns * side)
