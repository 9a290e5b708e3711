"""The joint space: ImageNet's class rows in a rotated, slightly whitened basis, and the image projection that fits it.

The classifier's logits are W x + b. Taking the mean row from W changes no prediction; b is carried by an offset a with
W a = b, so W (x + a) are the same logits. In the basis of W's leading singular vectors V, with singular values s, any
power s^p may move from one side to the other: texts get s^-p V^T w, images s^p V^T (x + a). Cosine needs no more.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

WIDTH, POWER = 512, 0.25


@dataclass(frozen=True)
class Space:
    """`rows` [1000, D] are the text targets of the classes (unit length); images are `weight @ x + bias`."""

    rows: Tensor
    weight: Tensor
    bias: Tensor

    def images(self, features: Tensor) -> Tensor:
        """Pooled trunk features -> unit vectors of the joint space."""
        return F.normalize(features @ self.weight.T.to(features) + self.bias.to(features), dim=-1)


def build(weight: Tensor, bias: Tensor, width: int = WIDTH, power: float = POWER) -> Space:
    """The space of a classifier with these rows."""
    rows = (weight - weight.mean(0)).double()
    offset = torch.linalg.lstsq(rows, (bias - bias.mean()).double()[:, None], driver="gelsd").solution[:, 0]
    _, values, basis = torch.linalg.svd(rows, full_matrices=False)
    values, basis = values[:width] / values[0], basis[:width]
    signs = torch.sign(
        basis.gather(1, basis.abs().argmax(1, keepdim=True))
    )  # a singular vector's sign is arbitrary: fix it
    basis = basis * signs
    image = values[:, None] ** power * basis
    texts = F.normalize(rows @ basis.T * values**-power, dim=-1)
    return Space(texts.float(), image.float(), (image @ offset).float())
