"""How a look moves an image in the joint space: mean shift of unlabelled images' features, one vector per look."""

from __future__ import annotations

import argparse
import io
import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import space as spaces
import torch
from convert import load_trunk
from PIL import Image, ImageEnhance, ImageFilter
from safetensors.torch import save_file
from torch import Tensor
from torchvision.transforms import v2 as transforms

SIZE = 260


def cropped(image: Image.Image, share: float, right: bool) -> Image.Image:
    w, h = image.size
    left = int((1 - share) * w) if right else 0
    return image.crop((left, 0, left + int(share * w), int(share * h)))


def centre(image: Image.Image, share: float) -> Image.Image:
    w, h = image.size
    x, y = (1 - share) * w / 2, (1 - share) * h / 2
    return image.crop((int(x), int(y), int(w - x), int(h - y)))


def far(image: Image.Image) -> Image.Image:
    w, h = image.size
    field = Image.new("RGB", (2 * w, 2 * h), tuple(int(v) for v in np.asarray(image).mean((0, 1))))
    field.paste(image, (w // 2, h // 2))
    return field


def noisy(image: Image.Image) -> Image.Image:
    noise = np.random.default_rng(0).normal(0, 35, (image.height, image.width, 3))
    return Image.fromarray((np.asarray(image) + noise).clip(0, 255).astype(np.uint8))


def jpeg(image: Image.Image) -> Image.Image:
    held = io.BytesIO()
    image.save(held, "JPEG", quality=6)
    return Image.open(held).convert("RGB")


def small(image: Image.Image) -> Image.Image:
    return image.resize((48, 48), Image.Resampling.BILINEAR).resize(image.size, Image.Resampling.NEAREST)


LOOKS: dict[str, Callable[[Image.Image], Image.Image]] = {
    "cropped": lambda i: cropped(i, 0.55, True),
    "close": lambda i: centre(i, 0.45),
    "blurry": lambda i: i.filter(ImageFilter.GaussianBlur(min(i.size) / 80)),
    "dark": lambda i: ImageEnhance.Brightness(i).enhance(0.3),
    "bright": lambda i: ImageEnhance.Brightness(i).enhance(1.9),
    "grey": lambda i: i.convert("L").convert("RGB"),
    "small": small,
    "noisy": noisy,
    "jpeg": jpeg,
    "turned": lambda i: i.transpose(Image.Transpose.ROTATE_90),
    "far": far,
}


def preprocess(size: int = SIZE) -> transforms.Compose:
    """What open_clip does before this model: bicubic resize of the shorter side, central square, mean and std 0.5."""
    return transforms.Compose(
        [
            transforms.Resize(size, transforms.InterpolationMode.BICUBIC),
            transforms.CenterCrop(size),
            transforms.ToImage(),
            transforms.ToDtype(torch.float32, scale=True),
            transforms.Normalize([0.5] * 3, [0.5] * 3),
        ]
    )


def training_images(data: Path, step: int) -> list[Path]:
    """Every `step`-th image of Caltech101's train split; labels aren't read, test images never opened."""
    split = json.loads((data / "caltech-101" / "split_zhou_Caltech101.json").read_text())
    return [data / "caltech-101" / "101_ObjectCategories" / name for name, _, _ in split["train"][::step]]


@torch.inference_mode()
def shifts(files: list[Path]) -> dict[str, Tensor]:
    trunk = load_trunk("lite2")
    space = spaces.build(trunk.classifier.weight.detach(), trunk.classifier.bias.detach())
    trunk.reset_classifier(0)
    prepare, total = preprocess(), {look: torch.zeros(space.rows.shape[1]) for look in LOOKS}
    for count, file in enumerate(files):
        image = Image.open(file).convert("RGB")
        views = torch.stack([prepare(image), *(prepare(make(image)) for make in LOOKS.values())])
        found = space.images(trunk(views))
        for look, vector in zip(LOOKS, found[1:] - found[0], strict=True):
            total[look] += vector / len(files)
        if count % 20 == 0:
            print(f"images {count}/{len(files)}", flush=True)
    return total


if __name__ == "__main__":
    repository = Path(__file__).resolve().parents[2]
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, default=repository.parent / "shared" / "data")
    parser.add_argument("--cache", type=Path, default=repository / "scratch" / "pocket")
    parser.add_argument("--step", type=int, default=10)
    args = parser.parse_args()
    found = shifts(training_images(args.data, args.step))
    save_file(found, args.cache / "looks.safetensors")
    for look, vector in found.items():
        print(f"{look:8s} {vector.norm():.3f}")
