"""Text forward pass for causal towers that encodes the tokens shared by all classes once per prompt.

Because attention is causal, (a) tokens after the end token have no effect and are not computed, and (b) the start token
and the words before the class name do not depend on the class: they are encoded once per prompt, and all classes attend
to their keys and values. The result equals the tower's full-length forward pass up to rounding. All operations are out
of place, so that gradients of many images can be taken through one graph (``is_grads_batched``).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from poise.backbones.block import Block, Map
from poise.backbones.text import packed
from poise.backbones.text.packing import PackedLayout, TokenSpan, pack
from poise.backbones.text.tiles import Tiles, expand_mask, make_tiles, run_tiles
from poise.backbones.text.vjp import TextVjp
from poise.backbones.triton import fused_block
from poise.errors import InvalidOptionError
from poise.types import ClassTokens, Prompt


@dataclass(frozen=True)
class CausalTower:
    """The parts of a causal text transformer that the forward pass uses."""

    blocks: tuple[Block, ...]
    table: Map  # token ids -> embeddings
    positions: Tensor  # [L, E]
    finish: Map  # final layer norm and projection of the end token: [..., E] -> [..., D]


class SharedPrefix:
    """Encode label sets under soft prompts with a causal text tower."""

    def __init__(self, tower: CausalTower, *, tiled: bool | None = None) -> None:
        self.tower = tower
        self.tiled = tiled  # None means on CUDA only
        # Layouts of label sets, or of chunks of them, cached as long as those exist.
        self._layouts: WeakKeyDictionary[ClassTokens, dict[bool, PackedLayout]] = WeakKeyDictionary()
        self._tiles: WeakKeyDictionary[ClassTokens, Tiles] = WeakKeyDictionary()

    def __call__(self, classes: ClassTokens, prompt: Prompt) -> Tensor:
        """Return unnormalised features [B, C, D], differentiable with respect to the prompt."""
        layout = self._layout(classes, class_specific=prompt.context.dim() == 4)
        context = prompt.context.to(self.tower.positions.dtype).flatten(1, -2)  # [B, M or C * M, E]
        deep_prompts = self._deep_prompts(prompt, layout)
        prefix = self._embed(layout.prefix, context)
        if self._use_tiles(layout):
            return self._run_tiled(classes, layout, prefix, deep_prompts).expand(context.shape[0], -1, -1)
        x = self._embed(layout.remainder, context)
        *blocks, last = self.tower.blocks
        for depth, block in enumerate(blocks):
            prefix = _insert(prefix, deep_prompts, depth, layout.prefix)
            prefix, keys, values = _run_prefix(block, prefix)
            x = _run_classes(block, layout, x, keys, values)
        prefix = _insert(prefix, deep_prompts, len(blocks), layout.prefix)
        keys, values = last.project(last.norm1(prefix), 1, 3)
        ends = _run_ends(last, layout, x, keys, values)  # [B, C, E] in sorted order
        features = self.tower.finish(ends.index_select(1, layout.restore))
        return features.expand(context.shape[0], -1, -1)

    def _use_tiles(self, layout: PackedLayout) -> bool:
        """Return whether to use tiles: on GPUs, and only if all tunable tokens are in the prefix."""
        tiled = self.tower.positions.is_cuda if self.tiled is None else self.tiled
        return tiled and layout.remainder.sources is None

    def pullback_at(self, classes: ClassTokens, prompt: Prompt, unit: Map) -> Callable[[Tensor], Tensor] | None:
        """Return the vector-Jacobian product from cotangents [B, C, D] of ``unit(features)`` to the context [B, M, E].

        The prompt is shared by all images or holds one context per image. Returns None if the kernels do not support
        this tower, device or prompt; callers then use autograd.
        """
        layout = self._layout(classes, class_specific=prompt.context.dim() == 4)
        sources = layout.prefix.sources
        if prompt.text_layers is not None or sources is None or not self._use_tiles(layout):
            return None
        tiles = self._tiles_of(classes)
        with torch.no_grad():
            prefix = self._embed(layout.prefix, prompt.context.to(self.tower.positions.dtype))  # [b, P, E]
            tokens = self._embed_tiles(tiles, prefix.dtype)
            if not self._use_kernels(tiles, prefix):
                return None
            vjp = TextVjp(self.tower.blocks, lambda ends: unit(self.tower.finish(ends)), tiles, prefix, tokens)
        slots = (sources >= prefix.shape[1]).nonzero()[:, 0]  # positions of the context, and its vector at each
        vectors = sources[slots] - prefix.shape[1]

        def pullback(cotangent: Tensor) -> Tensor:
            gradient = vjp(cotangent).index_select(1, slots).float()
            return gradient.new_zeros(len(gradient), *prompt.context.shape[1:]).index_add_(1, vectors, gradient)

        return pullback

    def _use_kernels(self, tiles: Tiles, prefix: Tensor) -> bool:
        blocks = self.tower.blocks
        with torch.no_grad():
            return fused_block.usable(blocks, prefix) and packed.fits(blocks, tiles, prefix.shape[-2])

    def _run_tiled(
        self, classes: ClassTokens, layout: PackedLayout, prefix: Tensor, deep_prompts: tuple[Tensor, ...]
    ) -> Tensor:
        tiles = self._tiles_of(classes)
        tokens = self._embed_tiles(tiles, prefix.dtype)
        if not deep_prompts and not torch.is_grad_enabled() and self._use_kernels(tiles, prefix):
            return packed.run(self.tower.blocks, self.tower.finish, tiles, prefix, tokens)
        mask, x = expand_mask(tiles, len(prefix), self.tower.blocks[0].heads), tokens[None]
        *blocks, last = self.tower.blocks
        for depth, block in enumerate(blocks):
            prefix = _insert(prefix, deep_prompts, depth, layout.prefix)
            prefix, keys, values = _run_prefix(block, prefix)
            x = run_tiles(block, tiles, x, keys, values, mask)
        prefix = _insert(prefix, deep_prompts, len(blocks), layout.prefix)
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

    def _embed_tiles(self, tiles: Tiles, dtype: torch.dtype) -> Tensor:
        return self.tower.table(tiles.ids).to(dtype) + self.tower.positions[tiles.positions]  # [n * W, E]

    def _embed(self, span: TokenSpan, context: Tensor) -> Tensor:
        """Return input embeddings [1 or B, T, E]: 1 if no token depends on the prompt, so that images share them."""
        vectors = self.tower.table(span.ids)[None].to(context.dtype)
        if span.sources is not None:
            pool = torch.cat([vectors.expand(context.shape[0], -1, -1), context], 1)
            vectors = pool.index_select(1, span.sources)
        return vectors + self.tower.positions[span.positions]

    def _deep_prompts(self, prompt: Prompt, layout: PackedLayout) -> tuple[Tensor, ...]:
        if prompt.text_layers is None:
            return ()
        if layout.prefix.sources is None or layout.remainder.sources is not None:
            raise InvalidOptionError(
                "Deep text prompts need a context before the class name that is shared by all classes.",
                hint="Use context='before' and one context for all classes.",
            )
        if prompt.text_layers.shape[1] >= len(self.tower.blocks):
            raise InvalidOptionError(
                f"{prompt.text_layers.shape[1]} deep text prompts were given.",
                hint=f"This text tower has {len(self.tower.blocks)} layers: give at most {len(self.tower.blocks) - 1}.",
            )
        return prompt.text_layers.to(self.tower.positions.dtype).unbind(1)


def _insert(prefix: Tensor, deep_prompts: tuple[Tensor, ...], depth: int, span: TokenSpan) -> Tensor:
    """Replace the context tokens by the deep prompt [B, M, E] of block ``depth``; block 0 has none."""
    if span.sources is None or not 0 < depth <= len(deep_prompts):
        return prefix
    return torch.cat([prefix, deep_prompts[depth - 1]], 1).index_select(1, span.sources)


def _run_prefix(block: Block, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Apply one block to the prefix; also return its keys and values [B, H, P, hd], to which the classes attend."""
    queries, keys, values = block.project(block.norm1(x), 0, 3)
    position = torch.arange(x.shape[1], device=x.device)
    scores = (queries * queries.shape[-1] ** -0.5) @ keys.transpose(-1, -2)
    weights = scores.masked_fill(position[None, :] > position[:, None], -torch.inf).softmax(-1)
    return block.after_attention(x, _merge_heads(weights @ values)), keys, values


