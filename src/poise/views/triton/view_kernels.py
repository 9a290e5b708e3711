# mypy: ignore-errors
# Kernel bodies are written in the Triton language, for which type checkers have no stubs.
"""Triton kernels for views: resampling, AugMix's lookup tables and steps, and the final mix, each for all views.

Each kernel follows the arithmetic of the corresponding PIL operation, in float64 where PIL truncates or rounds. A pixel
is one int32, red + 256 green + 65536 blue, because the number of loads limits the kernels, not the number of bytes.
"""

from __future__ import annotations

from poise.triton_support import jit, tl

# Kinds of AugMix steps, stored as `kind` in the items of step_kernel.
LOOK_UP, POSTERIZE, SOLARIZE, WARP = 0, 1, 2, 3


@jit
def _weight(x, CUBIC: tl.constexpr):
    """Return the triangle filter, or Keys' cubic filter with a = -1/2."""
    x = tl.abs(x)
    if CUBIC:
        near = (1.5 * x - 2.5) * x * x + 1.0
        far = ((-0.5 * x + 2.5) * x - 4.0) * x + 2.0
        return tl.where(x < 1.0, near, tl.where(x < 2.0, far, 0.0))
    return tl.maximum(1.0 - x, 0.0)


@jit
def _axis(output, scale, length, CUBIC: tl.constexpr):
    """Return the first and last tap, the first tap's offset to the centre, 1 / stretch, the tap count and their sum."""
    radius = 2.0 if CUBIC else 1.0
    stretch = tl.maximum(scale, 1.0)
    centre = (output + 0.5) * scale
    first = tl.maximum((centre - radius * stretch + 0.5).to(tl.int32), 0)
    last = tl.minimum((centre + radius * stretch + 0.5).to(tl.int32), length)
    away = (first - centre + 0.5).to(tl.float32)
    shrink = (1.0 / stretch).to(tl.float32)
    taps = (2.0 * radius * stretch).to(tl.int32) + 2
    total = tl.zeros_like(away)
    for k in range(taps):
        total += tl.where(first + k < last, _weight((away + k) * shrink, CUBIC), 0.0)
    return first, last, away, shrink, taps, total


@jit
def _level(x):
    return tl.minimum(tl.maximum(tl.floor(x + 0.5), 0.0), 255.0)


@jit
def pack_kernel(source, out, count, BLOCK: tl.constexpr):
    """Pack pixels of three bytes into one int32 each."""
    spot = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    valid = spot < count
    red = tl.load(source + spot * 3, mask=valid, other=0).to(tl.int32)
    green = tl.load(source + spot * 3 + 1, mask=valid, other=0).to(tl.int32)
    blue = tl.load(source + spot * 3 + 2, mask=valid, other=0).to(tl.int32)
    tl.store(out + spot, red | (green << 8) | (blue << 16), mask=valid)


