"""A dataset's pictures for fitting: labelled features of several crops, computed once and kept, or crops themselves."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path

import torch
from safetensors.torch import load_file
from torch import Tensor

from poise.data import ImageSet, Item
from poise.errors import UnreadableImageError
from poise.images import read_image
from poise.loading.overlap import flow
from poise.loading.prepare import ahead, batch_views
from poise.loading.processes import Readers
from poise.loading.reading import Prepared, Reading
from poise.storage import save_tensors
from poise.types import DualEncoder, ImageSpec
from poise.views import ViewPlan, make_views, plan_views

TRAINING_CROPS = "bicubic"  # as CoOp, CoCoOp and MaPLe were trained; views for tuning are bilinear
_TOGETHER = 8  # pictures whose views are encoded together
_VIEWS_TOGETHER = 2048  # on an accelerator: enough to fill it, bounded in memory


@dataclass(frozen=True)
class Shots:
    """Unit features [N, V, D] of all views, view 0 the plain one, and the pictures' classes [N]."""

    features: Tensor
    labels: Tensor

    def crops(self) -> Tensor:
        """[N, K, D]: the augmented views; the plain one where there are no others."""
        return self.features[:, 1:] if self.features.shape[1] > 1 else self.features


@dataclass(frozen=True)
class Cut:
    """How a picture is cut into views."""

    views: int = 1
    seed: int = 1
    augmix: bool = False
    crops: str = "bilinear"  # how crops are resized

    def of(self, encoder: DualEncoder) -> ImageSpec:
        """What the encoder wants, with crops resized this way."""
        return replace(encoder.image, crop_interpolation=self.crops)


def encode(
    images: ImageSet,
    encoder: DualEncoder,
    *,
    views: int = 1,
    seed: int = 1,
    augmix: bool = False,
    crops: str = "bilinear",
    cache: str | Path | None = None,
    report: Callable[[int], None] = lambda images: None,
) -> Shots:
    """The features of ``views`` views of each picture; with ``cache``, kept in that folder and read from there.

    On CUDA pictures are read by processes of their own and cut in batch on the device, elsewhere one by one.
    """
    cut = Cut(views, seed, augmix, crops)
    path = None if cache is None else Path(cache) / f"{_key(images, encoder, cut)}.safetensors"
    labels = torch.tensor([item.label for item in images.items])
    if path is not None and path.is_file():
        return Shots(load_file(path)["features"], labels)
    make = encode_batched if encoder.device.type == "cuda" else _encode_singly
    done = []
    for part in make(images.items, encoder, cut):
        done.append(part)
        report(len(part))
    features = torch.cat(done)
    if path is not None:
        save_tensors(path, {"features": features}, {})
    return Shots(features, labels)


def _encode_singly(items: Sequence[Item], encoder: DualEncoder, cut: Cut) -> Iterator[Tensor]:
    """Features [n, V, D] of a few pictures at a time, views made by Pillow."""
    for at in range(0, len(items), _TOGETHER):
        pictures = torch.stack([_views(item, encoder, cut) for item in items[at : at + _TOGETHER]])
        with torch.no_grad():
            yield encoder.encode_images(pictures).cpu()


def encode_batched(
    items: Sequence[Item], encoder: DualEncoder, cut: Cut, *, processes: int | None = None
) -> Iterator[Tensor]:
    """The same with views made in batch on the encoder's device, while others read ahead.

    Raises:
        UnreadableImageError: A picture can't be read.
    """
    count = processes or max(1, min(8, os.cpu_count() or 2))
    together = max(1, _VIEWS_TOGETHER // cut.views)
    reading, spec = Reading(cut.views, cut.augmix), cut.of(encoder)

    def make(batch: list[Prepared]) -> Tensor:
        return batch_views(batch, spec, encoder.device, encoder.dtype)

    @torch.no_grad()
    def answer(_: list[Prepared], views: Tensor) -> Tensor:
        return encoder.encode_images(views)

    with Readers(count) as readers:
        window = 2 * min(together, 32)  # pictures read ahead
        ready = ahead(lambda item: readers.run(reading, item, cut.seed), items, threads=count, window=window)
        for _, features in flow(_batches(ready, together), encoder.device, make, answer):
            assert features is not None  # a batch is never empty
            yield features.cpu()


def _batches(ready: Iterator[Prepared], together: int) -> Iterator[list[Prepared]]:
    while batch := list(islice(ready, together)):
        for each in batch:
            if each.error is not None:
                raise UnreadableImageError(
                    f"'{each.item.id}': {each.error}", hint="Every picture is needed for fitting."
                )
        yield batch


def crops_of(images: ImageSet, encoder: DualEncoder, *, seed: int = 1) -> Callable[[int, Tensor], Tensor]:
    """``pictures(epoch, rows)`` makes the crops [n, 3, S, S] that belong to an epoch."""

    def pictures(epoch: int, rows: Tensor) -> Tensor:
        return torch.stack([_crop(images.items[int(row)], encoder, epoch, seed) for row in rows])

    return pictures


def plain_batches(images: ImageSet, encoder: DualEncoder) -> Iterator[Tensor]:
    """The plain views of all pictures, [n, 3, S, S] at a time."""
    for at in range(0, len(images.items), _TOGETHER):
        yield torch.cat([_views(item, encoder, Cut()) for item in images.items[at : at + _TOGETHER]])


def _views(item: Item, encoder: DualEncoder, cut: Cut) -> Tensor:
    picture = read_image(item.source())
    plan = plan_views(picture.image.size, views=cut.views, seed=cut.seed, key=picture.key, augmix=cut.augmix)
    return make_views(picture.image, cut.of(encoder), plan)


def _crop(item: Item, encoder: DualEncoder, epoch: int, seed: int) -> Tensor:
    picture = read_image(item.source())
    plan = plan_views(picture.image.size, views=epoch + 2, seed=seed, key=picture.key)
    only = ViewPlan(plan.size, plan.boxes[epoch:], plan.flips[epoch:])  # a view's numbers don't depend on the others
    return make_views(picture.image, Cut(crops=TRAINING_CROPS).of(encoder), only)[1]


def _key(images: ImageSet, encoder: DualEncoder, cut: Cut) -> str:
    ids = hashlib.blake2b("\n".join(item.id for item in images.items).encode(), digest_size=8).hexdigest()
    crops = "" if cut.views == 1 else cut.crops
    whole = f"{images.name}|{images.split}|{ids}|{encoder.name}|{encoder.dtype}|{cut.views}|{cut.seed}"
    return hashlib.blake2b(f"{whole}|{cut.augmix}|{crops}".encode(), digest_size=12).hexdigest()
