"""Example images from scikit-image, for a first try without any files."""

from __future__ import annotations

import importlib.util
from pathlib import Path

from poise.errors import MissingDependencyError

SAMPLES = ("chelsea.png", "coffee.png", "rocket.jpg", "motorcycle_left.png", "astronaut.png")


def sample_images() -> list[Path]:
    """Return the paths of the example images, without importing scikit-image, which is slow."""
    spec = importlib.util.find_spec("skimage")
    if spec is None or spec.origin is None:
        raise MissingDependencyError.of("Sample images", "scikit-image")
    return [Path(spec.origin).parent / "data" / name for name in SAMPLES]
