"""The text forward for causal towers that computes what all classes share once per prompt.

Attention is causal, so (a) tokens behind the end token never matter and are not computed, and (b) the start token and
the words before the name do not depend on the class: they run once per prompt, and every class attends to their keys
and values. Equal to the tower's own full-length forward up to rounding. Out of place throughout, so that gradients of
many images can be taken through one graph (``is_grads_batched``).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from poise.backbones.block import Block, Map
from poise.backbones.text import packed
from poise.backbones.text.packing import PackedLayout, Part, pack
from poise.backbones.text.tiles import Tiles, make_tiles, mask_of, run_tiles
from poise.backbones.text.vjp import TextPullback
from poise.backbones.triton import fused_block as fused
from poise.errors import InvalidOptionError
from poise.types import ClassTokens, Prompt


@dataclass(frozen=True)
class CausalTower:
    """A causal text transformer, reduced to what the forward needs."""

    blocks: tuple[Block, ...]
    table: Map  # token ids -> vectors
    positions: Tensor  # [L, E]
    finish: Map  # final norm and projection of the end token: [..., E] -> [..., D]


class SharedPrefix:
    """Text features of label sets under soft prompts, through one causal tower."""

    def __init__(self, tower: CausalTower, *, tiled: bool | None = None) -> None:
        self.tower = tower
        self.tiled = tiled  # None: on CUDA
        # How label sets, or chunks of one, are laid out, for as long as they exist.
        self._layouts: WeakKeyDictionary[ClassTokens, dict[bool, PackedLayout]] = WeakKeyDictionary()
        self._tiles: WeakKeyDictionary[ClassTokens, Tiles] = WeakKeyDictionary()

    def __call__(self, classes: ClassTokens, prompt: Prompt) -> Tensor:
        """Features [B, C, D], not normalised; differentiable in the prompt."""
        layout = self._layout(classes, class_specific=prompt.context.dim() == 4)
        context = prompt.context.to(self.tower.positions.dtype).flatten(1, -2)  # [B, M or C * M, E]
        deep = self._deep(prompt, layout)
        prefix = self._place(layout.prefix, context)
        if self._tileable(layout):
            return self._run_tiled(classes, layout, prefix, deep).expand(context.shape[0], -1, -1)
        x = self._place(layout.remainder, context)
        *blocks, last = self.tower.blocks
        for depth, block in enumerate(blocks):
            prefix = _swap(prefix, deep, depth, layout.prefix)
            prefix, keys, values = _run_prefix(block, prefix)
            x = _run_classes(block, layout, x, keys, values)
        prefix = _swap(prefix, deep, len(blocks), layout.prefix)
        keys, values = last.project(last.norm1(prefix), 1, 3)
        ends = _run_ends(last, layout, x, keys, values)  # [B, C, E] in sorted order
        features = self.tower.finish(ends.index_select(1, layout.restore))
        return features.expand(context.shape[0], -1, -1)

    def _tileable(self, layout: PackedLayout) -> bool:
        """Tiles are for GPUs, and hold no tunable token."""
        wanted = self.tower.positions.is_cuda if self.tiled is None else self.tiled
        return wanted and layout.remainder.sources is None

    def pullback_at(self, classes: ClassTokens, prompt: Prompt, unit: Map) -> Callable[[Tensor], Tensor] | None:
        """Gradients [B, M, E] of the context for cotangents [B, C, D] of ``unit``'s output on the features.

        The prompt is one for all images, or each image's own. None where no kernels serve this tower, its device and
        this prompt: there autograd is to do it.
        """
        layout = self._layout(classes, class_specific=prompt.context.dim() == 4)
        sources = layout.prefix.sources
        if prompt.text_layers is not None or sources is None or not self._tileable(layout):
            return None
        tiles = self._tiles_of(classes)
        with torch.no_grad():
            prefix = self._place(layout.prefix, prompt.context.to(self.tower.positions.dtype))  # [b, P, E]
            own = self.tower.table(tiles.ids).to(prefix.dtype) + self.tower.positions[tiles.positions]
            if not self._packable(tiles, prefix):
                return None
            pull = TextPullback(self.tower.blocks, lambda ends: unit(self.tower.finish(ends)), tiles, prefix, own)
        taken = (sources >= prefix.shape[1]).nonzero()[:, 0]  # where the context stands, and which vector of it
        vectors = sources[taken] - prefix.shape[1]

        def pullback(cotangent: Tensor) -> Tensor:
            found = pull(cotangent).index_select(1, taken).float()
            return found.new_zeros(len(found), *prompt.context.shape[1:]).index_add_(1, vectors, found)

        return pullback

    def _packable(self, tiles: Tiles, prefix: Tensor) -> bool:
        with torch.no_grad():
            return fused.usable(self.tower.blocks, prefix) and packed.fits(self.tower.blocks, tiles, prefix.shape[-2])

    def _run_tiled(
        self, classes: ClassTokens, layout: PackedLayout, prefix: Tensor, deep: tuple[Tensor, ...]
    ) -> Tensor:
        tiles = self._tiles_of(classes)
        own = self.tower.table(tiles.ids).to(prefix.dtype) + self.tower.positions[tiles.positions]
        if not deep and not torch.is_grad_enabled() and self._packable(tiles, prefix):
            return packed.run(self.tower.blocks, self.tower.finish, tiles, prefix, own)
        mask, x = mask_of(tiles, len(prefix), self.tower.blocks[0].heads), own[None]
        *blocks, last = self.tower.blocks
        for depth, block in enumerate(blocks):
            prefix = _swap(prefix, deep, depth, layout.prefix)
            prefix, keys, values = _run_prefix(block, prefix)
            x = run_tiles(block, tiles, x, keys, values, mask)
        prefix = _swap(prefix, deep, len(blocks), layout.prefix)
        keys, values = last.project(last.norm1(prefix), 1, 3)
        return self.tower.finish(run_tiles(last, tiles, x, keys, values, mask, ends_only=True))

    def _tiles_of(self, classes: ClassTokens) -> Tiles:
        if classes not in self._tiles:
            positions = self.tower.positions
            self._tiles[classes] = make_tiles(classes, device=positions.device, dtype=positions.dtype)
        return self._tiles[classes]

    def _layout(self, classes: ClassTokens, *, class_specific: bool) -> PackedLayout:
        layouts = self._layouts.setdefault(classes, {})
        if class_specific not in layouts:
            layouts[class_specific] = pack(classes, class_specific=class_specific, device=self.tower.positions.device)
        return layouts[class_specific]

    def _place(self, part: Part, context: Tensor) -> Tensor:
        """Input vectors [1 or B, T, E]: B is 1 as long as nothing depends on the prompt, so its work is shared."""
        vectors = self.tower.table(part.ids)[None].to(context.dtype)
        if part.sources is not None:
            pool = torch.cat([vectors.expand(context.shape[0], -1, -1), context], 1)
            vectors = pool.index_select(1, part.sources)
        return vectors + self.tower.positions[part.positions]

    def _deep(self, prompt: Prompt, layout: PackedLayout) -> tuple[Tensor, ...]:
        if prompt.text_layers is None:
            return ()
        if layout.prefix.sources is None or layout.remainder.sources is not None:
            raise InvalidOptionError(
                "Deep text prompts need a context that stands before the class name and is shared by all classes.",
                hint="Use context='before' and one context for all classes.",
            )
        if prompt.text_layers.shape[1] >= len(self.tower.blocks):
            raise InvalidOptionError(
                f"{prompt.text_layers.shape[1]} deep text prompts were given.",
                hint=f"This text tower has {len(self.tower.blocks)} layers: give at most {len(self.tower.blocks) - 1}.",
            )
        return prompt.text_layers.to(self.tower.positions.dtype).unbind(1)


def _swap(prefix: Tensor, deep: tuple[Tensor, ...], depth: int, part: Part) -> Tensor:
    """The input of block ``depth``: deep prompts [B, M, E] take the context tokens' places from block 1 on."""
    if part.sources is None or not 0 < depth <= len(deep):
        return prefix
    return torch.cat([prefix, deep[depth - 1]], 1).index_select(1, part.sources)


