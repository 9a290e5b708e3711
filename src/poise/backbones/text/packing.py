"""How the tokens of a label set are packed for the shared-prefix text forward.

The prefix (start token and words before the name) is the same for all classes and stands alone. The remainders are
packed on one token axis of length T without the padding that causal attention makes useless: classes are sorted by
length and cut into a few buckets, and only within a bucket are rows padded to a common width.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from poise.types import ClassTokens

_BUCKET_COST = 256  # padded tokens that one more bucket must save to be worth its extra kernel launches


@dataclass(frozen=True)
class Bucket:
    """A run of classes, sorted by length, whose remainders are padded to one width."""

    classes: slice  # on the sorted class axis
    tokens: slice  # on the packed token axis
    rows: int
    width: int
    hidden: Tensor  # [width, width] bool: True where a query must not see a key
    hidden_from_end: Tensor  # [rows, 1, width] bool: the same for each class's end token


@dataclass(frozen=True)
class Part:
    """Tokens whose vectors come from the model's table and, where ``sources`` says so, from the prompt."""

    ids: Tensor  # [T] long
    positions: Tensor  # [T] long
    sources: Tensor | None  # [T] long into (table rows, then context vectors); None: nothing comes from the prompt


@dataclass(frozen=True)
class PackedLayout:
    """One label set, packed."""

    prefix: Part
    remainder: Part
    buckets: tuple[Bucket, ...]
    ends: Tensor  # [C] long: where each sorted class's end token is on the packed axis
    restore: Tensor  # [C] long: sorted position of each class


def pack(classes: ClassTokens, *, class_specific: bool, device: torch.device) -> PackedLayout:
    """The layout of ``classes``; ``class_specific`` contexts can't stand in the shared prefix."""
    count, slots = len(classes), classes.slots
    prefix = min(classes.shared, int(slots.min())) if class_specific and slots.numel() else classes.shared
    remainders = classes.lengths - prefix
    order = torch.argsort(remainders, stable=True)
    buckets, rows, columns, offset = [], [], [], 0
    for start, stop in _cuts(remainders[order].tolist()):
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
        prefix=_part(
            classes.ids[0, :prefix], shared, _sources(slots, shared * 0, shared, class_specific=False), device
        ),
        remainder=_part(padded[row, column], column, sources, device),
        buckets=tuple(buckets),
        ends=ends.to(device),
        restore=torch.empty(count, dtype=torch.long).scatter_(0, order, torch.arange(count)).to(device),
    )


def _part(ids: Tensor, positions: Tensor, sources: Tensor | None, device: torch.device) -> Part:
    return Part(ids.to(device), positions.to(device), None if sources is None else sources.to(device))


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
    """For each token, its own index or, where it is a slot, the index of its context vector behind all tokens."""
    here = slots[row] == column[:, None]  # [T, M]
    taken = here.any(1)
    if not bool(taken.any()):
        return None
    width = slots.shape[1]
    vector = here.int().argmax(1) + (row * width if class_specific else 0)
    total = row.shape[0]
    return torch.where(taken, total + vector, torch.arange(total))


def _cuts(lengths: list[int]) -> list[tuple[int, int]]:
    """Where to cut sorted lengths into buckets so that padded tokens plus the cost of the buckets are fewest."""
    edges = [i for i in range(1, len(lengths)) if lengths[i] != lengths[i - 1]] + [len(lengths)]
    best: dict[int, tuple[int, list[tuple[int, int]]]] = {0: (0, [])}
    for stop in edges:
        options = []
        for start, (cost, cuts) in best.items():
            options.append((cost + (stop - start) * lengths[stop - 1] + _BUCKET_COST, [*cuts, (start, stop)]))
        best[stop] = min(options, key=lambda option: option[0])
    return best[len(lengths)][1]
