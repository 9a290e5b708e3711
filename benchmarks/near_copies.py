"""How often images look alike (`poise.images.look`): ``python benchmarks/near_copies.py --data DATA``.

DATA holds `folders/unlabelled`, `folders/pets`, `folders/cifar100`, and Caltech101, EuroSAT and ImageNet in CoOp's
layout. Of each, up to 2,500 images are compared with each other, and those that look like an earlier one are counted:
false alarms, unless a dataset has copies. Then 300 images are changed and compared with themselves. The limit was
chosen on `folders/unlabelled`, where any number from 24 to 80 separates copies from others, and lowered from 56 to 40
after a look at Caltech101, which has series of product photos.
"""

from __future__ import annotations

import argparse
import io
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
from PIL import Image

from poise.data import open_dataset
from poise.images import read_image
from poise.images.look import Looks, look_of

MOST, CHANGED = 2500, 300


def smaller(image: Image.Image, times: float) -> Image.Image:
    return image.resize((max(1, round(image.width / times)), max(1, round(image.height / times))))


def encoded(image: Image.Image, quality: int) -> Image.Image:
    stream = io.BytesIO()
    image.save(stream, "JPEG", quality=quality)
    return Image.open(stream).convert("RGB")


def cropped(image: Image.Image, share: float) -> Image.Image:
    width, height = round(share * image.width), round(share * image.height)
    return image.crop((width, height, image.width - width, image.height - height))


CHANGES: dict[str, Callable[[Image.Image], Image.Image]] = {
    "half": lambda image: smaller(image, 2),
    "64 px": lambda image: smaller(image, image.width / 64),
    "JPEG 30": lambda image: encoded(image, 30),
    "half, JPEG 50": lambda image: encoded(smaller(image, 2), 50),
    "brighter": lambda image: image.point([round(255 * (value / 255) ** 0.8) for value in range(256)] * 3),
    "2 % cut off": lambda image: cropped(image, 0.02),
    "5 % cut off": lambda image: cropped(image, 0.05),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    options = parser.parse_args()
    print(f"| images | number | ms of CPU | without contrast | pairs | like an earlier one | {' | '.join(CHANGES)} |")
    print(f"|---|{'--:|' * (5 + len(CHANGES))}")
    for name in ("unlabelled", "pets", "cifar100", "imagenet", "caltech101", "eurosat"):
        images = list(opened(options.data, name))
        begun = time.process_time()
        looks = [look_of(image) for image in images]
        spent = (time.process_time() - begun) / len(images)
        known = Looks(looks)
        alike = sum(known.first_like(look, at) is not None for at, look in enumerate(looks))
        seen = [at for at, look in enumerate(looks) if look]
        some = np.random.default_rng(0).choice(seen, min(CHANGED, len(seen)), replace=False)
        found = [100 * np.mean([is_found(looks[at], change(images[at])) for at in some]) for change in CHANGES.values()]
        pairs = len(seen) * (len(seen) - 1) // 2
        shares = " | ".join(f"{share:.1f}" for share in found)
        flat = len(looks) - len(seen)
        print(f"| {name} | {len(images)} | {1e3 * spent:.2f} | {flat} | {pairs:,} | {alike} | {shares} |", flush=True)


def opened(data: Path, name: str) -> Iterator[Image.Image]:
    """Yield some of a set's images."""
    folder = data / "folders" / name
    if folder.is_dir():
        sources = [str(path) for path in sorted(folder.rglob("*")) if path.is_file()]
    else:
        sources = [item.source() for item in open_dataset(name, data).items]
    for at in sorted(np.random.default_rng(0).permutation(len(sources))[:MOST]):
        yield read_image(sources[at]).image


def is_found(look: str, changed: Image.Image) -> bool:
    return Looks([look]).first_like(look_of(changed)) is not None


if __name__ == "__main__":
    main()