def _run_classes(block: Block, layout: PackedLayout, x: Tensor, prefix_keys: Tensor, prefix_values: Tensor) -> Tensor:
    """Apply one block to the packed remainders of all classes, [1 or B, T, E] -> [B, T, E]."""
    queries, keys, values = block.project(block.norm1(x), 0, 3)
    queries = queries * queries.shape[-1] ** -0.5
    prefix_scores = queries @ prefix_keys.transpose(-1, -2)  # [B, H, T, P]
    heads = []
    for bucket in layout.buckets:
        shape = (bucket.rows, bucket.width)
        q, k, v = (part[:, :, bucket.tokens].unflatten(2, shape) for part in (queries, keys, values))
        scores = prefix_scores[:, :, bucket.tokens].unflatten(2, shape)  # [B, H, c, S, P]
        heads.append(_attend(q, k, v, scores, bucket.hidden, prefix_values))
    return block.after_attention(x, _merge_heads(torch.cat(heads, 2)))


def _run_ends(block: Block, layout: PackedLayout, x: Tensor, prefix_keys: Tensor, prefix_values: Tensor) -> Tensor:
    """Apply the last block to the end tokens only, [1 or B, T, E] -> [B, C, E]."""
    normed = block.norm1(x)
    (queries,) = block.project(normed.index_select(1, layout.ends), 0, 1)
    keys, values = block.project(normed, 1, 3)
    queries = queries * queries.shape[-1] ** -0.5
    prefix_scores = queries @ prefix_keys.transpose(-1, -2)  # [B, H, C, P]
    heads = []
    for bucket in layout.buckets:
        k, v = (part[:, :, bucket.tokens].unflatten(2, (bucket.rows, bucket.width)) for part in (keys, values))
        q = queries[:, :, bucket.classes].unsqueeze(3)  # [b, H, c, 1, hd]
        scores = prefix_scores[:, :, bucket.classes].unsqueeze(3)
        heads.append(_attend(q, k, v, scores, bucket.hidden_from_end, prefix_values))
    return block.after_attention(x.index_select(1, layout.ends), _merge_heads(torch.cat(heads, 2)))


def _merge_heads(heads: Tensor) -> Tensor:
    """Concatenate the heads, [B, H, T, hd] -> [B, T, E]."""
    return heads.transpose(1, 2).flatten(2)


def _attend(
    queries: Tensor, keys: Tensor, values: Tensor, prefix_scores: Tensor, hidden: Tensor, prefix_values: Tensor
) -> Tensor:
    """Attend to the prefix and to the tokens of the same class under one softmax, -> [B, H, c * Q, hd].

    The keys and values of the prefix are not copied per class: one matrix product serves the queries of all classes.
    """
    scores = (queries @ keys.transpose(-1, -2)).masked_fill(hidden, -torch.inf)  # [b, H, c, Q, S]
    weights = torch.cat([prefix_scores, scores.expand(*prefix_scores.shape[:-1], -1)], -1).softmax(-1)
    prefix_weights, class_weights = weights.split([prefix_scores.shape[-1], scores.shape[-1]], -1)
    return prefix_weights.flatten(2, 3) @ prefix_values + (class_weights @ values).flatten(2, 3)
