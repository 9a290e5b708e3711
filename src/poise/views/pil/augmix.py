"""AugMix on PIL images, operation by operation as published (Hendrycks et al. 2020, as used by TPT).

Three chains of one to three operations are applied to the crop; their results and the crop are mixed after
normalisation.
"""

from __future__ import annotations

import numpy as np
import torch
from PIL import Image, ImageOps
from torch import Tensor

from poise.types import ImageSpec
from poise.views.magnitudes import (
    OPERATIONS,
    affine_matrices,
    posterize_bits,
    rotate_degrees,
    solarize_threshold,
    translate_pixels,
)
from poise.views.pixels import normalise, to_tensor
from poise.views.plan import AugMixPlan


def apply_operation(image: Image.Image, name: str, level: float, sign: float = 1.0) -> Image.Image:
    """Apply one operation at a level in [0.1, 1); ``sign`` -1 reverses the direction of geometric operations."""
    strength = np.asarray(level)
    if name == "autocontrast":
        return ImageOps.autocontrast(image)
    if name == "equalize":
        return ImageOps.equalize(image)
    if name == "posterize":
        return ImageOps.posterize(image, int(posterize_bits(strength)))
    if name == "solarize":
        return ImageOps.solarize(image, int(solarize_threshold(strength)))
    if name == "rotate":
        return image.rotate(sign * int(rotate_degrees(strength)), resample=Image.Resampling.BILINEAR)
    if name in ("translate_x", "translate_y"):
        shift = int(sign * translate_pixels(strength, image.width))
        x, y = (shift, 0) if name == "translate_x" else (0, shift)
        return image.crop((x, y, x + image.width, y + image.height))  # black outside the image, as in a warp
    code = np.array([OPERATIONS.index(name)])
    matrix = affine_matrices(code, np.array([level]), np.array([sign]), image.width)[0]
    return image.transform(image.size, Image.Transform.AFFINE, matrix.tolist(), resample=Image.Resampling.BILINEAR)


def run_chains(crop: Image.Image, plan: AugMixPlan, row: int) -> list[Image.Image]:
    """Return the results of the three chains on a crop, for row ``row`` (view ``row + 1``) of the plan."""
    results = []
    for chain, depth in enumerate(plan.depths[row]):
        image = crop
        for step in range(depth):
            name = OPERATIONS[plan.operations[row, chain, step]]
            image = apply_operation(image, name, plan.levels[row, chain, step], plan.signs[row, chain, step])
        results.append(image)
    return results


def augmix_view(crop: Image.Image, spec: ImageSpec, plan: AugMixPlan, row: int) -> Tensor:
    """Return the normalised AugMix view [3, S, S] of a crop, mixed after normalisation as published."""
    plain = normalise(to_tensor(crop), spec)
    mixed = torch.zeros_like(plain)
    for weight, image in zip(plan.weights[row], run_chains(crop, plan, row), strict=True):
        mixed += float(weight) * normalise(to_tensor(image), spec)
    keep = float(plan.keep[row])
    return keep * plain + (1 - keep) * mixed


def augmix_pixels(crop: Image.Image, plan: AugMixPlan, row: int) -> Tensor:
    """Return the view before normalisation, float32 [3, S, S] in 0..255; equivalent, as the weights sum to one."""
    images = [np.asarray(image) for image in (crop, *run_chains(crop, plan, row))]
    keep = plan.keep[row]
    weights = np.concatenate([[keep], (1 - keep) * plan.weights[row]]).astype(np.float32)
    mixed = weights @ np.stack(images).reshape(len(images), -1).astype(np.float32)
    return torch.from_numpy(mixed.reshape(images[0].shape)).permute(2, 0, 1)
