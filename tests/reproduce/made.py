"""A made table: a small random model in open_clip's format, a dataset in CoOp's layout, and its "published" numbers."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import open_clip
import torch
from PIL import Image
from safetensors.torch import save_file

import poise
from poise.data import DatasetRow, Location
from poise.files import hash_names
from poise.report.published.paper import PublishedRow, TableLayout
from poise.reproduce.causes import CLIP_IMAGES

CLASSES = ("cat", "lamp", "plane", "tree")
WRONG = {"cat": "tree", "lamp": "cat", "plane": "lamp", "tree": "plane"}  # an order that is not the published one
IMAGES = 40
NAME = "made"
VISION = {"image_size": 224, "layers": 6, "width": 32, "head_width": 16, "patch_size": 56}
TEXT = {"context_length": 77, "vocab_size": 49408, "width": 32, "heads": 2, "layers": 2}
_SCALES = {"mlp.c_fc.weight": 2, "mlp.c_proj.weight": 30, "visual.conv1": 5, "visual.class_embedding": 0.1}
_SCALES |= {"visual.positional": 0.1, "token_embedding": 10, "positional_embedding": 10, "in_proj_weight": 6}
CONFIG = """
name = "made"
title = "A made table"
model = "tiny"
datasets = ["made"]
methods = ["zero-shot", "kld+cats"]
seeds = [1, 2]
views = 2
augmix = "off"
batch_size = 4
"""


def save_model(folder: Path, *, quick_gelu: bool = True) -> Path:
    """Random weights whose answers depend on the image, the template and the activation."""
    folder.mkdir(parents=True)
    config = {"embed_dim": 16, "quick_gelu": quick_gelu, "vision_cfg": VISION, "text_cfg": TEXT}
    images = {"mean": CLIP_IMAGES.mean, "std": CLIP_IMAGES.std, "interpolation": "bicubic", "resize_mode": "shortest"}
    (folder / "open_clip_config.json").write_text(json.dumps({"model_cfg": config, "preprocess_cfg": images}))
    torch.manual_seed(3)
    model = open_clip.CLIP(**json.loads(json.dumps(config)))
    with torch.no_grad():
        for name, weight in model.named_parameters():
            weight.mul_(next((scale for part, scale in _SCALES.items() if part in name), 1))
        model.logit_scale.fill_(math.log(30))
    tensors = {name: tensor.contiguous() for name, tensor in model.state_dict().items()}
    save_file(tensors, folder / "open_clip_model.safetensors")
    return folder


def row(*, class_hash: str = hash_names(CLASSES)) -> DatasetRow:
    return DatasetRow(
        name=NAME,
        title="Made",
        heading="Made",
        classes=len(CLASSES),
        images=IMAGES,
        class_hash=class_hash,
        split_file="split_made.json",
        places=(Location("coop", "made/images"),),
        licence="none",
        get="nowhere",
    )


def save_images(root: Path, model: Path) -> list[str]:
    """Images of four squares that the model is least sure of; four of five have the label that it gives them."""
    folder = root / NAME / "images"
    folder.mkdir(parents=True)
    numbers = np.random.default_rng(0)
    squares = [Image.fromarray(numbers.integers(0, 256, (2, 2, 3), dtype=np.uint8)) for _ in range(3 * IMAGES)]
    pictures = [square.resize((224, 224), Image.Resampling.NEAREST) for square in squares]
    answer = poise.Classifier(list(CLASSES), model=f"local-dir:{model}", method="zero-shot", views=1, device="cpu")
    results = answer(pictures)
    unsure = sorted(range(len(results)), key=lambda at: results[at].confidence)
    labels = []
    for at, position in enumerate(unsure[: IMAGES + 15]):
        said = results[position].label
        labels.append(CLASSES[(CLASSES.index(said) + 1) % len(CLASSES)] if at % 5 == 4 else said)
        pictures[position].save(folder / f"{at:03d}.png")
    return labels


def save_split(root: Path, labels: list[str], *, order: dict[str, str] | None = None, first: int = 0) -> None:
    """CoOp's file; ``order`` gives images the label of another class, and ``first`` takes other images."""
    entries = []
    for at, label in enumerate(labels):
        name = (order or {}).get(label, label)
        entries.append([f"{at:03d}.png", CLASSES.index(name), name])
    test = entries[first : first + IMAGES]
    content = {"train": [], "val": [], "test": test}
    (root / NAME / "split_made.json").write_text(json.dumps(content))


def published(accuracy: float, ece: float) -> tuple[PublishedRow, ...]:
    numbers = {"accuracy": accuracy, "ece": ece}
    methods = ("zero-shot", "kld+cats")
    return tuple(
        PublishedRow(NAME, method, method, metric, {NAME: value}, value)
        for method in methods
        for metric, value in numbers.items()
    )


LAYOUT = TableLayout(NAME, "A made table", (NAME,), (NAME,), "Avg.", ("zero-shot", "kld+cats"))
