"""Packs images as small JPEG files into two files for `float8_answers.py`, to be carried to another machine.

The training images are one row of bytes without labels; the test images are a webdataset shard.
"""

from __future__ import annotations

import hashlib
import io
import tarfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import torch
from PIL import Image

from poise.data import ImageSet, Item, open_dataset
from poise.errors import InvalidOptionError
from poise.files import read_tensors, save_tensors
from poise.images import read_image

TRAIN, TEST, CLASSES, TEXTS = "train.safetensors", "test.tar", "classnames.txt", "texts.txt"
QUALITIES = (90, 80, 70, 60, 50)  # of JPEG; the first with which the file is small enough


@dataclass(frozen=True)
class Size:
    """The largest shorter side of an image in pixels, and the largest file of images in MiB."""

    side: int
    mib: float


def prepare(
    out: Path, test: str, train: Sequence[str], data: Path | None, count: int, most: int, sizes: tuple[Size, Size]
) -> dict[str, int]:
    """Write ``count`` labelled test images, and at most ``most`` others of each training set without their labels.

    Args:
        out: Folder for the files of images, the test labels and the names of all classes.
        test: Name of the data set whose images are tested.
        train: Names of data sets; ``NAME@SPLIT`` is another split than "test".
        data: Root folder of the data sets.
        count: Number of test images.
        most: Largest number of images of each training set.
        sizes: Sizes of the training and of the test images.
    """
    out.mkdir(parents=True, exist_ok=True)
    tested = open_dataset(test, data).subset(count)
    sets = [_open(name, data) for name in train]
    hidden = {_hash(item) for item in tested.items}
    others = [item for images in sets for item in _unseen(images, hidden, most)]
    names = list(dict.fromkeys(name for images in (tested, *sets) for name in images.classes))
    (out / CLASSES).write_text("\n".join(tested.classes) + "\n", encoding="utf-8")
    (out / TEXTS).write_text("\n".join(names) + "\n", encoding="utf-8")
    qualities = [_write(out / TRAIN, others, sizes[0]), _write(out / TEST, tested.items, sizes[1])]
    return {
        "train_images": len(others),
        "train_bytes": (out / TRAIN).stat().st_size,
        "train_quality": qualities[0],
        "test_images": len(tested),
        "test_bytes": (out / TEST).stat().st_size,
        "test_quality": qualities[1],
        "texts": len(names),
    }


def _open(name: str, data: Path | None) -> ImageSet:
    name, _, split = name.partition("@")
    return open_dataset(name, data, split=split or "test")


def _unseen(images: ImageSet, hidden: set[bytes], most: int) -> Iterator[Item]:
    """Yield at most ``most`` images whose files are none of the tested ones, nor of one that came before."""
    left = most
    for item in images.subset(len(images)).items:
        if left and (key := _hash(item)) not in hidden:
            hidden.add(key)
            left -= 1
            yield item


def _hash(item: Item) -> bytes:
    source = item.source()
    return hashlib.sha256(source if isinstance(source, bytes) else source.read_bytes()).digest()


def train_images(folder: Path) -> list[bytes]:
    """Return the JPEG files of the training images."""
    tensors, _ = read_tensors(folder / TRAIN)
    content, ends = tensors["bytes"].numpy().tobytes(), tensors["ends"].tolist()
    return [content[begin:end] for begin, end in pairwise([0, *ends])]


def held_out_images(folder: Path) -> ImageSet:
    """Return the labelled test images, in random order."""
    return open_dataset(f"wds:{folder / TEST}")


def _write(path: Path, items: Sequence[Item], size: Size) -> int:
    """Write images, and return the quality of their JPEG files."""
    for quality in QUALITIES:
        files = [_jpeg(item, size.side, quality) for item in items]
        if path.name == TRAIN:
            content = torch.frombuffer(bytearray(b"".join(files)), dtype=torch.uint8)
            save_tensors(path, {"bytes": content, "ends": torch.tensor([len(file) for file in files]).cumsum(0)}, {})
        else:
            with tarfile.open(path, "w", format=tarfile.USTAR_FORMAT) as tar:
                for number, (item, file) in enumerate(zip(items, files, strict=True)):
                    _add(tar, f"{number:05d}.jpg", file)
                    _add(tar, f"{number:05d}.cls", str(item.label).encode())
        if path.stat().st_size <= size.mib * 2**20:
            return quality
    hint = "Give a smaller side or fewer images."
    raise InvalidOptionError(f"{len(items)} images take more than {size.mib} MiB.", hint=hint)


def _add(tar: tarfile.TarFile, name: str, content: bytes) -> None:
    member = tarfile.TarInfo(name)  # without times and owners, so that the same images give the same file
    member.size = len(content)
    tar.addfile(member, io.BytesIO(content))


def _jpeg(item: Item, side: int, quality: int) -> bytes:
    image = read_image(item.source()).image
    factor = side / min(image.size)
    if factor < 1:
        width, height = (max(1, round(factor * length)) for length in image.size)
        image = image.resize((width, height), Image.Resampling.LANCZOS)
    sink = io.BytesIO()
    image.save(sink, "JPEG", quality=quality, optimize=True, progressive=True)
    return sink.getvalue()
