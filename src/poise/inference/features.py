"""A dataset's images for fitting: labelled features of their views, computed once and kept, or the views."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors.torch import load_file
from torch import Tensor

from poise.data import ImageSet
from poise.errors import UnreadableImageError
from poise.inference.limits import Limits
from poise.inference.predictor import Predictor, Watch
from poise.loading.sources import Failure
from poise.storage import save_tensors
from poise.types import DualEncoder
from poise.views import ViewRecipe

TRAINING_CROPS = "bicubic"  # as CoOp, CoCoOp and MaPLe were trained; views for tuning are bilinear
_TOGETHER = 8  # plain views that are handed out together


@dataclass(frozen=True)
class LabelledFeatures:
    """Unit features [N, V, D] of all views, view 0 the plain one, and the images' classes [N]."""

    features: Tensor
    labels: Tensor

    def crops(self) -> Tensor:
        """[N, K, D]: the augmented views; the plain one where there are no others."""
        return self.features[:, 1:] if self.features.shape[1] > 1 else self.features


def encode(
    images: ImageSet,
    encoder: DualEncoder,
    recipe: ViewRecipe,
    *,
    cache: str | Path | None = None,
    limits: Limits | None = None,
    report: Callable[[int], None] = lambda images: None,
) -> LabelledFeatures:
    """The features of all views of each image.

    Args:
        images: the dataset.
        encoder: the model.
        recipe: how images are cut into views.
        cache: folder in which features are kept, and looked for first.
        limits: batch size and readers.
        report: told the number of images of each batch that is done.

    Raises:
        UnreadableImageError: An image can't be read.
    """
    path = None if cache is None else Path(cache) / f"{_key(images, encoder, recipe)}.safetensors"
    labels = torch.tensor([item.label for item in images.items])
    if path is not None and path.is_file():
        return LabelledFeatures(load_file(path)["features"], labels)
    predictor = Predictor(encoder, views=recipe, limits=limits)
    features = torch.stack(list(_all_readable(predictor.features(images.items, watch=Watch(progress=report)))))
    if path is not None:
        save_tensors(path, {"features": features}, {})
    return LabelledFeatures(features, labels)


def epoch_crops(images: ImageSet, encoder: DualEncoder, *, seed: int = 1) -> Callable[[int, Tensor], Tensor]:
    """``crops(epoch, rows)`` makes the crops [n, 3, S, S] that belong to an epoch."""
    predictor = Predictor(encoder)

    def crops(epoch: int, rows: Tensor) -> Tensor:
        recipe = ViewRecipe(views=2, seed=seed, crops=TRAINING_CROPS, first=epoch + 1)
        found = predictor.views([images.items[int(row)] for row in rows], views=recipe)
        return torch.stack([views[1] for views in _all_readable(found)])

    return crops


def plain_views(images: ImageSet, encoder: DualEncoder) -> Iterator[Tensor]:
    """The plain views of all images, [n, 3, S, S] at a time."""
    found = _all_readable(Predictor(encoder, views=ViewRecipe(views=1)).views(images.items))
    for first in found:
        rest = [views for _, views in zip(range(_TOGETHER - 1), found, strict=False)]
        yield torch.cat([first, *rest])


def _all_readable(outcomes: Iterable[Tensor | Failure]) -> Iterator[Tensor]:
    for outcome in outcomes:
        if isinstance(outcome, Failure):
            message = f"'{outcome.source}': {outcome.message}"
            raise UnreadableImageError(message, hint="Every image is needed for fitting.", code=outcome.code)
        yield outcome


def _key(images: ImageSet, encoder: DualEncoder, recipe: ViewRecipe) -> str:
    ids = hashlib.blake2b("\n".join(item.id for item in images.items).encode(), digest_size=8).hexdigest()
    crops = "" if recipe.views == 1 else recipe.crops
    whole = f"{images.name}|{images.split}|{ids}|{encoder.name}|{encoder.dtype}|{recipe.views}|{recipe.seed}"
    return hashlib.blake2b(f"{whole}|{recipe.augmix}|{crops}|{recipe.engine}".encode(), digest_size=12).hexdigest()
