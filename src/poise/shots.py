"""A dataset's pictures for fitting: labelled features of several crops, computed once and kept, or crops themselves."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from poise.data import ImageSet, Item
from poise.images import read_image
from poise.types import DualEncoder
from poise.views import ViewPlan, make_views, plan_views

_TOGETHER = 8  # pictures whose views are encoded together


@dataclass(frozen=True)
class Shots:
    """Unit features [N, V, D] of all views, view 0 the plain one, and the pictures' classes [N]."""

    features: Tensor
    labels: Tensor

    def crops(self) -> Tensor:
        """[N, K, D]: the augmented views; the plain one where there are no others."""
        return self.features[:, 1:] if self.features.shape[1] > 1 else self.features


def encode(
    images: ImageSet,
    encoder: DualEncoder,
    *,
    views: int = 1,
    seed: int = 1,
    augmix: bool = False,
    cache: str | Path | None = None,
    report: Callable[[int], None] = lambda images: None,
) -> Shots:
    """The features of ``views`` views of each picture; with ``cache``, kept in that folder and read from there."""
    path = None if cache is None else Path(cache) / f"{_key(images, encoder, views, seed, augmix)}.safetensors"
    labels = torch.tensor([item.label for item in images.items])
    if path is not None and path.is_file():
        return Shots(load_file(path)["features"], labels)
    done = []
    for at in range(0, len(images.items), _TOGETHER):
        pictures = torch.stack(
            [_views(item, encoder, views, seed, augmix) for item in images.items[at : at + _TOGETHER]]
        )
        with torch.no_grad():
            done.append(encoder.encode_images(pictures).cpu())
        report(len(pictures))
    features = torch.cat(done)
    if path is not None:
        path.parent.mkdir(parents=True, exist_ok=True)
        partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
        save_file({"features": features.contiguous()}, partial)
        os.replace(partial, path)
    return Shots(features, labels)


def crops_of(images: ImageSet, encoder: DualEncoder, *, seed: int = 1) -> Callable[[int, Tensor], Tensor]:
    """``pictures(epoch, rows)`` makes the crops [n, 3, S, S] that belong to an epoch."""

    def pictures(epoch: int, rows: Tensor) -> Tensor:
        return torch.stack([_crop(images.items[int(row)], encoder, epoch, seed) for row in rows])

    return pictures


def plain_batches(images: ImageSet, encoder: DualEncoder) -> Iterator[Tensor]:
    """The plain views of all pictures, [n, 3, S, S] at a time."""
    for at in range(0, len(images.items), _TOGETHER):
        yield torch.cat([_views(item, encoder, 1, 0, False) for item in images.items[at : at + _TOGETHER]])


def _views(item: Item, encoder: DualEncoder, views: int, seed: int, augmix: bool) -> Tensor:
    picture = read_image(item.source())
    plan = plan_views(picture.image.size, views=views, seed=seed, key=picture.key, augmix=augmix)
    return make_views(picture.image, encoder.image, plan)


def _crop(item: Item, encoder: DualEncoder, epoch: int, seed: int) -> Tensor:
    picture = read_image(item.source())
    plan = plan_views(picture.image.size, views=epoch + 2, seed=seed, key=picture.key)
    only = ViewPlan(plan.size, plan.boxes[epoch:], plan.flips[epoch:])  # a view's numbers don't depend on the others
    return make_views(picture.image, encoder.image, only)[1]


def _key(images: ImageSet, encoder: DualEncoder, views: int, seed: int, augmix: bool) -> str:
    ids = hashlib.blake2b("\n".join(item.id for item in images.items).encode(), digest_size=8).hexdigest()
    whole = f"{images.name}|{images.split}|{ids}|{encoder.name}|{encoder.dtype}|{views}|{seed}|{augmix}"
    return hashlib.blake2b(whole.encode(), digest_size=12).hexdigest()
