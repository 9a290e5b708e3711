"""Token statistics of a source dataset under MaPLe's prompts: what PromptAlign's term pulls the views to."""

from __future__ import annotations

from collections.abc import Iterable

from torch import Tensor

from poise.encoding.coupled import Coupled
from poise.encoding.prompted_views import PromptedViews
from poise.errors import InvalidOptionError
from poise.types import DualEncoder

LAYERS = 2  # as published: layers 0 and 1


def token_statistics(
    encoder: DualEncoder, coupled: Coupled, pictures: Iterable[Tensor], *, layers: int = LAYERS
) -> dict[str, Tensor]:
    """Mean and variance [layers, T, W] of every token over plain views, which come in batches [n, 3, S, S].

    The states are those of `PromptedViews`: what a layer's block reads, with that layer's prompts in place.
    """
    views, prompts = PromptedViews(encoder, tokens_of=layers), coupled.image_layers()
    total = square = shift = None
    count = 0
    for batch in pictures:
        states = views.features(batch[None], prompts)[1].double()  # [n, layers, T, W]
        # Sums around the first picture: of large means and small variances, plain sums of squares keep too little.
        shift = states[0] if shift is None else shift
        centred = states - shift
        total = centred.sum(0) if total is None else total + centred.sum(0)
        square = centred.square().sum(0) if square is None else square + centred.square().sum(0)
        count += len(states)
    if shift is None or total is None or square is None:
        raise InvalidOptionError("There are no pictures to take statistics of.", hint="Give at least one.")
    mean = total / count
    variance = square / count - mean.square()
    return {"mean": (mean + shift).float().cpu(), "variance": variance.clamp(min=0).float().cpu()}
