"""The model ``random-vit:B-16``: CLIP's ViT-B/16 with random weights, for machines without open_clip."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from functools import cache

import torch
from torch import nn

from poise.backbones.block import Block, Mlp
from poise.backbones.encoder import Encoder, ImageSide, TextSide, Weights, freeze
from poise.backbones.load import ModelRow, models
from poise.backbones.text.shared_prefix import CausalTower, SharedPrefix
from poise.backbones.vision.class_token import ClassTokenTower
from poise.types import ImageSpec

NAME = "random-vit:B-16"
_SIZE, _PATCH, _WORDS, _LENGTH, _JOINT = 224, 16, 49408, 77, 512
_SPEC = ImageSpec(_SIZE, (0.4815, 0.4578, 0.4082), (0.2686, 0.2613, 0.2758))


class _Layer(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.first, self.last, self.gelu = nn.Linear(width, 4 * width), nn.Linear(4 * width, width), nn.GELU()

    def block(self) -> Block:
        mlp = Mlp(self.first, self.gelu, self.last)
        heads = self.out.in_features // 64
        return Block(heads, self.qkv.weight, self.qkv.bias, self.norm1, self.out, self.norm2, mlp)


class _Tower(nn.Module):
    """The common parts of both towers."""

    def __init__(self, width: int, tokens: int, layers: int = 12) -> None:
        super().__init__()
        self.positions = nn.Parameter(torch.randn(tokens, width) * 0.1)
        self.layers = nn.ModuleList(_Layer(width) for _ in range(layers))
        self.last, self.projection = nn.LayerNorm(width), nn.Linear(width, _JOINT, bias=False)

    def blocks(self) -> tuple[Block, ...]:
        return tuple(layer.block() for layer in self.layers)  # type: ignore[operator]

    def finish(self, x: torch.Tensor) -> torch.Tensor:
        return self.projection(self.last(x))


class _Image(_Tower):
    def __init__(self, width: int = 768) -> None:
        super().__init__(width, 1 + (_SIZE // _PATCH) ** 2)
        self.patches = nn.Parameter(torch.randn(width, 3 * _PATCH**2) * 0.03)
        self.token, self.before = nn.Parameter(torch.randn(width) * 0.1), nn.LayerNorm(width)

    def tower(self) -> ClassTokenTower:
        return ClassTokenTower(
            self.patches, None, _PATCH, self.token, self.positions, self.before, self.blocks(), self.finish
        )


class _Text(_Tower):
    def __init__(self, width: int = 512) -> None:
        super().__init__(width, _LENGTH)
        self.table = nn.Embedding(_WORDS, width)

    def tower(self) -> CausalTower:
        return CausalTower(self.blocks(), self.table, self.positions, self.finish)


@cache
def _encoder(device: torch.device, dtype: torch.dtype) -> Encoder:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        image, text = _Image(), _Text()
    freeze(image, device, dtype)
    freeze(text, device, dtype)
    side = TextSide(_token_ids, text.table, SharedPrefix(text.tower()), _LENGTH, False, 0, bytes)
    weights = Weights.of(nn.ModuleDict({"image": image, "text": text}), dtype)
    return Encoder(NAME, ImageSide(_SPEC, image.tower()), side, weights, scale=100.0)


def _token_ids(texts: Sequence[str]) -> list[list[int]]:
    """Return one hash per word, between the start and the end token."""
    numbers = [[1 + zlib.crc32(word.encode()) % 49405 for word in text.replace(".", " .").split()] for text in texts]
    return [[49406, *row, 49407] for row in numbers]


models.add("random-vit")(
    ModelRow(NAME, "ViT-B/16 with random weights", lambda _, place: _encoder(place.device, place.dtype))
)
