"""Token statistics of a source dataset under MaPLe's prompts, for PromptAlign's term."""

from __future__ import annotations

from collections.abc import Iterable

from torch import Tensor

from poise.encoding.coupled import Coupled
from poise.encoding.prompted_views import PromptedViews
from poise.errors import InvalidOptionError
from poise.types import DualEncoder

LAYERS = 2  # as published: layers 0 and 1


def token_statistics(
    encoder: DualEncoder, coupled: Coupled, batches: Iterable[Tensor], *, layers: int = LAYERS
) -> dict[str, Tensor]:
    """Return the mean and variance [layers, T, W] of each token at the input of the first blocks, over plain views."""
    views, prompts = PromptedViews(encoder, tokens_of=layers), coupled.image_layers()
    total = square = shift = None
    count = 0
    for batch in batches:
        states = views.features(batch[None], prompts)[1].double()  # [n, layers, T, W]
        # Sums around the first image: with large means and small variances, plain sums of squares lose precision.
        shift = states[0] if shift is None else shift
        centred = states - shift
        total = centred.sum(0) if total is None else total + centred.sum(0)
        square = centred.square().sum(0) if square is None else square + centred.square().sum(0)
        count += len(states)
    if shift is None or total is None or square is None:
        raise InvalidOptionError("There are no images to take statistics of.", hint="Give at least one.")
    mean = total / count
    variance = square / count - mean.square()
    return {"mean": (mean + shift).float().cpu(), "variance": variance.clamp(min=0).float().cpu()}
