# mypy: ignore-errors
# Kernel bodies are written in the Triton language, for which type checkers have no stubs.
"""Triton kernels that write float8 rows, each with a scale of its own, as they compute a layer norm or an activation.

Quantising in a pass of its own would cost more than the faster matrix product saves.
"""

from __future__ import annotations

from poise.triton_support import available, jit, tl

LARGEST = 448.0  # of float8 e4m3
_LARGEST = tl.constexpr(LARGEST) if available else LARGEST  # kernels read no other globals


@jit
def _scale(largest, scales, row):
    """Store the scale of a row whose largest entry has this size, and return its inverse."""
    largest = tl.maximum(largest, 1e-12)
    tl.store(scales + row, largest / _LARGEST)
    return _LARGEST / largest


@jit
def add_norm_float8_kernel(
    x, update, shift, weight, bias, out, scales, epsilon, width, ADD: tl.constexpr, BLOCK: tl.constexpr
):
    """Add a row of ``update`` and ``shift`` [width] to ``x`` if ADD, and write its layer norm in float8."""
    row = tl.program_id(0)
    spot = tl.arange(0, BLOCK)
    valid = spot < width
    place = row.to(tl.int64) * width + spot
    value = tl.load(x + place, mask=valid, other=0).to(tl.float32)
    if ADD:
        value += tl.load(update + place, mask=valid, other=0).to(tl.float32)
        value += tl.load(shift + spot, mask=valid, other=0).to(tl.float32)
        tl.store(x + place, value, mask=valid)
    mean = tl.sum(value, 0) / width
    away = tl.where(valid, value - mean, 0.0)
    factor = tl.rsqrt(tl.sum(away * away, 0) / width + epsilon)
    gain = tl.load(weight + spot, mask=valid, other=0).to(tl.float32)
    base = tl.load(bias + spot, mask=valid, other=0).to(tl.float32)
    normed = tl.where(valid, away * factor * gain + base, 0.0)
    inverse = _scale(tl.max(tl.abs(normed), 0), scales, row)
    tl.store(out + place, (normed * inverse).to(out.dtype.element_ty), mask=valid)


@jit
def _active(value, KIND: tl.constexpr):
    """Return GELU or QuickGELU, with an error of GELU below 3e-5.

    With an exact normal distribution function, its arithmetic would take longer than the memory accesses. A float8
    number has an error of 3 % instead of 3e-5.
    """
    if KIND == 0:
        square = tl.minimum(value * value, 30.0)
        exponent = value * (-2.30112134 + square * (-0.106775724 + square * 0.00101426311))
    else:
        exponent = value * -2.4554669595930155  # 1.702 log2(e)
    return value / (1.0 + tl.exp2(exponent))


@jit
def activation_float8_kernel(x, shift, out, scales, width, KIND: tl.constexpr, BLOCK: tl.constexpr, REST: tl.constexpr):
    """Write the activation of a row of ``x`` + ``shift`` [width] in float8.

    A row is in two blocks, of which BLOCK is a power of two below the width, and REST at least the remainder.
    """
    row = tl.program_id(0)
    start = row.to(tl.int64) * width
    spot, rest = tl.arange(0, BLOCK), BLOCK + tl.arange(0, REST)
    valid = rest < width
    value = tl.load(x + start + spot).to(tl.float32) + tl.load(shift + spot).to(tl.float32)
    other = tl.load(x + start + rest, mask=valid, other=0).to(tl.float32)
    other += tl.load(shift + rest, mask=valid, other=0).to(tl.float32)
    value, other = _active(value, KIND), _active(other, KIND)
    largest = tl.maximum(tl.max(tl.abs(value), 0), tl.max(tl.abs(other), 0))
    inverse = _scale(largest, scales, row)
    tl.store(out + start + spot, (value * inverse).to(out.dtype.element_ty))
    tl.store(out + start + rest, (other * inverse).to(out.dtype.element_ty), mask=valid)
