"""Conversion between PIL images, uint8 tensors and the normalised input of a model."""

from __future__ import annotations

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from poise.types import ImageSpec
from poise.views.patches import image_of


def to_tensor(image: Image.Image) -> Tensor:
    """Return an RGB image as uint8 [3, H, W], in the memory order of the image (channels last)."""
    return torch.from_numpy(np.array(image)).permute(2, 0, 1)


def to_image(pixels: Tensor) -> Image.Image:
    """Return uint8 pixels [3, H, W] as an RGB image."""
    return Image.fromarray(pixels.permute(1, 2, 0).contiguous().numpy())


def normalise(pixels: Tensor, spec: ImageSpec) -> Tensor:
    """Return (pixels / 255 - mean) / std per channel in float32, for pixels [..., 3, H, W] in 0..255 of any dtype."""
    mean = torch.tensor(spec.mean, device=pixels.device)[:, None, None]
    std = torch.tensor(spec.std, device=pixels.device)[:, None, None]
    return pixels.to(torch.float32).div(255).sub_(mean).div_(std)


def pixels_of(view: Tensor, spec: ImageSpec) -> Tensor:
    """Return the pixels [3, H, W] in uint8 of a normalised view: the inverse of `normalise`."""
    view = view if spec.grid is None else image_of(view, spec.grid)
    mean = torch.tensor(spec.mean, device=view.device)[:, None, None]
    std = torch.tensor(spec.std, device=view.device)[:, None, None]
    return view.float().mul(std).add_(mean).mul_(255).round_().clamp_(0, 255).to(torch.uint8)
