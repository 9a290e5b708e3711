"""What a long job costs on a CPU, said before it begins."""

from __future__ import annotations

from typing import Any

MANY = 20  # images from which the note is worth a line
# Processor time per image of `pocket` with 37 labels, in seconds: measured with 8 to 64 views, see docs/speed.md.
ZERO_SHOT, TUNING, VIEW = 0.04, 0.06, 0.03


def cost_note(classifier: Any, images: int) -> str:
    """Return a sentence about methods that compute many views per image on a CPU; "" if there is nothing to say."""
    recipe, device = classifier.recipe, classifier.encoder.device.type
    names = [method.name for method in classifier.methods if method.reads_views]
    if device != "cpu" or images < MANY or not names:
        return ""
    seconds = TUNING + VIEW * recipe.views
    return (
        f"{', '.join(names)} computes {recipe.views} views of each image, about {seconds:.1f} s on a CPU core with the "
        f"model 'pocket'; zero-shot computes 1, about {ZERO_SHOT} s (--method zero-shot; docs/which_method.md compares "
        "them)."
    )
