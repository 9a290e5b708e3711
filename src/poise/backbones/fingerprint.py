"""Fingerprints of models: short hashes of everything that an encoder's answers depend on.

Two models with the same name may differ: a folder's weights are replaced, or a repository on the hub is updated. Runs
and prompt files record the fingerprint, so that results of different models are not mixed.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from typing import Any

import torch
from torch import Tensor, nn

from poise.errors import InvalidOptionError
from poise.types import DualEncoder, Fingerprinted

_DIGITS = 16
_SETTINGS = ("num_heads", "eps", "pool_type")  # attributes of modules that their weights don't show
_TEXTS = (
    "a photo of a cat.",
    "A Photo of 2 DOGS, it's 10 km/h!",
    "",
    "  spaces   and\ttabs\n",
    "naïve café",
    "cafe\u0301",
    "Straße",
    "\u0391\u0392\u0393 \u03b1\u03b2\u03b3 \u03c2",
    "\u043a\u043e\u0448\u043a\u0430",
    "猫と犬",
    "고양이",
    "\u0642\u0637\u0629",
    "\u0928\u092e\u0938\u094d\u0924\u0947",
    "\U0001f431\U0001f469\u200d\U0001f467",
    "\ufb01 \u00bd \u2460",
    "&amp; <b>x</b> &lt;",
    "snake_case-x/y\\z",
    "antidisestablishmentarianism " * 5,
    "<|endoftext|> </s> [SEP]",
)


def fingerprint(encoder: DualEncoder) -> str:
    """Return a hash of an encoder's weights, preprocessing, tokenizer and logit scale, as 16 hexadecimal digits.

    Weights are rounded to float16 first, so a model has the same fingerprint in float16, float32 and float64. In
    bfloat16 it has another one, because bfloat16 keeps fewer digits. The hash is computed on the first call, which
    takes 0.25 s for 150 million weights (ViT-B/16) on one CPU core.

    Args:
        encoder: A model that implements `poise.types.Fingerprinted`, as all models of poise do.

    Example:
        >>> from poise.backbones import load_model
        >>> len(fingerprint(load_model("tiny", device="cpu")))
        16
    """
    if not isinstance(encoder, Fingerprinted):
        raise InvalidOptionError(
            f"The encoder '{encoder.name}' ({type(encoder).__name__}) has no fingerprint.",
            hint="Add a method fingerprint() that returns a hash of all it depends on (`poise.types.Fingerprinted`).",
        )
    return encoder.fingerprint()


def compute(encoder: DualEncoder, weights: Mapping[str, Tensor], structure: str) -> str:
    """Return the fingerprint of an encoder with these weights; ``structure`` is what they don't show."""
    facts = {
        "image": asdict(encoder.image),
        "scale": encoder.scale,
        "bias": encoder.bias,
        "activation": encoder.activation,
        "context_length": encoder.context_length,
        "fixed_length": encoder.fixed_length,
        "pad_id": encoder.pad_id,
        "token_ids": encoder.token_ids(_TEXTS),
        "structure": structure,
    }
    state = hashlib.sha256(json.dumps(facts, sort_keys=True).encode())
    for name, tensor in sorted(weights.items()):
        state.update(f"{name} {list(tensor.shape)}\0".encode())
        state.update(_rounded(tensor))
    return state.hexdigest()[:_DIGITS]


def structure(*models: nn.Module) -> str:
    """Return what the weights of modules don't show: activation functions, numbers of heads, epsilons, pooling."""
    return "\n".join(line for model in models for line in _settings(model))


def _settings(model: nn.Module) -> Iterator[str]:
    for name, part in model.named_modules():
        found = {
            key: getattr(part, key) for key in _SETTINGS if isinstance(getattr(part, key, None), int | float | str)
        }
        without_weights = next(part.children(), None) is None and next(part.parameters(), None) is None
        if found or without_weights:
            yield f"{name} {type(part).__name__ if without_weights else ''} {found}"


def _rounded(tensor: Tensor) -> Any:
    values = tensor.detach()
    if values.is_floating_point():
        values = values.to(torch.float16)
    return values.cpu().contiguous().numpy()  # its buffer is hashed without a copy
