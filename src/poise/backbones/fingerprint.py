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
from poise.threads import map_parallel
from poise.types import EARLIER_DIGITS, DualEncoder, Fingerprinted, fingerprint_of

_DIGITS = 2 * EARLIER_DIGITS
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


def fingerprint(encoder: DualEncoder, like: str = "") -> str:
    """Return a hash of an encoder's weights, preprocessing, tokenizer and logit scale, as 32 hexadecimal digits.

    The weights are hashed as they are in the checkpoint, so a model has the same fingerprint in float16, float32 and
    float64. In bfloat16 it has another one, because its answers differ by more than rounding. The hash is computed on
    the first call, or, if the weights are rounded to 16 bits, while they are loaded.

    Args:
        encoder: A model that implements `poise.types.Fingerprinted`, as all models of poise do.
        like: A stored fingerprint. If an earlier version of poise stored it (16 digits: of weights rounded to float16,
            without the vocabulary), the result is of that version too.

    Example:
        >>> from poise.backbones import load_model
        >>> len(fingerprint(load_model("tiny", device="cpu")))
        32
    """
    if not isinstance(encoder, Fingerprinted):
        raise InvalidOptionError(
            f"The encoder '{encoder.name}' ({type(encoder).__name__}) has no fingerprint.",
            hint="Add a method fingerprint() that returns a hash of all it depends on (`poise.types.Fingerprinted`).",
        )
    return fingerprint_of(encoder, like)


def compute(encoder: DualEncoder, weights: str, vocabulary: bytes, structure: str) -> str:
    """Return the fingerprint of an encoder.

    Args:
        encoder: the encoder.
        weights: hash of its weights (`hash_weights`).
        vocabulary: what its tokenizer was made from.
        structure: what the weights don't show (`structure`).
    """
    facts = _facts(encoder, structure) | {"weights": weights, "vocabulary": hashlib.sha256(vocabulary).hexdigest()}
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()[:_DIGITS]


def hash_weights(weights: Mapping[str, Tensor]) -> str:
    """Return a hash of tensors by name, as they are: floats in float32, which all checkpoints fit into."""
    ordered = sorted(weights.items())
    digests = map_parallel(lambda item: hashlib.sha256(_exact(item[1])).hexdigest(), ordered)
    lines = [f"{name} {list(tensor.shape)} {digest}" for (name, tensor), digest in zip(ordered, digests, strict=True)]
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()


def compute_earlier(encoder: DualEncoder, weights: Mapping[str, Tensor], structure: str) -> str:
    """Return the fingerprint of version 1, which calibrations, runs and prompts of earlier versions have."""
    state = hashlib.sha256(json.dumps(_facts(encoder, structure), sort_keys=True).encode())
    for name, tensor in sorted(weights.items()):
        state.update(f"{name} {list(tensor.shape)}\0".encode())
        state.update(_rounded(tensor))
    return state.hexdigest()[:EARLIER_DIGITS]


def _facts(encoder: DualEncoder, structure: str) -> dict[str, Any]:
    return {
        "image": {name: value for name, value in asdict(encoder.image).items() if value is not None},
        "scale": encoder.scale,
        "bias": encoder.bias,
        "activation": encoder.activation,
        "context_length": encoder.context_length,
        "fixed_length": encoder.fixed_length,
        "pad_id": encoder.pad_id,
        "token_ids": encoder.token_ids(_TEXTS),
        "structure": structure,
    }


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


def _exact(tensor: Tensor) -> Any:
    values = tensor.detach()
    if values.is_floating_point():
        values = values.to(torch.float32)
    return values.cpu().contiguous().numpy()


def _rounded(tensor: Tensor) -> Any:
    values = tensor.detach()
    if values.is_floating_point():
        values = values.to(torch.float16)
    return values.cpu().contiguous().numpy()  # its buffer is hashed without a copy
