"""The real Caltech101, EuroSAT and ImageNet images, where they are on disk."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from poise import data
from poise.images import read_image

pytestmark = pytest.mark.data


@pytest.mark.parametrize(("name", "count", "classes"), [("caltech101", 2465, 100), ("eurosat", 8100, 10)])
def test_fine_grained_sets(name: str, count: int, classes: int, data_root: Path) -> None:
    found = data.open_dataset(name, data_root)
    assert (len(found), len(found.classes)) == (count, classes)
    assert found.augmix
    assert set(Counter(item.label for item in found.items)) == set(range(classes))
    for item in found.subset(20).items:
        # The folder that an image lies in tells its class once more.
        assert data.row(name).edit(item.id.split("/")[0]) == found.classes[item.label]
        assert min(read_image(item.source()).image.size) > 0
    assert data.check(name, data_root).status == "ok"


def test_names_and_order(data_root: Path) -> None:
    caltech = data.open_dataset("caltech101", data_root).classes
    assert caltech[:5] == ("face", "leopard", "motorbike", "accordion", "airplane")
    assert caltech[18] == "car side"
    assert caltech[-1] == "yin yang"
    assert data.open_dataset("eurosat", data_root).classes == (
        "Annual Crop Land",
        "Forest",
        "Herbaceous Vegetation Land",
        "Highway or Road",
        "Industrial Buildings",
        "Pasture Land",
        "Permanent Crop Land",
        "Residential Buildings",
        "River",
        "Sea or Lake",
    )


def test_imagenet(data_root: Path) -> None:
    found = data.open_dataset("imagenet", data_root)
    assert len(found) == 1000
    assert [item.label for item in found.items] == list(range(1000))
    lines = (data_root / "imagenet/classnames.txt").read_text(encoding="utf-8").splitlines()
    assert [line.split(" ", 1)[0] for line in lines] == [item.id.split("/")[0] for item in found.items]
    assert [line.split(" ", 1)[1] for line in lines] == list(found.classes)
    assert not found.augmix


def test_few_shot_draw(data_root: Path) -> None:
    few = data.open_dataset("caltech101", data_root, split="train", shots=4, seed=1)
    assert Counter(item.label for item in few.items) == dict.fromkeys(range(100), 4)
    assert few.items == data.open_dataset("caltech101", data_root, split="train", shots=4, seed=1).items
    assert few.items != data.open_dataset("caltech101", data_root, split="train", shots=4, seed=2).items