@jit
def resample_kernel(pixels, views, out, side, BLOCK: tl.constexpr, CUBIC: tl.constexpr):
    """Resize one box of one image [H, W] to [S, S] with antialiasing; horizontal pass first, rounded after each pass.

    Pillow 13 runs the vertical pass first if that is less work, as for most tall boxes. Bilinear crops of natural
    images then differ by at most one level; bicubic crops by more, where overshoots are clipped after the other axis.

    A row of ``views`` (float64) holds: start of the image in ``pixels``, its width, box left, top, width, height, first
    output column and row, horizontal and vertical scale, flip, index in ``out``.
    """
    row = views + tl.program_id(0) * 12
    image = pixels + tl.load(row).to(tl.int64)
    stride = tl.load(row + 1).to(tl.int32)  # 32 bits can index the pixels of one image, but not of a batch
    left, top = tl.load(row + 2).to(tl.int32), tl.load(row + 3).to(tl.int32)
    width, height = tl.load(row + 4).to(tl.int32), tl.load(row + 5).to(tl.int32)
    place = tl.load(row + 11).to(tl.int64)
    spot = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    valid = spot < side * side
    x, y = spot % side, spot // side
    x = tl.where(tl.load(row + 10) > 0, side - 1 - x, x)
    x0, x1, away_x, shrink_x, taps_x, total_x = _axis(x + tl.load(row + 6), tl.load(row + 8), width, CUBIC)
    y0, y1, away_y, shrink_y, taps_y, total_y = _axis(y + tl.load(row + 7), tl.load(row + 9), height, CUBIC)
    red, green, blue = tl.zeros_like(total_x), tl.zeros_like(total_x), tl.zeros_like(total_x)
    for j in range(taps_y):
        down = tl.where(y0 + j < y1, _weight((away_y + j) * shrink_y, CUBIC), 0.0)
        line = (top + tl.minimum(y0 + j, height - 1)) * stride + left
        r, g, b = tl.zeros_like(total_x), tl.zeros_like(total_x), tl.zeros_like(total_x)
        for k in range(taps_x):
            across = tl.where(x0 + k < x1, _weight((away_x + k) * shrink_x, CUBIC), 0.0)
            pixel = tl.load(image + line + tl.minimum(x0 + k, width - 1), mask=valid, other=0)
            r += across * (pixel & 255).to(tl.float32)
            g += across * ((pixel >> 8) & 255).to(tl.float32)
            b += across * (pixel >> 16).to(tl.float32)
        red += down * _level(r / total_x)
        green += down * _level(g / total_x)
        blue += down * _level(b / total_x)
    red, green, blue = _level(red / total_y), _level(green / total_y), _level(blue / total_y)
    pixel = red.to(tl.int32) | (green.to(tl.int32) << 8) | (blue.to(tl.int32) << 16)
    tl.store(out + place * side * side + spot, pixel, mask=valid)


