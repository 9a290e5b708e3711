"""Packs the tokens of a label set for the shared-prefix text forward pass.

The prefix (start token and words before the class name) is the same for all classes and is stored once. The remaining
tokens of all classes are concatenated along one axis of length T. Causal attention makes most padding unnecessary:
classes are sorted by length and split into a few buckets, and rows are padded only to the width of their bucket.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from poise.types import ClassTokens

_BUCKET_COST = 256  # padding tokens that an additional bucket must save to outweigh its kernel launches


@dataclass(frozen=True)
class Bucket:
    """Consecutive classes in order of length, padded to a common width."""

    classes: slice  # range on the sorted class axis
    tokens: slice  # range on the packed token axis
    rows: int
    width: int
    hidden: Tensor  # [width, width] bool: True where a query must not attend to a key
    hidden_from_end: Tensor  # [rows, 1, width] bool: the same for the end token of each class


@dataclass(frozen=True)
class TokenSpan:
    """Tokens whose embeddings come from the model's table or, as given by ``sources``, from the prompt."""

    ids: Tensor  # [T] long
    positions: Tensor  # [T] long
    sources: Tensor | None  # [T] long, index into (embeddings, context vectors); None if no token is tunable


@dataclass(frozen=True)
class PackedLayout:
    """The packed tokens of one label set."""

    prefix: TokenSpan
    remainder: TokenSpan
    buckets: tuple[Bucket, ...]
    ends: Tensor  # [C] long: position of each sorted class's end token on the packed axis
    restore: Tensor  # [C] long: position of each class in the sorted order


def pack(classes: ClassTokens, *, class_specific: bool, device: torch.device) -> PackedLayout:
    """Pack ``classes``. Tokens of a ``class_specific`` context cannot be part of the shared prefix."""
    count, slots = len(classes), classes.slots
    prefix = min(classes.shared, int(slots.min())) if class_specific and slots.numel() else classes.shared
    remainders = classes.lengths - prefix
    order = torch.argsort(remainders, stable=True)
    buckets, rows, columns, offset = [], [], [], 0
    for start, stop in bucket_bounds(remainders[order].tolist()):
        members, width = order[start:stop], int(remainders[order[stop - 1]])
        tokens = slice(offset, offset + (stop - start) * width)
        buckets.append(_bucket(slice(start, stop), tokens, width, remainders[members] - 1, device))
        rows.append(members.repeat_interleave(width))
        columns.append(torch.arange(prefix, prefix + width).repeat(stop - start))
        offset = tokens.stop
    row, column = torch.cat(rows), torch.cat(columns)  # [T]
    ends = torch.cat([torch.arange(b.rows) * b.width + b.tokens.start for b in buckets]) + remainders[order] - 1
    padded = torch.nn.functional.pad(classes.ids, (0, max(0, int(column.max()) + 1 - classes.ids.shape[1])))
    sources = _sources(slots, row, column, class_specific=class_specific)
    shared = torch.arange(prefix)
    return PackedLayout(
        prefix=_span(
            classes.ids[0, :prefix], shared, _sources(slots, shared * 0, shared, class_specific=False), device
        ),
        remainder=_span(padded[row, column], column, sources, device),
        buckets=tuple(buckets),
        ends=ends.to(device),
        restore=torch.empty(count, dtype=torch.long).scatter_(0, order, torch.arange(count)).to(device),
    )


def _span(ids: Tensor, positions: Tensor, sources: Tensor | None, device: torch.device) -> TokenSpan:
    return TokenSpan(ids.to(device), positions.to(device), None if sources is None else sources.to(device))


def _bucket(classes: slice, tokens: slice, width: int, ends: Tensor, device: torch.device) -> Bucket:
    keys = torch.arange(width)
    return Bucket(
        classes=classes,
        tokens=tokens,
        rows=classes.stop - classes.start,
        width=width,
        hidden=(keys[None, :] > keys[:, None]).to(device),
        hidden_from_end=(keys > ends[:, None])[:, None].to(device),
    )


def _sources(slots: Tensor, row: Tensor, column: Tensor, *, class_specific: bool) -> Tensor | None:
    """Return each token's index into (tokens, context vectors): its own, or that of the context vector in its slot."""
    matches = slots[row] == column[:, None]  # [T, M]
    is_slot = matches.any(1)
    if not bool(is_slot.any()):
        return None
    width = slots.shape[1]
    vector = matches.int().argmax(1) + (row * width if class_specific else 0)
    total = row.shape[0]
    return torch.where(is_slot, total + vector, torch.arange(total))


def bucket_bounds(lengths: list[int]) -> list[tuple[int, int]]:
    """Split sorted lengths into buckets (start, stop), minimising padded tokens plus ``_BUCKET_COST`` per bucket."""
    edges = [i for i in range(1, len(lengths)) if lengths[i] != lengths[i - 1]] + [len(lengths)]
    best: dict[int, tuple[int, list[tuple[int, int]]]] = {0: (0, [])}
    for stop in edges:
        options = []
        for start, (cost, bounds) in best.items():
            options.append((cost + (stop - start) * lengths[stop - 1] + _BUCKET_COST, [*bounds, (start, stop)]))
        best[stop] = min(options, key=lambda option: option[0])
    return best[len(lengths)][1]
