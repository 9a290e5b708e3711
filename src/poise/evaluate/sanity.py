"""Checks whether an accuracy is so low that labels may be in the wrong order, which nothing else would reveal."""

from __future__ import annotations

from poise.data.items import ImageSet
from poise.errors import InvalidOptionError
from poise.metrics.shares import wilson_interval
from poise.text import counted

LEVEL = 0.99  # of the interval of the accuracy
MIN_IMAGES = 50  # with fewer images there is no warning
SHARE = 0.25  # of the published accuracy; wrong label orders gave at most a ninth of it


def plausibility(image_set: ImageSet, accuracy: float, n: int) -> str | None:
    """Return a warning if the zero-shot ``accuracy`` (a fraction) on ``n`` images suggests a wrong label order."""
    if not 0 <= accuracy <= 1 or n < 1:
        raise InvalidOptionError(
            f"accuracy={accuracy} on n={n} images was given.", hint="Give a fraction in [0, 1] and n of at least 1."
        )
    if n < MIN_IMAGES or len(image_set.classes) < 2:
        return None
    low, high = wilson_interval(accuracy, n, LEVEL)
    chance = 1 / len(image_set.classes)
    published = image_set.reference_accuracy
    start = f"{image_set.name}: zero-shot accuracy is {accuracy:.1%} on {counted(n, 'image')}, "
    if low <= chance:
        return (
            f"{start}no better than chance ({chance:.2%} for {len(image_set.classes)} classes). Check that labels and "
            f"class names are in the same order (poise data check), and that the model's weights were loaded."
        )
    if published is not None and high < SHARE * published:
        return (
            f"{start}far below the {published:.1%} published for CLIP ViT-B/16. Either the model is much weaker, or "
            f"labels and class names are not in the same order (poise data check)."
        )
    return None
