from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from poise import data
from poise.data.items import Item, draw_shots
from poise.data.splits import class_names
from poise.errors import InvalidDatasetError, InvalidOptionError
from tests.data import trees

SPLIT = trees.SPLIT["eurosat"].split_file


def rewrite(root: Path, content: Any) -> None:
    trees.write(root / "eurosat" / SPLIT, content if isinstance(content, str) else json.dumps(content))


def entries() -> dict[str, list[list[Any]]]:
    return {part: [list(entry) for entry in rows] for part, rows in trees.split_entries("eurosat").items()}


def test_a_damaged_split_file_is_named(tmp_path: Path) -> None:
    trees.build("eurosat", tmp_path)
    for content, message in [
        ("{", "can't be read"),
        ([], "no lists"),
        ({"train": [], "val": []}, "no lists"),
        ({"train": [], "val": [], "test": [["a.jpg", 0]]}, r"not \[path, label, class name\]"),
        ({"train": [], "val": [], "test": [["a.jpg", "0", "Forest"]]}, "labels are integers"),
        ({"train": [], "val": [], "test": [["../../secret.jpg", 0, "Forest"]]}, "leads out of"),
        ({"train": [], "val": [], "test": [["a.jpg", 1, "Forest"]]}, "has 1 class, but no image of class 0"),
        ({"train": [["b.jpg", 0, "River"]], "val": [], "test": [["a.jpg", 0, "Forest"]]}, "both 'River' and 'Forest'"),
        ({"train": entries()["train"], "val": [], "test": []}, "lists no 'test' images"),
    ]:
        rewrite(tmp_path, content)
        with pytest.raises(InvalidDatasetError, match=message):
            data.open_dataset("eurosat", tmp_path)


@pytest.mark.parametrize("label", [2, 10**12, -1])
def test_a_label_beyond_the_classes_is_named_without_listing_all_before_it(label: int, tmp_path: Path) -> None:
    splits = {"train": [("a.jpg", 0, "cat")], "val": [], "test": [("b.jpg", label, "dog")]}
    with pytest.raises(InvalidDatasetError, match=r"has 2 classes, but no image of class 1. Labels are whole numbers"):
        class_names(tmp_path / "split.json", splits)


def test_absolute_paths_stay_below_the_image_folder(tmp_path: Path) -> None:
    folder = trees.build("eurosat", tmp_path)
    content = entries()
    for entry in content["test"]:
        entry[0] = "/" + entry[0]
    rewrite(tmp_path, content)
    assert all(Path(str(item.read)).is_relative_to(folder) for item in data.open_dataset("eurosat", tmp_path).items)


def test_a_changed_class_order_is_caught(tmp_path: Path) -> None:
    trees.build("eurosat", tmp_path)
    content = entries()
    swap = {0: 1, 1: 0}
    for rows in content.values():
        for entry in rows:
            entry[1] = swap.get(entry[1], entry[1])
    rewrite(tmp_path, content)
    with pytest.raises(InvalidDatasetError, match="order, are not the published ones"):
        data.open_dataset("eurosat", tmp_path)
    assert data.open_dataset("eurosat", tmp_path, strict=False).classes[:2] == ("Forest", "Annual Crop Land")


def test_a_wrong_number_of_classes_is_caught(tmp_path: Path) -> None:
    trees.build("eurosat", tmp_path)
    rewrite(tmp_path, {part: rows[:-1] for part, rows in entries().items()})
    with pytest.raises(InvalidDatasetError, match="has 9 classes; published results have 10"):
        data.open_dataset("eurosat", tmp_path)


def test_images_without_split_file_and_the_reverse(tmp_path: Path) -> None:
    trees.build("eurosat", tmp_path / "a")
    (tmp_path / "a/eurosat" / SPLIT).unlink()
    with pytest.raises(InvalidDatasetError, match=f"{SPLIT} is not") as caught:
        data.open_dataset("eurosat", tmp_path / "a")
    assert "drive.google.com" in caught.value.hint
    trees.build("eurosat", tmp_path / "b", pictures=False)
    with pytest.raises(InvalidDatasetError, match="None of the images"):
        data.open_dataset("eurosat", tmp_path / "b")


def test_aircraft_with_a_damaged_list(tmp_path: Path) -> None:
    folder = trees.build("aircraft", tmp_path)
    trees.write(folder / "images_variant_test.txt", "0034309 747-9000\n")
    with pytest.raises(InvalidDatasetError, match="not 'image variant'"):
        data.open_dataset("aircraft", tmp_path)
    (folder / "variants.txt").unlink()
    with pytest.raises(InvalidDatasetError, match=r"no variants\.txt"):
        data.open_dataset("aircraft", tmp_path)


def test_train_split_and_shots(tmp_path: Path) -> None:
    trees.build("aircraft", tmp_path)
    assert [item.id[7] for item in data.open_dataset("aircraft", tmp_path, split="train").items] == ["0"] * 100
    few = data.open_dataset("aircraft", tmp_path, split="train", shots=16, seed=1)
    assert len(few) == 100  # one image per class is all there is
    assert few.split == "train"


def test_imagenet_train_images(tmp_path: Path) -> None:
    from poise.data.wnids import wordnet_ids

    for number in range(5):
        trees.write(tmp_path / f"imagenet/images/train/{wordnet_ids()[3]}/{number}.JPEG", trees.picture())
    few = data.open_dataset("imagenet", tmp_path, split="train", shots=2)
    assert [item.label for item in few.items] == [3, 3]


def make_items(labels: list[int]) -> list[Item]:
    return [Item(id=str(place), label=label, read="x") for place, label in enumerate(labels)]


def test_shots_are_the_draw_of_one_seeded_generator() -> None:
    items = make_items([1, 0] * 20)
    generator = random.Random(7)
    expected = generator.sample(items[0::2], 4) + generator.sample(items[1::2], 4)  # class 1 comes first in the list
    assert draw_shots(items, 4, seed=7) == expected
    with pytest.raises(InvalidOptionError, match="shots=0"):
        draw_shots(items, 0)


@given(labels=st.lists(st.integers(0, 5), min_size=1, max_size=60), shots=st.integers(1, 8), seed=st.integers(0, 9))
def test_shots_are_distinct_and_as_many_as_there_are(labels: list[int], shots: int, seed: int) -> None:
    drawn = draw_shots(make_items(labels), shots, seed)
    assert len(set(drawn)) == len(drawn)
    for label in set(labels):
        assert sum(item.label == label for item in drawn) == min(shots, labels.count(label))
