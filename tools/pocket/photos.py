"""What the frozen image tower sees in photos without labels: features in the joint space, and its own answers.

Every photo is seen whole (view 0), in random crops, in every fourth view under one of the looks of `looks.py`, and in
every fifth as a thumbnail, whose answer is that of the whole photo. Features are kept in half precision, answers as
the leading classes, so that training needs no vision package.
"""

from __future__ import annotations

import random
from pathlib import Path

import space as spaces
import torch
from convert import load_trunk
from looks import LOOKS, preprocess, training_images
from PIL import Image, ImageOps
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

VIEWS = {"unlabelled": 12, "caltech-train": 4}
THUMBNAIL, LOOK = 5, 4  # every so many-th view is one
SIDES = (28, 72)  # shorter side of thumbnails, in pixels
LEADING = 32  # classes whose probability is kept; the rest is shared among them


def files_of(data: Path) -> dict[str, list[Path]]:
    """The photos: `folders/unlabelled`, and Caltech101's train split, whose labels aren't read."""
    return {
        "unlabelled": sorted((data / "folders" / "unlabelled").iterdir()),
        "caltech-train": training_images(data, 1),
    }


def view_of(image: Image.Image, photo: int, view: int) -> Image.Image:
    """A crop or a look of a photo, the same for the same numbers."""
    if view == 0:
        return image
    draw = random.Random(photo * 1000 + view)
    if view % THUMBNAIL == 0:
        side = draw.uniform(*SIDES) / min(image.size)
        image = image.resize([max(1, round(side * length)) for length in image.size], Image.Resampling.LANCZOS)
    elif view % LOOK == 0:
        image = LOOKS[draw.choice(list(LOOKS))](image)
    else:
        width, height = image.size
        area, ratio = draw.uniform(0.3, 1.0) * width * height, draw.uniform(0.75, 1.33)
        w, h = min(width, int((area * ratio) ** 0.5)), min(height, int((area / ratio) ** 0.5))
        x, y = draw.randint(0, width - w), draw.randint(0, height - h)
        image = image.crop((x, y, x + w, y + h))
    return ImageOps.mirror(image) if draw.random() < 0.5 else image


class Photos(Dataset[Tensor]):
    """The views of a set of photos, photo by photo within each view."""

    def __init__(self, files: list[Path], views: int) -> None:
        self.files, self.views, self.prepare = files, views, preprocess()

    def __len__(self) -> int:
        return len(self.files) * self.views

    def __getitem__(self, index: int) -> Tensor:
        view, photo = divmod(index, len(self.files))
        return self.prepare(view_of(Image.open(self.files[photo]).convert("RGB"), photo, view))


@torch.inference_mode()
def compute(data: Path, device: str, workers: int) -> dict[str, Tensor]:
    """Features, leading classes, photo and view of all views of all photos."""
    trunk = load_trunk("lite2")
    head = trunk.classifier
    space = spaces.build(head.weight.detach(), head.bias.detach())
    trunk.reset_classifier(0)
    trunk.to(device)
    parts = []
    for number, (name, files) in enumerate(files_of(data).items()):
        loader = DataLoader(Photos(files, VIEWS[name]), batch_size=128, num_workers=workers)
        pooled = torch.cat([trunk(batch.to(device)).cpu() for batch in loader])
        parts.append(packed(pooled, head, space, len(files), 10_000 * number))
    return {key: torch.cat([part[key] for part in parts]) for key in parts[0]}


def packed(pooled: Tensor, head: torch.nn.Linear, space: spaces.Space, photos: int, first: int) -> dict[str, Tensor]:
    """What training needs of pooled features [views * photos, 1280]."""
    index = torch.arange(len(pooled))
    view = index // photos
    answered = torch.where(view % THUMBNAIL == 0, index % photos, index)
    values, classes = head(pooled.float()[answered]).softmax(-1).topk(LEADING)
    return {
        "features": space.images(pooled.float()).half(),
        "classes": classes.short(),
        "values": (values / values.sum(-1, keepdim=True)).half(),
        "image": first + index % photos,
        "view": view,
    }
