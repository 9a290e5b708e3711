# mypy: ignore-errors
# Kernel bodies are written in the Triton language, for which type checkers have no stubs.
"""Triton kernels of the memory-bound parts of a transformer block: each reads and writes its rows once."""

from __future__ import annotations

from contextlib import nullcontext

import torch

from poise.triton_support import available, jit, tl

GELU, QUICK_GELU = 0, 1


def supported(tensor):
    """Return whether the tensor's device can run the kernels: they need the shared memory of Ampere or later GPUs."""
    return available and tensor.is_cuda and torch.cuda.get_device_capability(tensor.device) >= (8, 0)


def device_guard(tensor):
    """Return a context manager that selects the tensor's device; on a CPU, Triton's interpreter runs the kernels."""
    return torch.cuda.device(tensor.device) if tensor.is_cuda else nullcontext()


@jit
def norm_kernel(x, shift, weight, bias, out, epsilon, width, period, FREE: tl.constexpr, BLOCK: tl.constexpr):
    """Layer norm of one row plus its shift. Rows form groups of ``period``; ``out`` has FREE more rows before each."""
    row = tl.program_id(0)
    group = row // period
    spot = tl.arange(0, BLOCK)
    valid = spot < width
    value = tl.load(x + row.to(tl.int64) * width + spot, mask=valid, other=0).to(tl.float32)
    value += tl.load(shift + (row - group * period) * width + spot, mask=valid, other=0).to(tl.float32)
    mean = tl.sum(value, 0) / width
    away = tl.where(valid, value - mean, 0.0)
    scale = tl.rsqrt(tl.sum(away * away, 0) / width + epsilon)
    gain = tl.load(weight + spot, mask=valid, other=0).to(tl.float32)
    base = tl.load(bias + spot, mask=valid, other=0).to(tl.float32)
    place = (row + (group + 1) * FREE).to(tl.int64) * width
    tl.store(out + place + spot, away * scale * gain + base, mask=valid)


@jit
def _normal(value):
    """Return the standard normal distribution function and exp(-value^2 / 2).

    Uses formula 7.1.26 of Abramowitz and Stegun, with an error below 1e-7. That is far below the resolution of half
    precision, while an exact erf would take longer than the memory accesses.
    """
    size = tl.abs(value) * 0.7071067811865476
    t = 1.0 / (1.0 + 0.3275911 * size)
    series = ((((1.061405429 * t - 1.453152027) * t + 1.421413741) * t - 0.284496736) * t + 0.254829592) * t
    bell = tl.exp2(size * size * -1.4426950408889634)
    beyond = 0.5 * series * bell
    return tl.where(value < 0, beyond, 1.0 - beyond), bell


@jit
def activation_kernel(x, out, count, KIND: tl.constexpr, BLOCK: tl.constexpr):
    """Apply GELU or QuickGELU to each element."""
    spot = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    valid = spot < count
    value = tl.load(x + spot, mask=valid, other=0).to(tl.float32)
    if KIND == 0:
        below, _ = _normal(value)
        result = value * below
    else:
        result = value / (1.0 + tl.exp2(value * -2.4554669595930155))  # 1.702 log2(e)
    tl.store(out + spot, result, mask=valid)


@jit
def _places(index, tile, tiles, width, prefix):
    """Return whether this tile holds classes (not the prefix), the masks of valid queries and keys, and their rows."""
    own = index * 0 + tile < tiles  # one value, broadcast to the mask's shape
    asks = index < tl.where(own, width, prefix)
    sees = index < tl.where(own, prefix + width, prefix)
    query_row = tl.where(own, prefix + tile * width, 0) + index
    key_row = tl.where(index < prefix, index, tile * width + index)
    return own, asks, sees, query_row, key_row


@jit
def _weights(q, k, mask, tile, index, asks, sees, own, width, prefix, scale):
    """Return the attention weights [W, K] of one tile, masked by ``mask``, or causally if the tile is the prefix."""
    inside = asks[:, None] & sees[None, :]
    place = mask + (tile * width + index[:, None]) * (prefix + width) + index[None, :]
    hidden = tl.load(place, mask=inside & own[:, None], other=0).to(tl.float32)
    near = tl.dot(q, tl.trans(k)) * scale + hidden
    near = tl.where(inside & (own[:, None] | (index[None, :] <= index[:, None])), near, float("-inf"))
    near = tl.where(asks[:, None], near, 0.0)  # rows without a query need a finite value
    weights = tl.exp(near - tl.max(near, 1)[:, None])
    return weights / tl.sum(weights, 1)[:, None]


@jit
def attention_kernel(
    joint, mask, out, tiles, width, prefix, rows, scale, HEADS: tl.constexpr, SIZE: tl.constexpr, BLOCK: tl.constexpr
):
    """Compute one head's output for one tile of one image: ``joint`` [B, rows, 3, H, hd] -> ``out`` [B, rows, H, hd].

    Rows are the P tokens of the prefix, then n tiles of W tokens; ``mask`` is [n, W, P + W]. Tile n is the prefix.
    """
    tile, head, image = tl.program_id(0), tl.program_id(1), tl.program_id(2).to(tl.int64)
    index, depth = tl.arange(0, BLOCK), tl.arange(0, SIZE)
    own, asks, sees, query_row, key_row = _places(index, tile, tiles, width, prefix)
    spot = head * SIZE + depth[None, :]
    mine = joint + image * rows * 3 * HEADS * SIZE + spot
    q = tl.load(mine + query_row[:, None] * 3 * HEADS * SIZE, mask=asks[:, None], other=0)
    k = tl.load(mine + (key_row[:, None] * 3 + 1) * HEADS * SIZE, mask=sees[:, None], other=0)
    v = tl.load(mine + (key_row[:, None] * 3 + 2) * HEADS * SIZE, mask=sees[:, None], other=0)
    weights = _weights(q, k, mask, tile, index, asks, sees, own, width, prefix, scale)
    mixed = tl.dot(weights.to(v.dtype), v)
    tl.store(out + (image * rows + query_row[:, None]) * HEADS * SIZE + spot, mixed, mask=asks[:, None])