@jit
def table_kernel(source, items, tables, area, BLOCK: tl.constexpr):
    """Compute the lookup table of one channel: autocontrast, or equalize if the item's flag is set."""
    item, channel = tl.program_id(0), tl.program_id(1)
    image = tl.load(items + item * 2).to(tl.int64)
    counts = tl.zeros([256], tl.int32)
    for start in range(0, area, BLOCK):
        spot = start + tl.arange(0, BLOCK)
        pixel = tl.load(source + image * area + spot, mask=spot < area, other=0)
        counts += tl.histogram((pixel >> (8 * channel)) & 255, 256)
    values = tl.arange(0, 256)
    counts -= tl.where(values == 0, (BLOCK - area % BLOCK) % BLOCK, 0)  # padding of the last block
    low = tl.min(tl.where(counts > 0, values, 255), 0)
    high = tl.max(tl.where(counts > 0, values, 0), 0)
    if tl.load(items + item * 2 + 1) > 0:
        step = (area - tl.sum(tl.where(values == high, counts, 0), 0)) // 255
        spread = (step // 2 + tl.cumsum(counts, 0) - counts) // tl.maximum(step, 1)
        table = tl.where(step > 0, tl.minimum(spread, 255), values)
    else:
        scale = tl.full([256], 255.0, tl.float64) / tl.maximum(high - low, 1).to(tl.float64)
        stretched = (values.to(tl.float64) * scale - low.to(tl.float64) * scale).to(tl.int32)
        table = tl.where(high > low, tl.minimum(tl.maximum(stretched, 0), 255), values)
    tl.store(tables + (item * 3 + channel) * 256 + values, table.to(tl.int32))


@jit
def _wide(pixel, SHIFT: tl.constexpr):
    """Return one channel in float64. An integer in the low bits of 2^52 adds to it, which saves a conversion."""
    channel = ((pixel >> SHIFT) & 255).to(tl.int64)
    return (channel | 0x4330000000000000).to(tl.float64, bitcast=True) - 4503599627370496.0


@jit
def _between(a, b, c, d, dx, dy, SHIFT: tl.constexpr):
    """Return PIL's bilinear value of one channel, truncated to a whole level."""
    first, second = _wide(a, SHIFT), _wide(c, SHIFT)
    upper, lower = first + (_wide(b, SHIFT) - first) * dx, second + (_wide(d, SHIFT) - second) * dx
    return (upper + (lower - upper) * dy).to(tl.int32) << SHIFT


@jit
def step_kernel(source, target, items, matrices, tables, side, BLOCK: tl.constexpr):
    """Apply one AugMix step to one image. A row of ``items`` holds: source, target, kind, argument of the kind."""
    item = tl.program_id(0)
    area = side * side
    read = source + tl.load(items + item * 4).to(tl.int64) * area
    write = target + tl.load(items + item * 4 + 1).to(tl.int64) * area
    kind, argument = tl.load(items + item * 4 + 2), tl.load(items + item * 4 + 3)
    spot = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    valid = spot < area
    if kind == 3:
        matrix = matrices + item * 6
        x, y = (spot % side).to(tl.float64) + 0.5, (spot // side).to(tl.float64) + 0.5
        u = tl.load(matrix) * x + tl.load(matrix + 1) * y + tl.load(matrix + 2)
        v = tl.load(matrix + 3) * x + tl.load(matrix + 4) * y + tl.load(matrix + 5)
        inside = valid & (u >= 0) & (u < side) & (v >= 0) & (v < side)
        u, v = u - 0.5, v - 0.5
        column, line = tl.floor(u), tl.floor(v)
        dx, dy = u - column, v - line
        left, upper = column.to(tl.int32), line.to(tl.int32)  # edge pixels are repeated
        x0, x1 = tl.maximum(left, 0), tl.minimum(left + 1, side - 1)
        y0, y1 = tl.maximum(upper, 0) * side, tl.minimum(upper + 1, side - 1) * side
        a = tl.load(read + y0 + x0, mask=inside, other=0)
        b = tl.load(read + y0 + x1, mask=inside, other=0)
        c = tl.load(read + y1 + x0, mask=inside, other=0)
        d = tl.load(read + y1 + x1, mask=inside, other=0)
        new = _between(a, b, c, d, dx, dy, 0) | _between(a, b, c, d, dx, dy, 8) | _between(a, b, c, d, dx, dy, 16)
    else:
        pixel = tl.load(read + spot, mask=valid, other=0)
        new = tl.zeros_like(pixel)
        for channel in tl.static_range(3):
            old = (pixel >> (8 * channel)) & 255
            if kind == 0:
                level = tl.load(tables + (argument * 3 + channel) * 256 + old, mask=valid, other=0)
            elif kind == 1:
                level = old - old % argument
            else:
                level = tl.where(old < argument, old, 255 - old)
            new |= level << (8 * channel)
    tl.store(write + spot, new, mask=valid)


@jit
def mix_kernel(crops, even, odd, shares, ends, norms, out, area, CHAINS: tl.constexpr, BLOCK: tl.constexpr):
    """Write the normalised weighted sum of a crop and its chains' results to planes [3, S, S].

    ``ends`` holds, per chain, the index i of its result: i in the buffer ``even``, -1 - i in ``odd``.
    """
    view = tl.program_id(0).to(tl.int64)
    spot = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    valid = spot < area
    pixel = tl.load(crops + view * area + spot, mask=valid, other=0)
    share = tl.load(shares + view * (CHAINS + 1))
    red, green, blue = _share(pixel, share, 0), _share(pixel, share, 8), _share(pixel, share, 16)
    for chain in tl.static_range(CHAINS):
        share = tl.load(shares + view * (CHAINS + 1) + 1 + chain)
        end = tl.load(ends + view * CHAINS + chain).to(tl.int64)
        if end >= 0:
            pixel = tl.load(even + end * area + spot, mask=valid, other=0)
        else:
            pixel = tl.load(odd + (-1 - end) * area + spot, mask=valid, other=0)
        red, green = red + _share(pixel, share, 0), green + _share(pixel, share, 8)
        blue += _share(pixel, share, 16)
    plane = out + view * 3 * area + spot
    tl.store(plane, (red / 255.0 - tl.load(norms)) / tl.load(norms + 3), mask=valid)
    tl.store(plane + area, (green / 255.0 - tl.load(norms + 1)) / tl.load(norms + 4), mask=valid)
    tl.store(plane + 2 * area, (blue / 255.0 - tl.load(norms + 2)) / tl.load(norms + 5), mask=valid)


@jit
def _share(pixel, share, SHIFT: tl.constexpr):
    return ((pixel >> SHIFT) & 255).to(tl.float32) * share
