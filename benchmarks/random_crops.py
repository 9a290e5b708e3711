"""Random crops of many images at once, on a GPU, for `distil.py`."""

from __future__ import annotations

import io
import math
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torch.nn import functional as F


@dataclass(frozen=True)
class Squares:
    """Images resized to squares [N, 3, R, R] of bytes, and width / height [N] before that."""

    pixels: Tensor
    aspect: Tensor

    @classmethod
    def read(cls, files: Sequence[bytes], side: int, device: torch.device) -> Squares:
        def square(file: bytes) -> tuple[np.ndarray, float]:
            image = Image.open(io.BytesIO(file)).convert("RGB")
            return np.asarray(image.resize((side, side), Image.Resampling.BICUBIC)), image.width / image.height

        with ThreadPoolExecutor() as pool:
            arrays, aspect = zip(*pool.map(square, files), strict=True)
        pixels = torch.from_numpy(np.stack(arrays)).permute(0, 3, 1, 2).contiguous()
        return cls(pixels.to(device), torch.tensor(aspect, device=device))


@dataclass(frozen=True)
class Cut:
    """Crops of a batch, before they are resized: pixels [B, 3, R, R], affine maps [B, 2, 3], colours [B, 3], mix [B].

    The colours are factors of brightness, contrast and saturation. ``mix`` is the share of the image itself; the rest
    is another image of the batch.
    """

    pixels: Tensor
    maps: Tensor
    colours: Tensor
    mix: Tensor

    @classmethod
    def random(cls, squares: Squares, rows: Tensor) -> Cut:
        def uniform(low: float, high: float) -> Tensor:
            return torch.empty(len(rows), device=rows.device).uniform_(low, high)

        aspect, area, ratio = squares.aspect[rows], uniform(0.1, 1), uniform(math.log(3 / 4), math.log(4 / 3)).exp()
        width, height = (area * ratio / aspect).sqrt().clamp(max=1), (area * aspect / ratio).sqrt().clamp(max=1)
        x, y = (uniform(-1, 1) * (1 - side) for side in (width, height))
        flip = uniform(-1, 1).sign()
        colours = torch.stack([uniform(0.6, 1.4) for _ in range(3)], 1)
        colours[:, 2] *= uniform(0, 1) > 0.1  # some images in grey
        mix = torch.where(uniform(0, 1) < 0.5, 1.0, uniform(0.5, 1))
        return cls(squares.pixels[rows], _maps(flip * width, height, x, y), colours, mix)

    @classmethod
    def central(cls, squares: Squares, rows: Tensor) -> Cut:
        aspect, zero = squares.aspect[rows], torch.zeros(len(rows), device=rows.device)
        maps = _maps((1 / aspect).clamp(max=1), aspect.clamp(max=1), zero, zero)
        return cls(squares.pixels[rows], maps, torch.ones(len(rows), 3, device=rows.device), 1 - zero)

    def resized(self, size: int, mean: Sequence[float], std: Sequence[float]) -> Tensor:
        """Return normalised images [B, 3, size, size]."""
        grid = F.affine_grid(self.maps, [len(self.maps), 3, size, size], align_corners=False)
        x = F.grid_sample(self.pixels.float() / 255, grid, padding_mode="border", align_corners=False)
        brightness, contrast, saturation = self.colours.T[..., None, None, None]
        x = x * brightness
        middle = x.mean((1, 2, 3), keepdim=True)
        x = middle + contrast * (x - middle)
        grey = x.mean(1, keepdim=True)
        x = (grey + saturation * (x - grey)).clamp(0, 1)
        mix = self.mix[:, None, None, None]
        x = mix * x + (1 - mix) * x.flip(0)
        return (x - x.new_tensor(mean)[:, None, None]) / x.new_tensor(std)[:, None, None]


def _maps(width: Tensor, height: Tensor, x: Tensor, y: Tensor) -> Tensor:
    zero = torch.zeros_like(x)
    return torch.stack([torch.stack([width, zero, x], 1), torch.stack([zero, height, y], 1)], 1)
