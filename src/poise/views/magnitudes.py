"""AugMix's nine operations and their magnitude at each level, as published (severity scale 0..10).

All functions take arrays of levels, so that one call serves all views. Shifts and rotation centres scale with the
side of the transformed image (224 in the published code).
"""

from __future__ import annotations

import numpy as np

OPERATIONS = (
    "autocontrast",
    "equalize",
    "posterize",
    "rotate",
    "solarize",
    "shear_x",
    "shear_y",
    "translate_x",
    "translate_y",
)


def posterize_bits(level: np.ndarray) -> np.ndarray:
    """Return the bits kept per channel; 4 at severity 1."""
    return 4 - np.trunc(level * 4 / 10)


def solarize_threshold(level: np.ndarray) -> np.ndarray:
    """Return the threshold; values at or above it are inverted."""
    return 256 - np.trunc(level * 256 / 10)


def rotate_degrees(level: np.ndarray) -> np.ndarray:
    """Return the rotation in whole degrees, counter-clockwise."""
    return np.trunc(level * 30 / 10)


def shear_factor(level: np.ndarray) -> np.ndarray:
    """Return the shift per row (or column) in pixels."""
    return level * 0.3 / 10


def translate_pixels(level: np.ndarray, side: int) -> np.ndarray:
    """Return the translation in whole pixels."""
    return np.trunc(level * (side / 3) / 10)


def affine_matrices(operations: np.ndarray, levels: np.ndarray, signs: np.ndarray, side: int) -> np.ndarray:
    """Return matrices [N, 6] of N operations: output pixel (x, y) reads from (ax + by + c, dx + ey + f)."""
    matrices = np.tile(np.array([1.0, 0, 0, 0, 1.0, 0]), (len(operations), 1))
    index = {name: operations == code for code, name in enumerate(OPERATIONS)}
    matrices[:, 1] = np.where(index["shear_x"], signs * shear_factor(levels), 0.0)
    matrices[:, 3] = np.where(index["shear_y"], signs * shear_factor(levels), 0.0)
    matrices[:, 2] = np.where(index["translate_x"], signs * translate_pixels(levels, side), 0.0)
    matrices[:, 5] = np.where(index["translate_y"], signs * translate_pixels(levels, side), 0.0)
    rotated = index["rotate"]
    angle = -np.radians(signs[rotated] * rotate_degrees(levels[rotated]))
    cos, sin, centre = np.cos(angle), np.sin(angle), side / 2
    # The rotation is about the centre of the image: the shift maps that point to itself.
    shift_x = centre - centre * (cos + sin)
    shift_y = centre - centre * (cos - sin)
    matrices[rotated] = np.stack([cos, sin, shift_x, -sin, cos, shift_y], axis=1)
    return matrices
