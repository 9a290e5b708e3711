"""Images of a dataset for fitting: labelled features, which can be cached, or views."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import torch
from safetensors.torch import load_file
from torch import Tensor

from poise.data import ImageSet
from poise.errors import UnreadableImageError
from poise.files import save_tensors
from poise.inference.predictor import Predictor
from poise.results import Failure
from poise.types import DualEncoder, fingerprint_of
from poise.views import ViewRecipe

TRAINING_CROPS = "bicubic"  # as in CoOp, CoCoOp and MaPLe; views for tuning are bilinear
_BATCH = 8  # plain views per batch


@dataclass(frozen=True)
class LabelledFeatures:
    """Unit features [N, V, D] of N images, view 0 the plain one, and their classes [N]."""

    features: Tensor
    labels: Tensor

    def crops(self) -> Tensor:
        """Return the features [N, K, D] of the augmented views, or of the plain view if there are no others."""
        return self.features[:, 1:] if self.features.shape[1] > 1 else self.features


def encode(
    images: ImageSet, encoder: DualEncoder, recipe: ViewRecipe, *, cache: str | Path | None = None
) -> LabelledFeatures:
    """Return the features of all views of each image.

    Args:
        images: the dataset.
        encoder: the model.
        recipe: how images are cut into views.
        cache: folder from which the features are loaded, or to which they are saved.

    Raises:
        UnreadableImageError: An image can't be read.
    """
    path = None if cache is None else Path(cache) / f"{_key(images, encoder, recipe)}.safetensors"
    labels = torch.tensor([item.label for item in images.items])
    if path is not None and path.is_file():
        return LabelledFeatures(load_file(path)["features"], labels)
    features = torch.stack(list(_all_readable(Predictor(encoder, views=recipe).features(images.items))))
    if path is not None:
        save_tensors(path, {"features": features}, {})
    return LabelledFeatures(features, labels)


def epoch_crops(images: ImageSet, encoder: DualEncoder, *, seed: int = 1) -> Callable[[int, Tensor], Tensor]:
    """Return a function ``crops(epoch, rows)`` that cuts one crop [n, 3, S, S] per image for an epoch."""
    predictor = Predictor(encoder)

    def crops(epoch: int, rows: Tensor) -> Tensor:
        recipe = ViewRecipe(views=2, seed=seed, crops=TRAINING_CROPS, first=epoch + 1)
        views = predictor.views([images.items[int(row)] for row in rows], views=recipe)
        return torch.stack([image_views[1] for image_views in _all_readable(views)])

    return crops


def plain_views(images: ImageSet, encoder: DualEncoder) -> Iterator[Tensor]:
    """Yield the plain views [n, 3, S, S] of all images in batches."""
    views = _all_readable(Predictor(encoder, views=ViewRecipe(views=1)).views(images.items))
    while batch := list(islice(views, _BATCH)):
        yield torch.cat(batch)


def _all_readable(outcomes: Iterable[Tensor | Failure]) -> Iterator[Tensor]:
    for outcome in outcomes:
        if isinstance(outcome, Failure):
            message = f"'{outcome.source}': {outcome.message}"
            raise UnreadableImageError(message, hint="Every image is needed for fitting.", code=outcome.code)
        yield outcome


def _key(images: ImageSet, encoder: DualEncoder, recipe: ViewRecipe) -> str:
    ids = hashlib.blake2b("\n".join(item.id for item in images.items).encode(), digest_size=8).hexdigest()
    crops = "" if recipe.views == 1 else recipe.crops
    model = f"{encoder.name}|{fingerprint_of(encoder)}|{encoder.dtype}"  # other weights may have the same name
    whole = f"{images.name}|{images.split}|{ids}|{model}|{recipe.views}|{recipe.seed}"
    return hashlib.blake2b(f"{whole}|{recipe.augmix}|{crops}|{recipe.engine}".encode(), digest_size=12).hexdigest()
