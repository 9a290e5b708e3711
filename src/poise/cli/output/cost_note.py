"""What a long job costs on a CPU, said before it begins."""

from __future__ import annotations

from typing import Any

MANY = 20  # images from which the note is worth a line


def cost_note(classifier: Any, images: int) -> str:
    """Return a sentence about methods that compute many views per image on a CPU; "" if there is nothing to say."""
    recipe, device = classifier.recipe, classifier.encoder.device.type
    names = [method.name for method in classifier.methods if method.reads_views]
    if device != "cpu" or images < MANY or not names or recipe.views < MANY:
        return ""
    return (
        f"{', '.join(names)}: {recipe.views} views of each image are computed, where zero-shot computes 1, so that "
        f"{images} images take minutes on a CPU. --views 16 computes a quarter of the views; --method zero-shot is the "
        "quickest, and calibrating it needs a few labelled images (docs/which_method.md compares them)."
    )
