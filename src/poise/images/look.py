"""How an image looks, in 256 bits that resizing it and encoding it again hardly change (a perceptual hash).

The bits are the signs of the 16 x 16 lowest frequencies of the brightness on a grid of 32 x 32 cells (a cosine
transform). Copies of an image differ in few of the bits, and different photos in about half of them. Crops, mirror
images and rotations look different. A hash is a text of 64 hexadecimal digits; an image without contrast has none, "".
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from PIL import Image

CELLS, WAVES = 32, 16
DIGITS = WAVES * WAVES // 4  # of a hash
SAMPLED = 8 * CELLS  # rows and columns of a large image that are looked at
FLAT = 2.0  # standard deviation of the brightness, of 255, below which there is nothing to see
NEAR = 40  # bits in which copies differ at most: of 2,000 photos, copies in up to 23 and others in 80 or more
COSINES = np.cos(np.pi * np.arange(WAVES)[:, None] * (np.arange(CELLS) + 0.5) / CELLS)


def look_of(image: Image.Image) -> str:
    """Return the hash of an image in mode RGB.

    >>> from poise.images.samples import sample_images
    >>> photo = Image.open(sample_images()[0]).convert("RGB")
    >>> Looks([look_of(photo)]).first_like(look_of(photo.resize((99, 99))))
    0
    """
    size = (min(image.width, SAMPLED), min(image.height, SAMPLED))
    if size != image.size:
        image = image.resize(size, Image.Resampling.NEAREST)
    cells = np.asarray(image.convert("L").resize((CELLS, CELLS), Image.Resampling.BOX), dtype=np.float64)
    if cells.std() < FLAT:
        return ""
    return np.packbits(COSINES @ (cells - cells.mean()) @ COSINES.T > 0).tobytes().hex()


class Looks:
    """The hashes of known images, among which others are looked up."""

    def __init__(self, looks: Sequence[str]) -> None:
        self._seen = np.array([look != "" for look in looks], dtype=bool)
        self._words = _words([look or "0" * DIGITS for look in looks])

    def __len__(self) -> int:
        return len(self._seen)

    def first_like(self, look: str, before: int | None = None) -> int | None:
        """Return the position of the first known image that may be the same, in another size or encoding.

        Args:
            look: hash of an image.
            before: only so many of the known images are compared; None for all.
        """
        if not look:
            return None
        known = slice(before)
        differ = np.bitwise_count(self._words[known] ^ _words([look])).sum(1, dtype=np.int64)
        found = np.flatnonzero((differ <= NEAR) & self._seen[known])
        return int(found[0]) if len(found) else None


def _words(looks: Sequence[str]) -> np.ndarray:
    """Return hashes as whole numbers [N, 4] of 64 bits."""
    return np.frombuffer(bytes.fromhex("".join(looks)), np.uint64).reshape(len(looks), -1 if looks else DIGITS // 16)
