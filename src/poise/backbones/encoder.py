"""The one encoder class behind every backbone: a frozen model's parts, put together as a DualEncoder."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor, nn

from poise.errors import InvalidOptionError
from poise.types import ClassTokens, ImageSpec, Prompt, PromptedImageTower

ImageForward = Callable[[Tensor], Tensor]  # [N, 3, S, S] -> [N, D]
Map = Callable[[Tensor], Tensor]
Tokenizer = Callable[[Sequence[str]], list[list[int]]]

_CHUNK = {"cuda": 512, "mps": 128, "cpu": 8}  # images per pass: bounds memory, and on a CPU fits its cache


def wide(dtype: torch.dtype) -> torch.dtype:
    """The dtype for logits, norms and losses: float32, or float64 where the model runs in it."""
    return torch.promote_types(dtype, torch.float32)


def freeze(model: nn.Module, device: torch.device, dtype: torch.dtype) -> None:
    """Put the model in evaluation mode on its device, with no gradient to any weight."""
    model.eval().requires_grad_(False).to(device=device, dtype=dtype)


class TextForward(Protocol):
    """A text tower's features under soft prompts."""

    def __call__(self, classes: ClassTokens, prompt: Prompt) -> Tensor:
        """Features [B, C, D], not normalised; differentiable in the prompt."""

    def pullback_at(self, classes: ClassTokens, prompt: Prompt, unit: Map) -> Map | None:
        """Cotangents [B, C, D] of ``unit``'s output on the features -> gradients [B, M, E]; None: autograd does it."""


@dataclass(frozen=True)
class TextSide:
    """What an encoder needs to know about its text tower."""

    token_ids: Tokenizer
    table: nn.Embedding
    forward: TextForward
    context_length: int
    fixed_length: bool
    pad_id: int


@dataclass(frozen=True)
class ImageSide:
    """What an encoder needs to know about its image tower."""

    spec: ImageSpec
    forward: ImageForward
    prompted: PromptedImageTower | None = None


class Encoder:
    """A frozen CLIP-like model; meets poise.types.DualEncoder."""

    def __init__(
        self,
        name: str,
        image: ImageSide,
        text: TextSide,
        *,
        scale: float,
        bias: float = 0.0,
        activation: str = "softmax",
        chunk: int | None = None,
    ) -> None:
        self.name = name
        self.image = image.spec
        self.context_length = text.context_length
        self.fixed_length = text.fixed_length
        self.pad_id = text.pad_id
        self.activation = activation
        self.device = text.table.weight.device
        self.dtype = text.table.weight.dtype
        self.chunk = chunk or _CHUNK.get(self.device.type, 64)
        self._image, self._text, self._scale, self._bias = image, text, scale, bias

    def __repr__(self) -> str:
        return f"<Encoder {self.name} on {self.device} in {str(self.dtype).removeprefix('torch.')}>"

    @property
    def scale(self) -> float:
        """The factor from cosine to logit, read from the model."""
        return self._scale

    @property
    def bias(self) -> float:
        """What is added to each logit (SigLIP); 0 for CLIP."""
        return self._bias

    @property
    def prompted_tower(self) -> PromptedImageTower | None:
        """The image tower where it takes prompts."""
        return self._image.prompted

    def token_ids(self, texts: Sequence[str]) -> list[list[int]]:
        """Token ids of each text with start and end tokens, neither padded nor truncated."""
        return self._text.token_ids(texts)

    def embed(self, ids: Tensor) -> Tensor:
        """Token vectors [..., E] of ids [...], positions not added."""
        vectors: Tensor = self._text.table(ids.to(self.device))
        return vectors

    @torch.no_grad()
    def encode_images(self, views: Tensor) -> Tensor:
        """Unit features [B, V, D] of normalised views [B, V, 3, H, W], in float32 or wider."""
        if views.dim() != 5 or tuple(views.shape[2:]) != (3, self.image.size, self.image.size):
            raise InvalidOptionError(
                f"Images of shape {list(views.shape)} were given.",
                hint=f"Accepted: [images, views, 3, {self.image.size}, {self.image.size}].",
            )
        parts = views.flatten(0, 1).split(self.chunk)
        features = torch.cat([self._image.forward(part.to(self.device, self.dtype)) for part in parts])
        return _unit(features).unflatten(0, views.shape[:2])

    def encode_classes(self, classes: ClassTokens, prompt: Prompt) -> Tensor:
        """Unit text features [B, C, D] in float32 or wider; differentiable in the prompt."""
        slots, width = classes.slots.shape[1], self._text.table.weight.shape[1]
        if prompt.context.shape[-2:] != (slots, width):
            raise InvalidOptionError(
                f"A prompt of {list(prompt.context.shape[-2:])} (tokens, width) was given.",
                hint=f"The template and model take {[slots, width]}.",
            )
        return _unit(self._text.forward(classes, prompt))

    def pullback_at(self, classes: ClassTokens, prompt: Prompt) -> Map | None:
        """The text tower's own way from cotangents [B, C, D] to gradients [B, M, E]; None where it has none."""
        return self._text.forward.pullback_at(classes, prompt, _unit)

    def logits(self, image_features: Tensor, text_features: Tensor) -> Tensor:
        """[B, V, D] x [B or 1, C, D] -> [B, V, C] in float32 or wider: scale * cosine + bias."""
        image_features = image_features.to(wide(image_features.dtype))
        text_features = text_features.to(image_features.dtype)
        return self._scale * (image_features @ text_features.transpose(-1, -2)) + self._bias


def _unit(features: Tensor) -> Tensor:
    return nn.functional.normalize(features.to(wide(features.dtype)), dim=-1)