def _run_prefix(block: Block, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """One block over the prefix; also its keys and values [B, H, P, hd], which the classes attend to."""
    queries, keys, values = block.project(block.norm1(x), 0, 3)
    count = torch.arange(x.shape[1], device=x.device)
    near = (queries * queries.shape[-1] ** -0.5) @ keys.transpose(-1, -2)
    weights = near.masked_fill(count[None, :] > count[:, None], -torch.inf).softmax(-1)
    return block.close(x, _joined(weights @ values)), keys, values


def _run_classes(block: Block, layout: PackedLayout, x: Tensor, prefix_keys: Tensor, prefix_values: Tensor) -> Tensor:
    """One block over all classes' remainders, packed [1 or B, T, E] -> [B, T, E]."""
    queries, keys, values = block.project(block.norm1(x), 0, 3)
    queries = queries * queries.shape[-1] ** -0.5
    to_prefix = queries @ prefix_keys.transpose(-1, -2)  # [B, H, T, P]
    mixed = []
    for bucket in layout.buckets:
        shape = (bucket.rows, bucket.width)
        own_queries, own_keys, own_values = (
            part[:, :, bucket.tokens].unflatten(2, shape) for part in (queries, keys, values)
        )
        near = to_prefix[:, :, bucket.tokens].unflatten(2, shape)  # [B, H, c, S, P]
        mixed.append(_mix(own_queries, own_keys, own_values, near, bucket.hidden, prefix_values))
    return block.close(x, _joined(torch.cat(mixed, 2)))


def _run_ends(block: Block, layout: PackedLayout, x: Tensor, prefix_keys: Tensor, prefix_values: Tensor) -> Tensor:
    """The last block, for the end tokens alone: [1 or B, T, E] -> [B, C, E]."""
    normed = block.norm1(x)
    (queries,) = block.project(normed.index_select(1, layout.ends), 0, 1)
    keys, values = block.project(normed, 1, 3)
    queries = queries * queries.shape[-1] ** -0.5
    to_prefix = queries @ prefix_keys.transpose(-1, -2)  # [B, H, C, P]
    mixed = []
    for bucket in layout.buckets:
        own_keys, own_values = (
            part[:, :, bucket.tokens].unflatten(2, (bucket.rows, bucket.width)) for part in (keys, values)
        )
        own_queries = queries[:, :, bucket.classes].unsqueeze(3)  # [b, H, c, 1, hd]
        near = to_prefix[:, :, bucket.classes].unsqueeze(3)
        mixed.append(_mix(own_queries, own_keys, own_values, near, bucket.hidden_from_end, prefix_values))
    return block.close(x.index_select(1, layout.ends), _joined(torch.cat(mixed, 2)))


def _joined(heads: Tensor) -> Tensor:
    """[B, H, T, hd] -> [B, T, E]."""
    return heads.transpose(1, 2).flatten(2)


def _mix(
    queries: Tensor, keys: Tensor, values: Tensor, to_prefix: Tensor, hidden: Tensor, prefix_values: Tensor
) -> Tensor:
    """Attention over the prefix and the class's own tokens under one softmax: [B, H, c * Q, hd].

    The prefix's keys and values are never copied per class: all classes' queries meet them in one product.
    """
    own = (queries @ keys.transpose(-1, -2)).masked_fill(hidden, -torch.inf)  # [b, H, c, Q, S]
    joint = torch.cat([to_prefix, own.expand(*to_prefix.shape[:-1], -1)], -1).softmax(-1)
    on_prefix, on_own = joint.split([to_prefix.shape[-1], own.shape[-1]], -1)
    return on_prefix.flatten(2, 3) @ prefix_values + (on_own @ values).flatten(2, 3)
