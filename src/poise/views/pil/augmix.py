"""AugMix on PIL pictures, operation by operation as published (Hendrycks et al. 2020, in TPT's form).

Three chains of one to three operations start from the crop; their results and the crop itself are mixed after
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
    """One operation at a level drawn from U(0.1, 1); ``sign`` -1 reverses the direction of a geometric one."""
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
    if name == "translate_x":
        shift = int(sign * translate_pixels(strength, image.width))
        return image.crop(
            (shift, 0, shift + image.width, image.height)
        )  # black where the picture ends, as a warp has it
    if name == "translate_y":
        shift = int(sign * translate_pixels(strength, image.width))
        return image.crop((0, shift, image.width, shift + image.height))
    place = np.array([OPERATIONS.index(name)])
    matrix = affine_matrices(place, np.array([level]), np.array([sign]), image.width)[0]
    return image.transform(image.size, Image.Transform.AFFINE, matrix.tolist(), resample=Image.Resampling.BILINEAR)


def run_chains(crop: Image.Image, plan: AugMixPlan, row: int) -> list[Image.Image]:
    """What the three chains make of a crop, under row ``row`` (view ``row + 1``) of the plan."""
    results = []
    for chain, depth in enumerate(plan.depths[row]):
        image = crop
        for step in range(depth):
            name = OPERATIONS[plan.operations[row, chain, step]]
            image = apply_operation(image, name, plan.levels[row, chain, step], plan.signs[row, chain, step])
        results.append(image)
    return results


def augmix_view(crop: Image.Image, spec: ImageSpec, plan: AugMixPlan, row: int) -> Tensor:
    """The normalised AugMix [3, S, S] of a crop, mixed after normalisation as published."""
    plain = normalise(to_tensor(crop), spec)
    mixed = torch.zeros_like(plain)
    for weight, image in zip(plan.weights[row], run_chains(crop, plan, row), strict=True):
        mixed += float(weight) * normalise(to_tensor(image), spec)
    keep = float(plan.keep[row])
    return keep * plain + (1 - keep) * mixed


def augmix_pixels(crop: Image.Image, plan: AugMixPlan, row: int) -> Tensor:
    """The same before normalisation, float32 [3, S, S] in 0..255: one weighted sum, since the shares sum to one."""
    pictures = [np.asarray(image) for image in (crop, *run_chains(crop, plan, row))]
    keep = plan.keep[row]
    shares = np.concatenate([[keep], (1 - keep) * plan.weights[row]]).astype(np.float32)
    mixed = shares @ np.stack(pictures).reshape(len(pictures), -1).astype(np.float32)
    return torch.from_numpy(mixed.reshape(pictures[0].shape)).permute(2, 0, 1)
