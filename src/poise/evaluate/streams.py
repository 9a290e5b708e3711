"""What a run's images are: several datasets as one stream (``mixed:A+B``), and classes that the labels leave out.

Images of classes that are left out are out-of-distribution: their label is `UNKNOWN`, and reports measure how well
scores tell them from the others.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import replace

from poise.data import ImageSet
from poise.errors import InvalidOptionError

UNKNOWN = -1  # the label of an image whose class is not among the labels
MIXED = "mixed:"
SHUFFLED, BY_CLASS = "shuffled", "by-class"  # orders of a stream


def is_mixed(name: str) -> bool:
    """Return whether a name means several datasets, as in ``mixed:imagenet+imagenet-v2``."""
    return name.startswith(MIXED)


def mixed(name: str, open_one: Callable[[str], ImageSet]) -> ImageSet:
    """Return the images of several datasets as one; its labels are those of all, each name once.

    Args:
        name: ``mixed:A+B``.
        open_one: opens one of them.
    """
    parts = [open_one(part) for part in name.removeprefix(MIXED).split("+") if part]
    if len(parts) < 2:
        raise InvalidOptionError(f"'{name}' has one dataset.", hint="Name several, such as mixed:imagenet+imagenet-v2.")
    for field in ("template", "augmix", "shift"):
        if len({getattr(part, field) for part in parts}) > 1:
            raise InvalidOptionError(f"The datasets of '{name}' have another {field}.", hint="Mix others, or set it.")
    classes = tuple(dict.fromkeys(label for part in parts for label in part.classes))
    at = {label: position for position, label in enumerate(classes)}
    items = [
        replace(item, id=f"{part.name}/{item.id}", label=at[part.classes[item.label]])
        for part in parts
        for item in part.items
    ]
    return replace(
        parts[0], name=name, classes=classes, items=tuple(items), reference_accuracy=None, folder="", parents=()
    )


def leave_out(images: ImageSet, share: float) -> ImageSet:
    """Return the images with a share of the classes left out of the labels, chosen by a hash of their names.

    >>> images = ImageSet("x", ("cat", "dog", "cup", "car"), ())
    >>> len(leave_out(images, 0.5).classes)
    2
    """
    if not share:
        return images
    order = sorted(images.classes, key=lambda name: hashlib.blake2b(name.encode(), digest_size=8).digest())
    number = round(share * len(order))
    if not 0 < number < len(order):
        raise InvalidOptionError(
            f"'unknown' is {share:g}, which leaves out {number} of the {len(order)} classes of '{images.name}'.",
            hint="Give a share that leaves out at least one, and not all.",
        )
    left_out = set(order[:number])
    kept = tuple(name for name in images.classes if name not in left_out)
    at = {name: position for position, name in enumerate(kept)}
    items = tuple(replace(item, label=at.get(images.classes[item.label], UNKNOWN)) for item in images.items)
    return replace(images, classes=kept, items=items, reference_accuracy=None, parents=())


def stream(ids: Sequence[str], items: Sequence[int], seed: int, classes: Sequence[int] | None = None) -> list[int]:
    """Return ``items`` in the order in which an online method sees them: sorted by a hash of seed and id.

    The published loaders shuffle by seed as well. With ``classes``, one for each id, the images of a class follow each
    other, and the order of the classes depends on the seed.

    >>> stream(["a", "b", "c", "d"], range(4), 1) != stream(["a", "b", "c", "d"], range(4), 2)
    True
    >>> order = stream(["a", "b", "c", "d"], range(4), 1, [0, 1, 0, 1])
    >>> {order[0], order[1]} in ({0, 2}, {1, 3})
    True
    """

    def mark(text: object) -> bytes:
        return hashlib.blake2b(f"{seed} {text}".encode(), digest_size=8).digest()

    if classes is None:
        return sorted(items, key=lambda item: mark(ids[item]))
    return sorted(items, key=lambda item: (mark(f"class {classes[item]}"), mark(ids[item])))
