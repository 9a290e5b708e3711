"""Small copies of the 15 benchmarks in CoOp's and TPT's layout, with one tiny picture per class and split.

Paths and published names are written down here once more, independently of the catalogue that the tests judge.
"""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import NamedTuple

from PIL import Image

from poise.data.wnids import wordnet_ids

ORIGINAL: dict[str, list[str]] = json.loads((Path(__file__).parent / "original_names.json").read_text(encoding="utf-8"))


@cache
def picture(colour: int = 0, kind: str = "JPEG") -> bytes:
    stream = io.BytesIO()
    Image.new("RGB", (8, 6), (colour % 256, 80, 160)).save(stream, kind)
    return stream.getvalue()


class Tree(NamedTuple):
    coop: str  # image folder
    tpt: str
    split_file: str = ""
    path: Callable[[str, int, str], str] = lambda original, label, part: f"{original}/{part}_0001.jpg"
    name: Callable[[str], str] = lambda original: original  # as it stands in the split file


CALTECH = {"Faces": "face", "Leopards": "leopard", "Motorbikes": "motorbike", "airplanes": "airplane"}
EUROSAT = {
    "AnnualCrop": "Annual Crop Land",
    "HerbaceousVegetation": "Herbaceous Vegetation Land",
    "Highway": "Highway or Road",
    "Industrial": "Industrial Buildings",
    "Pasture": "Pasture Land",
    "PermanentCrop": "Permanent Crop Land",
    "Residential": "Residential Buildings",
    "SeaLake": "Sea or Lake",
}


def camel_words(original: str) -> str:
    return "".join(f"_{letter}" if letter.isupper() else letter for letter in original).lstrip("_")


SPLIT = {
    "caltech101": Tree(
        "caltech-101/101_ObjectCategories",
        "Caltech101",
        "split_zhou_Caltech101.json",
        name=lambda original: CALTECH.get(original, original),
    ),
    "cars": Tree(
        "stanford_cars",
        "StanfordCars",
        "split_zhou_StanfordCars.json",
        path=lambda _, label, part: f"cars_{'test' if part == 'test' else 'train'}/{part}{label:05d}.jpg",
        name=lambda original: f"{original[-4:]} {original[:-5]}",
    ),
    "dtd": Tree("dtd/images", "DTD/images", "split_zhou_DescribableTextures.json"),
    "eurosat": Tree(
        "eurosat/2750", "eurosat", "split_zhou_EuroSAT.json", name=lambda original: EUROSAT.get(original, original)
    ),
    "flowers102": Tree(
        "oxford_flowers/jpg",
        "Flower102/jpg",
        "split_zhou_OxfordFlowers.json",
        path=lambda _, label, part: f"image_{part}{label:05d}.jpg",
    ),
    "food101": Tree("food-101/images", "Food101/images", "split_zhou_Food101.json"),
    "pets": Tree(
        "oxford_pets/images",
        "OxfordPets",
        "split_zhou_OxfordPets.json",
        path=lambda original, label, part: f"{original}_{len(part)}.jpg",
        name=str.lower,
    ),
    "sun397": Tree(
        "sun397/SUN397", "SUN397", "split_zhou_SUN397.json", name=lambda original: " ".join(original.split("/")[:0:-1])
    ),
    "ucf101": Tree(
        "ucf101/UCF-101-midframes",
        "UCF101",
        "split_zhou_UCF101.json",
        path=lambda original, _, part: f"{camel_words(original)}/v_{original}_{part}.jpg",
        name=camel_words,
    ),
}
IMAGENET = {
    "imagenet": Tree("imagenet/images/val", "ImageNet/val"),
    "imagenet-a": Tree("imagenet-adversarial/imagenet-a", "imagenet-a"),
    "imagenet-v2": Tree(
        "imagenetv2/imagenetv2-matched-frequency-format-val", "imagenetv2-matched-frequency-format-val"
    ),
    "imagenet-r": Tree("imagenet-rendition/imagenet-r", "imagenet-r"),
    "imagenet-sketch": Tree("imagenet-sketch/images", "ImageNet-Sketch"),
}
TIMM_LISTS = {"imagenet-a": "imagenet_a", "imagenet-r": "imagenet_r"}
NAMES = ["aircraft", *SPLIT, *IMAGENET]


def write(path: Path, content: bytes | str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content.encode() if isinstance(content, str) else content)


def build(name: str, root: Path, layout: str = "coop", *, pictures: bool = True) -> Path:
    """Write the dataset ``name`` below ``root`` in a layout; the image folder."""
    if name == "aircraft":
        return build_aircraft(root / "fgvc_aircraft")
    if name in IMAGENET:
        return build_imagenet(name, root / getattr(IMAGENET[name], layout))
    return build_split(name, root, layout, pictures=pictures)


def split_entries(name: str) -> dict[str, list[tuple[str, int, str]]]:
    tree = SPLIT[name]
    return {
        part: [(tree.path(old, label, part), label, tree.name(old)) for label, old in enumerate(ORIGINAL[name])]
        for part in ("train", "val", "test")
    }


def build_split(name: str, root: Path, layout: str, *, pictures: bool = True) -> Path:
    tree = SPLIT[name]
    folder = root / getattr(tree, layout)
    entries = split_entries(name)
    for path, label, _ in entries["test"] if pictures else []:
        write(folder / path, picture(label))
    top = root / tree.coop.split("/")[0] if layout == "coop" else root / "data_splits"
    write(top / tree.split_file, json.dumps(entries))
    return folder


def build_aircraft(folder: Path) -> Path:
    variants = ORIGINAL["aircraft"]
    write(folder / "variants.txt", "\n".join(variants) + "\n")
    for place, part in enumerate(("train", "val", "test")):
        numbers = [f"{place}{label:06d}" for label in range(len(variants))]
        write(
            folder / f"images_variant_{part}.txt",
            "".join(f"{number} {variant}\n" for number, variant in zip(numbers, variants, strict=True)),
        )
        for label, number in enumerate(numbers):
            write(folder / "images" / f"{number}.jpg", picture(label))
    return folder


def build_imagenet(name: str, folder: Path) -> Path:
    wnids = wordnet_ids(TIMM_LISTS.get(name, "imagenet"))
    folders = [str(label) for label in range(1000)] if name == "imagenet-v2" else list(wnids)
    for label, inner in enumerate(folders):
        write(folder / inner / f"{wnids[label]}_1.JPEG", picture(label))
    write(folder / "README.txt", "not a class")
    return folder
