"""Checks of a backbone: what the rest of poise relies on beyond the types of `poise.types.DualEncoder`."""

from __future__ import annotations

import torch
from torch import Tensor

from poise.prompts import init_prompt, tokenise
from poise.testing.checks import require, run_checks
from poise.types import DualEncoder, Prompt

_LABELS = ("cat", "great white shark", "dog")


def protocol(encoder: DualEncoder) -> None:
    """It has every member of the protocol, and a positive scale."""
    require(isinstance(encoder, DualEncoder), "it must have every member of poise.types.DualEncoder")
    require(encoder.scale > 0, "the scale must be positive")


def tokens(encoder: DualEncoder) -> None:
    """Token ids are neither truncated nor padded, and have vectors."""
    long = "word " * (2 * encoder.context_length)
    (row,) = encoder.token_ids([long])
    require(len(row) > encoder.context_length, "token_ids must not truncate")
    first, second = encoder.token_ids(["cat", "a photo of a cat."])
    require(len(first) < len(second), "token_ids must not pad")
    vectors = encoder.embed(torch.tensor(first))
    require(vectors.dim() == 2 and len(vectors) == len(first), "embed must map ids [L] to vectors [L, E]")
    require(vectors.dtype == encoder.dtype and vectors.device == encoder.device, "embed keeps dtype and device")


def image_features(encoder: DualEncoder) -> None:
    """Image features are unit vectors that don't depend on the batch."""
    views = _images(encoder)
    features = encoder.encode_images(views)
    require(features.shape[:2] == (2, 3) and features.dim() == 3, "encode_images must give [B, V, D]")
    require(_unit(features), "image features must have unit length")
    require(not features.requires_grad, "image features need no gradient without image prompts")
    require(_close(encoder.encode_images(views[1:])[0], features[1], encoder), "images must not depend on batch mates")


def text_features(encoder: DualEncoder) -> None:
    """Text features are unit vectors that depend on neither other classes nor other prompts."""
    classes = tokenise(encoder, _LABELS)
    init = init_prompt(encoder, classes)
    features = encoder.encode_classes(classes, init)
    require(features.shape[:2] == (1, 3) and _unit(features), "encode_classes must give unit features [B, C, D]")
    alone = encoder.encode_classes(classes.rows(1, 2), init)
    require(_close(alone[0, 0], features[0, 1], encoder), "a class must not depend on its neighbours")
    other = torch.randn(init.context.shape, generator=torch.Generator().manual_seed(1)).to(init.context)
    both = encoder.encode_classes(classes, Prompt(torch.cat([init.context, other * init.context.std()])))
    require(_close(both[0], features[0], encoder), "a prompt must not depend on its batch mates")


def prompt_gradient(encoder: DualEncoder) -> None:
    """A prompt gets a finite gradient from its own image only."""
    classes = tokenise(encoder, _LABELS)
    context = init_prompt(encoder, classes).context.float().repeat(2, 1, 1).requires_grad_()
    features = encoder.encode_classes(classes, Prompt(context))
    (gradient,) = torch.autograd.grad(
        (features[1] * torch.linspace(-1, 1, features.shape[-1]).to(features)).sum(), context
    )
    require(bool(gradient.isfinite().all()), "the prompt's gradient must be finite")
    require(bool(gradient[1].abs().max() > 0), "the prompt must get a gradient")
    require(bool(gradient[0].abs().max() == 0), "an image's gradient must not reach another image's prompt")


def logits(encoder: DualEncoder) -> None:
    """Logits are scale * cosine + bias, in float32 or wider."""
    classes = tokenise(encoder, _LABELS)
    images = encoder.encode_images(_images(encoder))
    texts = encoder.encode_classes(classes, init_prompt(encoder, classes))
    found = encoder.logits(images, texts)
    require(found.shape == (2, 3, 3), "logits must give [B, V, C], with one text row serving all images")
    require(found.dtype in (torch.float32, torch.float64), "logits must be float32 or wider")
    expected = encoder.scale * (images.double() @ texts.double().transpose(-1, -2)) + encoder.bias
    require(bool((found - expected).abs().max() <= 1e-3 * max(1.0, encoder.scale)), "logits are scale * cosine + bias")


BACKBONE_CHECKS = (protocol, tokens, image_features, text_features, prompt_gradient, logits)


def check_backbone(encoder: DualEncoder) -> None:
    """Run all of `BACKBONE_CHECKS`; raise AssertionError with every rule that ``encoder`` breaks."""
    run_checks(encoder, BACKBONE_CHECKS)


def _close(one: Tensor, other: Tensor, encoder: DualEncoder) -> bool:
    tolerance = 1e-9 if encoder.dtype == torch.float64 else 1e-4 if encoder.dtype == torch.float32 else 5e-2
    return bool((one - other).abs().max() <= tolerance)


def _unit(features: Tensor) -> bool:
    return bool((features.norm(dim=-1) - 1).abs().max() <= 1e-4) and bool(features.isfinite().all())


def _images(encoder: DualEncoder) -> Tensor:
    size = encoder.image.size
    return torch.randn(2, 3, 3, size, size, generator=torch.Generator().manual_seed(0)).to(encoder.device)
