"""The text forward for causal towers that computes what all classes share once per prompt.

Attention is causal, so (a) tokens behind the end token never matter and are not computed, and (b) the start token and
the words before the name do not depend on the class: they run once per prompt, and every class attends to their keys
and values. Equal to the tower's own full-length forward up to rounding. Out of place throughout, so that gradients of
many images can be taken through one graph (``is_grads_batched``).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from poise.backbones.layout import Layout, Part, pack
from poise.errors import InvalidOption
from poise.types import ClassTokens, Prompt

Map = Callable[[Tensor], Tensor]
_KEPT_LAYOUTS = 4


@dataclass(frozen=True)
class Block:
    """One pre-norm transformer block: x + scale1(attention(norm1(x))), then x + scale2(mlp(norm2(x)))."""

    heads: int
    weight: Tensor  # [3E, E] of queries, keys, values
    bias: Tensor | None  # [3E]
    norm1: Map
    out: Map
    norm2: Map
    mlp: Map
    scale1: Map | None = None
    scale2: Map | None = None

    def project(self, x: Tensor, first: int, last: int) -> list[Tensor]:
        """The projections first..last-1 of (queries, keys, values), each [b, heads, T, E / heads]."""
        width = self.weight.shape[1]
        rows = slice(first * width, last * width)
        joint = F.linear(x, self.weight[rows], None if self.bias is None else self.bias[rows])
        split = joint.unflatten(-1, (last - first, self.heads, width // self.heads))  # [b, T, n, H, hd]
        return list(split.permute(2, 0, 3, 1, 4).unbind(0))

    def close(self, x: Tensor, mixed: Tensor) -> Tensor:
        """The rest of the block, given the heads' outputs ``mixed`` [B, H, T, hd] for the rows ``x`` [b, T, E]."""
        attended = self.out(mixed.transpose(1, 2).flatten(2))
        x = x + (attended if self.scale1 is None else self.scale1(attended))
        changed = self.mlp(self.norm2(x))
        return x + (changed if self.scale2 is None else self.scale2(changed))


@dataclass(frozen=True)
class CausalTower:
    """A causal text transformer, reduced to what the forward needs."""

    blocks: tuple[Block, ...]
    table: Map  # token ids -> vectors
    positions: Tensor  # [L, E]
    finish: Map  # final norm and projection of the end token: [..., E] -> [..., D]


class SharedPrefix:
    """Text features of label sets under soft prompts, through one causal tower."""

    def __init__(self, tower: CausalTower) -> None:
        self.tower = tower
        self._layouts: dict[tuple[int, bool], tuple[ClassTokens, Layout]] = {}

    def __call__(self, classes: ClassTokens, prompt: Prompt) -> Tensor:
        """Features [B, C, D], not normalised; differentiable in the prompt."""
        layout = self._layout(classes, class_specific=prompt.context.dim() == 4)
        context = prompt.context.to(self.tower.positions.dtype).flatten(1, -2)  # [B, M or C * M, E]
        deep = self._deep(prompt, layout)
        prefix = self._place(layout.prefix, context)
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

    def _layout(self, classes: ClassTokens, *, class_specific: bool) -> Layout:
        # Keyed by identity: the entry holds the label set, so its id can't be taken by another while it is here.
        key = (id(classes), class_specific)
        if key not in self._layouts:
            while len(self._layouts) >= _KEPT_LAYOUTS:
                self._layouts.pop(next(iter(self._layouts)))
            device = self.tower.positions.device
            self._layouts[key] = (classes, pack(classes, class_specific=class_specific, device=device))
        return self._layouts[key][1]

    def _place(self, part: Part, context: Tensor) -> Tensor:
        """Input vectors [1 or B, T, E]: B is 1 as long as nothing depends on the prompt, so its work is shared."""
        vectors = self.tower.table(part.ids)[None].to(context.dtype)
        if part.sources is not None:
            pool = torch.cat([vectors.expand(context.shape[0], -1, -1), context], 1)
            vectors = pool.index_select(1, part.sources)
        return vectors + self.tower.positions[part.positions]

    def _deep(self, prompt: Prompt, layout: Layout) -> tuple[Tensor, ...]:
        if prompt.text_layers is None:
            return ()
        if layout.prefix.sources is None or layout.remainder.sources is not None:
            raise InvalidOption(
                "Deep text prompts need a context that stands before the class name and is shared by all classes.",
                hint="Use context='before' and one context for all classes.",
            )
        if prompt.text_layers.shape[1] >= len(self.tower.blocks):
            raise InvalidOption(
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
    return block.close(x, weights @ values), keys, values


def _run_classes(block: Block, layout: Layout, x: Tensor, prefix_keys: Tensor, prefix_values: Tensor) -> Tensor:
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
    return block.close(x, torch.cat(mixed, 2))


def _run_ends(block: Block, layout: Layout, x: Tensor, prefix_keys: Tensor, prefix_values: Tensor) -> Tensor:
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
    return block.close(x.index_select(1, layout.ends), torch.cat(mixed, 2))


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
