"""The image tower compiled, for runs that are long enough to pay for it."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from poise.backbones.encoder import Encoder, Pictures


class _Compiled:
    """Compiled for one number of pictures; any other number goes the usual way, as each would be compiled anew."""

    def __init__(self, forward: Pictures, pictures: int) -> None:
        self._usual = forward
        self._count = pictures
        self._fast = torch.compile(lambda pictures: forward(pictures), dynamic=False)

    def __call__(self, pictures: Tensor) -> Tensor:
        """[N, 3, S, S] -> [N, D]."""
        found: Tensor = self._fast(pictures) if len(pictures) == self._count else self._usual(pictures)
        return found


def compile_images(encoder: Encoder) -> None:
    """Compile the encoder's image tower, on its first full chunk of pictures; results change by rounding only."""
    encoder.image_side = replace(encoder.image_side, forward=_Compiled(encoder.image_side.forward, encoder.chunk))
