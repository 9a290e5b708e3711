"""The derivative of all class texts with respect to the starting prompt, written out as one matrix.

Every image starts from the same prompt, so J = d features / d context is the same for all of them: with J at hand, the
first step's gradient of a batch of images is one matrix product, and nothing runs backwards through the text tower.
"""

from __future__ import annotations

import torch
from torch import Tensor

from poise.types import ClassTokens, DualEncoder, Prompt

MOST_BYTES = {"cuda": 5 << 29, "cpu": 1 << 30}  # 2.5 GiB: 1000 classes of ViT-B/16 in half precision take 2.0
_LARGEST = 3e4  # of a product in half precision, whose range ends at 65504


def pays(classes: ClassTokens, start: Prompt, features: Tensor, dtype: torch.dtype, images: int) -> bool:
    """Whether J is worth its making for ``images`` gradients, and fits.

    It takes one backward pass per feature dimension, with the context's tokens repeated for each class.
    """
    if start.context.ndim != 3 or len(start.parts()) > 1 or start.context.shape[-2] == 0:
        return False
    size = features.numel() * start.context.numel() * dtype.itemsize
    own = int(classes.lengths.sum()) / len(classes) - classes.shared
    passes = features.shape[-1] * (1 + (start.context.shape[1] + 1) / own)
    return size <= MOST_BYTES.get(features.device.type, 0) and images >= passes


class TextJacobian:
    """J at the starting prompt, [C * D, M * E] in the encoder's precision."""

    def __init__(self, matrix: Tensor, shape: tuple[int, int]) -> None:
        self.matrix = matrix
        self._shape = shape  # M, E
        self._longest = float(matrix.float().norm(dim=0).max()) if matrix.dtype.itemsize == 2 else 0.0

    @classmethod
    def of(cls, encoder: DualEncoder, classes: ClassTokens, start: Prompt, *, tokens_per_pass: int) -> TextJacobian:
        """Written out class chunk by class chunk, several feature dimensions at a time."""
        own = int(classes.lengths.max()) - classes.shared
        each = own + start.context.shape[1] + 1
        step = max(1, tokens_per_pass // (8 * each))
        parts = [
            _rows(encoder, classes.rows(first, min(first + step, len(classes))), start, each, tokens_per_pass)
            for first in range(0, len(classes), step)
        ]
        return cls(torch.cat(parts), (start.context.shape[1], start.context.shape[2]))

    def pullback(self, cotangent: Tensor) -> Tensor:
        """Gradients of the context [B, M, E] for cotangents [B, C, D] of the features."""
        rows = cotangent.flatten(1)
        # No entry of the product can pass |cotangent| · |column|: half precision is kept clear of its end.
        shrink = (rows.norm(dim=1, keepdim=True) * (self._longest / _LARGEST)).clamp(min=1)
        product = (rows / shrink).to(self.matrix.dtype) @ self.matrix
        return (product.to(rows.dtype) * shrink).unflatten(1, self._shape)


def _rows(encoder: DualEncoder, classes: ClassTokens, start: Prompt, each: int, tokens: int) -> Tensor:
    """J's rows [c * D, M * E] of some classes: a context of their own for each lets one pass serve them all."""
    count = len(classes)
    own = start.context.detach()[:, None].repeat(1, count, 1, 1).requires_grad_()  # [1, c, M, E]
    with torch.enable_grad():
        features = encoder.encode_classes(classes, Prompt(own))  # [1, c, D]
    width = features.shape[-1]
    unit = torch.eye(width, dtype=features.dtype, device=features.device)
    rows = torch.empty(count, width, own.shape[2] * own.shape[3], dtype=encoder.dtype, device=features.device)
    group = max(1, tokens // (count * each))
    for first in range(0, width, group):
        directions = unit[first : first + group, None, None].expand(-1, 1, count, -1)
        (found,) = torch.autograd.grad(features, own, directions, retain_graph=True, is_grads_batched=True)
        rows[:, first : first + group] = found[:, 0].transpose(0, 1).flatten(2).to(rows.dtype)  # [c, g, M * E]
    return rows.flatten(0, 1)
