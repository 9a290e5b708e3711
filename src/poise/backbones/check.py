"""`poise models check`: what was understood of a model, and whether its features equal those of its own library."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from PIL import Image

from poise.backbones.encoder import Encoder
from poise.backbones.fingerprint import fingerprint
from poise.errors import InvalidOptionError
from poise.prompts import init_prompt, tokenise
from poise.prompts.template import DEFAULT_TEMPLATE
from poise.types import DualEncoder
from poise.views import plan_views
from poise.views.pil.crops import make_views

LABELS = ("cat", "Great White Shark", "a dog's life", "café", "X-ray, No. 5 \N{CAT FACE}")
_SIZES = ((96, 96), (200, 75), (60, 180))
LARGEST = {torch.float64: 1e-5, torch.float32: 1e-5, torch.float16: 2e-2, torch.bfloat16: 1e-1}  # difference, by dtype


@dataclass(frozen=True)
class Checked:
    """What was found."""

    facts: dict[str, str]
    text: float  # largest difference of unit features from the library's
    image: float
    largest: float  # difference that rounding explains

    @property
    def equal(self) -> bool:
        """Whether the features are the library's."""
        return max(self.text, self.image) <= self.largest


def check_model(encoder: DualEncoder) -> Checked:
    """Compare a model's features with those that its own library computes from the same texts and images."""
    if not isinstance(encoder, Encoder) or encoder.own is None:
        raise InvalidOptionError(
            f"'{encoder.name}' has no library to be compared with.",
            hint="Models of open_clip and transformers have one.",
        )
    classes = tokenise(encoder, LABELS, DEFAULT_TEMPLATE)
    with torch.no_grad():
        texts = encoder.encode_classes(classes, init_prompt(encoder, classes))[0]
        own_texts = _unit(encoder.own.texts([DEFAULT_TEMPLATE.format(label) for label in LABELS]))
        views = [make_views(image, encoder.image, plan_views(image.size, views=1)) for image in _images()]
        images = encoder.encode_images(torch.stack(views))[:, 0]
        own_images = _unit(encoder.own.images(_images()))
    return Checked(
        _facts(encoder),
        float((texts - own_texts).abs().max()),
        float((images - own_images).abs().max()),
        LARGEST[encoder.dtype],
    )


def _images() -> list[Image.Image]:
    random = np.random.default_rng(0)
    return [Image.fromarray(random.integers(0, 256, (high, wide, 3), dtype=np.uint8)) for wide, high in _SIZES]


def _unit(features: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.normalize(features.to(torch.promote_types(features.dtype, torch.float32)), dim=-1)


def _facts(encoder: Encoder) -> dict[str, str]:
    weights, size = encoder.count()
    spec, own = encoder.image, encoder.own
    assert own is not None
    square = f"{spec.size} x {spec.size} pixels, resize {spec.resize}"
    shape = square if spec.grid is None else f"own aspect ratio, at most {spec.grid.most} patches of {spec.grid.patch}"
    example = DEFAULT_TEMPLATE.format(LABELS[1])
    reads = "padding too" if encoder.fixed_length else "no padding"
    return {
        "model": encoder.name,
        "library": own.library,
        "image tower": own.towers[0],
        "images": f"{shape}, {spec.interpolation}, mean {_short(spec.mean)}, std {_short(spec.std)}",
        "text tower": f"{own.towers[1]}, reads {encoder.context_length} tokens, {reads}",
        "texts before the tokenizer": encoder.text_cleaning or "as they are",
        "tokens": f"{example!r}: {encoder.token_ids([example])[0]}",
        "template": f"{DEFAULT_TEMPLATE!r}",
        "logit scale, bias": f"{encoder.scale:.4g}, {encoder.bias:.4g} ({encoder.activation})",
        "image prompts (MaPLe)": "yes" if encoder.prompted_tower is not None else "no",
        "export": "ONNX, OpenVINO" if encoder.traceable else "no",
        "weights": f"{weights:,} in {encoder.dtype_name} on {encoder.device_name}: {size / 2**20:,.0f} MiB",
        "fingerprint": fingerprint(encoder),
    }


def _short(values: tuple[float, ...]) -> str:
    return ", ".join(f"{value:.3g}" for value in values)
