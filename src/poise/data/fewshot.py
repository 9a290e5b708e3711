"""Few-shot training samples, drawn as CoOp's code draws them."""

from __future__ import annotations

import random
from collections.abc import Sequence

from poise.data.items import Item
from poise.errors import InvalidOptionError


def draw_shots(items: Sequence[Item], shots: int, seed: int = 1) -> list[Item]:
    """``shots`` items of each class, or all where a class has fewer.

    One generator, seeded once, serves the classes in the order of their first item: with the list of CoOp's split file
    this is the draw of CoOp's code for the same seed.
    """
    if shots < 1:
        raise InvalidOptionError(f"shots={shots} was asked for.", hint="Ask for at least 1 image per class.")
    by_class: dict[int, list[Item]] = {}
    for item in items:
        by_class.setdefault(item.label, []).append(item)
    generator = random.Random(seed)
    drawn: list[Item] = []
    for members in by_class.values():
        drawn += generator.sample(members, shots) if len(members) >= shots else members
    return drawn
