"""Between pictures, uint8 tensors and the normalised values that a model reads."""

from __future__ import annotations

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from poise.types import ImageSpec


def to_tensor(image: Image.Image) -> Tensor:
    """The RGB pixels as uint8 [3, H, W], in the memory order of the picture (channels last)."""
    return torch.from_numpy(np.array(image)).permute(2, 0, 1)


def to_image(pixels: Tensor) -> Image.Image:
    """The RGB picture of uint8 [3, H, W]."""
    return Image.fromarray(pixels.permute(1, 2, 0).contiguous().numpy())


def normalise(pixels: Tensor, spec: ImageSpec) -> Tensor:
    """(pixels / 255 - mean) / std over the channels of [..., 3, H, W], in float32; values 0..255 of any type."""
    mean = torch.tensor(spec.mean, device=pixels.device)[:, None, None]
    std = torch.tensor(spec.std, device=pixels.device)[:, None, None]
    return pixels.to(torch.float32).div(255).sub_(mean).div_(std)
