"""Images with two known labels, composed of two photos of different classes side by side: ``pairs:DATASET``.

Every photo is used once, so that images are as independent of each other as the photos are. Each half shows its whole
photo, smaller, on grey. Such images are no photographs of two things: results on them say so.
"""

from __future__ import annotations

import hashlib
import io
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace

from PIL import Image, ImageOps

from poise.data import ImageSet, Item
from poise.errors import InvalidDatasetError
from poise.images import read_image

PAIRS = "pairs:"
_SIDE = 448  # pixels of a composed image
_GREY = (128, 128, 128)


@dataclass(frozen=True, slots=True)
class Pair:
    """Two photos side by side."""

    left: Item
    right: Item

    def load(self) -> bytes:
        """Return the composed image as PNG."""
        whole = Image.new("RGB", (_SIDE, _SIDE), _GREY)
        for at, item in enumerate((self.left, self.right)):
            half = ImageOps.contain(read_image(item.source()).image, (_SIDE // 2, _SIDE))
            whole.paste(half, (at * _SIDE // 2 + (_SIDE // 2 - half.width) // 2, (_SIDE - half.height) // 2))
        stream = io.BytesIO()
        whole.save(stream, "PNG", compress_level=1)
        return stream.getvalue()


def is_composed(name: str) -> bool:
    """Return whether a name means composed images, as in ``pairs:caltech101``, or ``pairs:caltech101:8``."""
    return name.startswith(PAIRS)


def composed(name: str, open_one: Callable[[str], ImageSet]) -> ImageSet:
    """Return composed images, half as many as photos; with a number, those of so many of the largest classes.

    Args:
        name: ``pairs:DATASET`` or ``pairs:DATASET:NUMBER``.
        open_one: opens the dataset.
    """
    source, _, number = name.removeprefix(PAIRS).rpartition(":")
    images = open_one(source) if source and number.isdecimal() else open_one(name.removeprefix(PAIRS))
    sizes = Counter(item.label for item in images.items)
    ranked = sorted(range(len(images.classes)), key=lambda label: (-sizes[label], label))
    kept = sorted(ranked[: int(number)] if source and number.isdecimal() else ranked)
    at = {label: position for position, label in enumerate(kept)}
    items = [replace(item, label=at[item.label]) for item in images.items if item.label in at]
    found = tuple(_matched(sorted(items, key=lambda item: hashlib.blake2b(item.id.encode(), digest_size=8).digest())))
    if not found:
        raise InvalidDatasetError(
            f"'{name}' has no two images of different classes.", hint="Compose images of several classes."
        )
    return replace(
        images,
        name=name,
        classes=tuple(images.classes[label] for label in kept),
        items=found,
        reference_accuracy=None,
        folder="",
        parents=(),
        independent=True,
    )


def _matched(items: list[Item]) -> list[Item]:
    """Return pairs of photos of different classes: each with the first one after it that is left."""
    waiting: list[Item] = []  # all of one class
    found = []
    for item in items:
        if waiting and waiting[0].label != item.label:
            first = waiting.pop(0)
            found.append(Item(f"{first.id}+{item.id}", first.label, Pair(first, item), (item.label,)))
        else:
            waiting.append(item)
    return found
