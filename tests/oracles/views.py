"""Slow, plain versions of the views: Pillow's resampling in float64 and AugMix's operations pixel by pixel."""

from __future__ import annotations

import math

import numpy as np


def triangle_matrix(source: int, target: int) -> np.ndarray:
    """[target, source] antialiased bilinear weights of a whole axis."""
    matrix = np.zeros((target, source))
    scale = source / target
    stretch = max(scale, 1.0)
    for out in range(target):
        centre = (out + 0.5) * scale
        for tap in range(max(int(centre - stretch + 0.5), 0), min(int(centre + stretch + 0.5), source)):
            matrix[out, tap] = max(1 - abs((tap - centre + 0.5) / stretch), 0)
    return matrix / matrix.sum(axis=1, keepdims=True)


def resize(pixels: np.ndarray, side: int) -> np.ndarray:
    """[H, W, 3] -> [S, S, 3]: across, whole levels, down, whole levels."""
    across = np.einsum("sw,hwc->hsc", triangle_matrix(pixels.shape[1], side), pixels.astype(np.float64))
    down = np.einsum("sh,hwc->swc", triangle_matrix(pixels.shape[0], side), np.floor(across + 0.5))
    return np.floor(down + 0.5)


def warp(pixels: np.ndarray, matrix: tuple[float, ...]) -> np.ndarray:
    """Bilinear affine warp, black outside, cut to whole levels."""
    height, width = pixels.shape[:2]
    out = np.zeros_like(pixels)
    a, b, c, d, e, f = matrix
    for y in range(height):
        for x in range(width):
            u = a * (x + 0.5) + b * (y + 0.5) + c
            v = d * (x + 0.5) + e * (y + 0.5) + f
            if not (0 <= u < width and 0 <= v < height):
                continue
            left, top = math.floor(u - 0.5), math.floor(v - 0.5)
            dx, dy = u - 0.5 - left, v - 0.5 - top
            rows = [min(max(top + i, 0), height - 1) for i in (0, 1)]
            columns = [min(max(left + i, 0), width - 1) for i in (0, 1)]
            corner = [[pixels[row, column].astype(np.float64) for column in columns] for row in rows]
            upper = corner[0][0] + (corner[0][1] - corner[0][0]) * dx
            lower = corner[1][0] + (corner[1][1] - corner[1][0]) * dx
            out[y, x] = (upper + (lower - upper) * dy).astype(np.uint8)
    return out


def rotation(degrees: float, side: int) -> tuple[float, ...]:
    angle = -math.radians(degrees)
    cos, sin, centre = math.cos(angle), math.sin(angle), side / 2
    return (cos, sin, centre - centre * cos - centre * sin, -sin, cos, centre + centre * sin - centre * cos)


def autocontrast(channel: np.ndarray) -> np.ndarray:
    low, high = int(channel.min()), int(channel.max())
    if high <= low:
        return channel
    scale = 255.0 / (high - low)
    return np.array([min(max(int(i * scale - low * scale), 0), 255) for i in range(256)], np.uint8)[channel]


def equalize(channel: np.ndarray) -> np.ndarray:
    counts = np.bincount(channel.reshape(-1), minlength=256)
    step = (counts.sum() - counts[np.flatnonzero(counts)[-1]]) // 255
    if step == 0:
        return channel
    table, running = [], step // 2
    for count in counts:
        table.append(min(running // step, 255))
        running += count
    return np.array(table, np.uint8)[channel]
