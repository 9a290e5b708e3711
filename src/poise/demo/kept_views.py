"""What a method tuned on: the views that it kept, each one's vote, and the probabilities before, after and aimed at."""

from __future__ import annotations

import base64
import io
from collections.abc import Mapping, Sequence

import torch
from scipy.special import softmax

from poise import methods
from poise.demo.bars import TOP
from poise.demo.markup import rendered
from poise.errors import PoiseError
from poise.inference.predictor import Predictor
from poise.results import Details, Failure, Result
from poise.types import DualEncoder
from poise.views import ViewRecipe
from poise.views.pixels import pixels_of, to_image

SIDE = 112  # pixels of a thumbnail
Thumbnails = Mapping[int, str]  # view -> data URI
_MARKS = {"before": "before", "aim": "p_aug", "after": "after"}


def thumbnails(image: bytes, recipe: ViewRecipe, encoder: DualEncoder, chosen: Sequence[int]) -> Thumbnails:
    """Return some views of an image as small images.

    The recipe draws the same crops here as for the answer, because they depend on the seed and the pixels only.
    """
    (views,) = Predictor(encoder, views=recipe, processes=False).views([image])
    if isinstance(views, Failure):
        raise PoiseError(views.message, code=views.code)
    return {at: _data_uri(pixels_of(views[at].cpu(), encoder.image)) for at in dict.fromkeys(chosen)}


def views_block(result: Result, shown: Thumbnails, *, labels: str = "") -> str:
    """Return the block of one method that reads views: thumbnails, and the movement of the probabilities.

    Args:
        result: the method's answer.
        shown: the views as images.
        labels: which group of labels it is about; "" if there is one.
    """
    details, method = result.details, methods.get(result.method)
    assert details is not None, "the views are part of the details"
    return rendered(
        "views.html",
        method=method,
        labels=labels,
        details=details,
        shown=shown,
        side=SIDE,
        chooses=method.tunes or "target" in method.shared_with_rule(),
        marks=_MARKS,
        movement=_movement(details),
        calibrated=result.raw_confidence is not None,
    )


def _movement(details: Details) -> dict[str, tuple[float, float, float]]:
    """Return p before, p_aug and p after, in the order of `_MARKS`, of the most probable labels."""
    before, aim = details.init_probabilities, details.target_probabilities
    after = dict(zip(details.logits, softmax(list(details.logits.values())).tolist(), strict=True))
    best = sorted(after, key=lambda label: -after[label])[:TOP]
    return {label: (before[label], aim[label], after[label]) for label in best}


def _data_uri(pixels: torch.Tensor) -> str:
    buffer = io.BytesIO()
    to_image(pixels).resize((2 * SIDE, 2 * SIDE)).save(buffer, "WEBP", quality=80)
    return f"data:image/webp;base64,{base64.b64encode(buffer.getvalue()).decode()}"
