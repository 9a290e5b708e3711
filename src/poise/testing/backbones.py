"""Checks of a backbone: properties that `poise.types.DualEncoder` requires beyond its types."""

from __future__ import annotations

import torch
from torch import Tensor

from poise.prompts import init_prompt, tokenise
from poise.testing.conformance import LABELS, require, run_checks
from poise.types import DualEncoder, Prompt


def protocol(encoder: DualEncoder) -> None:
    """The encoder has all members of the protocol, and a positive scale."""
    require(isinstance(encoder, DualEncoder), "the encoder must have all members of poise.types.DualEncoder")
    require(encoder.scale > 0, "the scale must be positive")


def tokens(encoder: DualEncoder) -> None:
    """Token ids are neither truncated nor padded, and have embeddings."""
    long = "word " * (2 * encoder.context_length)
    first, second, third = encoder.token_ids(["cat", "a photo of a cat.", long])
    require(len(third) > encoder.context_length, "token_ids must not truncate")
    require(len(first) < len(second), "token_ids must not pad")
    vectors = encoder.embed(torch.tensor(first))
    require(vectors.dim() == 2 and len(vectors) == len(first), "embed must map ids [L] to vectors [L, E]")
    require(
        vectors.dtype == encoder.dtype and vectors.device == encoder.device,
        "embed must use the encoder's dtype and device",
    )


def image_features(encoder: DualEncoder) -> None:
    """Image features are unit vectors that do not depend on the other images of the batch."""
    views = _images(encoder)
    features = encoder.encode_images(views)
    require(features.shape[:2] == (2, 3) and features.dim() == 3, "encode_images must return [B, V, D]")
    require(_unit(features), "image features must have unit length")
    require(not features.requires_grad, "image features must not require a gradient")
    require(_close(encoder.encode_images(views[1:])[0], features[1], encoder), "images must not depend on each other")


def text_features(encoder: DualEncoder) -> None:
    """Text features are unit vectors that depend on neither other classes nor other prompts."""
    classes = tokenise(encoder, LABELS)
    init = init_prompt(encoder, classes)
    features = encoder.encode_classes(classes, init)
    require(features.shape[:2] == (1, 3) and _unit(features), "encode_classes must return unit features [B, C, D]")
    alone = encoder.encode_classes(classes.rows(1, 2), init)
    require(_close(alone[0, 0], features[0, 1], encoder), "classes must not depend on each other")
    other = torch.randn(init.context.shape, generator=torch.Generator().manual_seed(1)).to(init.context)
    both = encoder.encode_classes(classes, Prompt(torch.cat([init.context, other * init.context.std()])))
    require(_close(both[0], features[0], encoder), "prompts must not depend on each other")


def prompt_gradient(encoder: DualEncoder) -> None:
    """A prompt has a finite gradient from the features of its image only."""
    classes = tokenise(encoder, LABELS)
    context = init_prompt(encoder, classes).context.float().repeat(2, 1, 1).requires_grad_()
    features = encoder.encode_classes(classes, Prompt(context))
    weights = torch.linspace(-1, 1, features.shape[-1]).to(features)
    (gradient,) = torch.autograd.grad((features[1] * weights).sum(), context)
    require(bool(gradient.isfinite().all()), "the prompt's gradient must be finite")
    require(bool(gradient[1].abs().max() > 0), "the prompt must have a gradient")
    require(bool(gradient[0].abs().max() == 0), "an image's gradient must not reach another image's prompt")


def logits(encoder: DualEncoder) -> None:
    """Logits are scale * cosine + bias, in float32 or wider."""
    classes = tokenise(encoder, LABELS)
    images = encoder.encode_images(_images(encoder))
    texts = encoder.encode_classes(classes, init_prompt(encoder, classes))
    actual = encoder.logits(images, texts)
    require(actual.shape == (2, 3, 3), "logits must return [B, V, C], also if all images share the text features")
    require(actual.dtype in (torch.float32, torch.float64), "logits must be float32 or wider")
    expected = encoder.scale * (images.double() @ texts.double().transpose(-1, -2)) + encoder.bias
    require(bool((actual - expected).abs().max() <= 1e-3 * max(1.0, encoder.scale)), "logits are scale * cosine + bias")


BACKBONE_CHECKS = (protocol, tokens, image_features, text_features, prompt_gradient, logits)


def check_backbone(encoder: DualEncoder) -> None:
    """Run `BACKBONE_CHECKS` on an encoder; raise AssertionError with all failures."""
    run_checks(encoder, BACKBONE_CHECKS)


def _close(one: Tensor, other: Tensor, encoder: DualEncoder) -> bool:
    tolerance = 1e-9 if encoder.dtype == torch.float64 else 1e-4 if encoder.dtype == torch.float32 else 5e-2
    return bool((one - other).abs().max() <= tolerance)


def _unit(features: Tensor) -> bool:
    return bool((features.norm(dim=-1) - 1).abs().max() <= 1e-4) and bool(features.isfinite().all())


def _images(encoder: DualEncoder) -> Tensor:
    size = encoder.image.size
    return torch.randn(2, 3, 3, size, size, generator=torch.Generator().manual_seed(0)).to(encoder.device)