@jit
def activation_back_kernel(gradient, x, count, OWN: tl.constexpr, KIND: tl.constexpr, BLOCK: tl.constexpr):
    """Multiply ``gradient`` [B, count] in place by the derivative of the activation at ``x`` [1 or B (OWN), count]."""
    spot = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    valid = spot < count
    image = tl.program_id(1).to(tl.int64)
    value = tl.load(x + image * count * OWN + spot, mask=valid, other=0).to(tl.float32)
    if KIND == 0:
        below, bell = _normal(value)
        derivative = below + value * bell * 0.3989422804014327  # 1 / sqrt(2 pi)
    else:
        open_ = 1.0 / (1.0 + tl.exp2(value * -2.4554669595930155))
        derivative = open_ * (1.0 + 1.702 * value * (1.0 - open_))
    place = gradient + image * count + spot
    tl.store(place, tl.load(place, mask=valid, other=0).to(tl.float32) * derivative, mask=valid)


@jit
def norm_back_kernel(total, gradient, x, weight, epsilon, width, rows, OWN: tl.constexpr, BLOCK: tl.constexpr):
    """Add the gradient through a layer norm at ``x`` [1 or B (OWN), rows, E] to ``total`` [B, rows, E]."""
    row, image = tl.program_id(0), tl.program_id(1).to(tl.int64)
    spot = tl.arange(0, BLOCK)
    valid = spot < width
    value = tl.load(x + (image * rows * OWN + row) * width + spot, mask=valid, other=0).to(tl.float32)
    mean = tl.sum(value, 0) / width
    away = tl.where(valid, value - mean, 0.0)
    scale = tl.rsqrt(tl.sum(away * away, 0) / width + epsilon)
    unit = away * scale
    place = (image * rows + row) * width + spot
    inner = tl.load(gradient + place, mask=valid, other=0).to(tl.float32)
    inner *= tl.load(weight + spot, mask=valid, other=0).to(tl.float32)
    change = scale * (inner - tl.sum(inner, 0) / width - unit * (tl.sum(inner * unit, 0) / width))
    old = tl.load(total + place, mask=valid, other=0).to(tl.float32)
    tl.store(total + place, old + change, mask=valid)


@jit
def attention_back_kernel(
    joint,
    cotangent,
    mask,
    out,
    shared,
    tiles,
    width,
    prefix,
    rows,
    scale,
    OWN: tl.constexpr,
    HEADS: tl.constexpr,
    SIZE: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Compute the gradients of the queries, keys and values of one tile, for one head of one image.

    ``joint`` is [1 or B (OWN), rows, 3, H, hd] and ``mask`` [n, W, P + W]; ``cotangent`` [B, rows, H, hd] is that
    of the heads' outputs; ``out`` is [B, rows, 3, H, hd]. All tiles attend to the prefix, so each tile writes its
    gradients of the prefix's keys and values to a separate part of ``shared`` [B, n + 1, P, 2, H, hd], to be summed.
    Tile n is the prefix.
    """
    tile, head, image = tl.program_id(0), tl.program_id(1), tl.program_id(2).to(tl.int64)
    index, depth = tl.arange(0, BLOCK), tl.arange(0, SIZE)
    own, asks, sees, query_row, key_row = _places(index, tile, tiles, width, prefix)
    step = 3 * HEADS * SIZE
    spot = head * SIZE + depth[None, :]
    given = joint + image * rows * step * OWN + spot
    q = tl.load(given + query_row[:, None] * step, mask=asks[:, None], other=0)
    k = tl.load(given + key_row[:, None] * step + HEADS * SIZE, mask=sees[:, None], other=0)
    v = tl.load(given + key_row[:, None] * step + 2 * HEADS * SIZE, mask=sees[:, None], other=0)
    wanted = cotangent + (image * rows + query_row[:, None]) * (HEADS * SIZE) + spot
    g = tl.load(wanted, mask=asks[:, None], other=0)
    weights = _weights(q, k, mask, tile, index, asks, sees, own, width, prefix, scale)
    back = tl.dot(g, tl.trans(v))
    back = weights * (back - tl.sum(weights * back, 1)[:, None]) * scale
    low = back.to(k.dtype)
    dq = tl.dot(low, k)
    dk = tl.dot(tl.trans(low), q)
    dv = tl.dot(tl.trans(weights.to(k.dtype)), g)
    tl.store(out + (image * rows + query_row[:, None]) * step + spot, dq, mask=asks[:, None])
    mine = out + (image * rows + key_row[:, None]) * step + spot
    keep = sees[:, None] & (index[:, None] >= prefix)
    tl.store(mine + HEADS * SIZE, dk, mask=keep)
    tl.store(mine + 2 * HEADS * SIZE, dv, mask=keep)
    part = shared + ((image * (tiles + 1) + tile) * prefix + index[:, None]) * (2 * HEADS * SIZE) + spot
    tl.store(part, dk, mask=index[:, None] < prefix)
    tl.store(part + HEADS * SIZE, dv, mask=index[:, None] < prefix)
