"""A few real images that come with scikit-image, so that a first try needs no files of one's own."""

from __future__ import annotations

import importlib.util
from pathlib import Path

from poise.errors import MissingDependencyError

SAMPLES = {
    "chelsea.png": "cat",
    "coffee.png": "cup of coffee",
    "rocket.jpg": "rocket",
    "motorcycle_left.png": "motorcycle",
    "astronaut.png": "astronaut",
}


def sample_images() -> list[Path]:
    """The images' paths; found without importing scikit-image, which is slow."""
    spec = importlib.util.find_spec("skimage")
    if spec is None or spec.origin is None:
        raise MissingDependencyError(
            "The sample images need the package 'scikit-image'.", hint="pip install scikit-image"
        )
    folder = Path(spec.origin).parent / "data"
    return [folder / name for name in SAMPLES]
