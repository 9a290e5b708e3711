"""Folders, shards, Hugging Face tables, and the types they fill."""

from __future__ import annotations

import io
import os
import pickle
import tarfile
from dataclasses import FrozenInstanceError
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from poise import data
from poise.data.file_patterns import expand_braces
from poise.data.items import Slice
from poise.errors import InvalidDatasetError, InvalidOptionError, MissingDependencyError
from poise.images import read_image
from tests.data import trees


def write_tree(root: Path) -> Path:
    for folder in ("big_cat", "dog"):
        for number in (2, 1):
            trees.write(root / folder / f"{number}.png", trees.picture(number, "PNG"))
    trees.write(root / "dog" / "deeper" / "3.JPG", trees.picture(3))
    trees.write(root / "dog" / ".hidden.jpg", b"")
    trees.write(root / "dog" / "notes.txt", b"")
    trees.write(root / ".git" / "x.jpg", trees.picture())
    return root


def test_folder_tree(tmp_path: Path) -> None:
    found = data.open_dataset(f"folder:{write_tree(tmp_path)}")
    assert found.classes == ("big cat", "dog")
    assert [(item.id, item.label) for item in found.items] == [
        ("big_cat/1.png", 0),
        ("big_cat/2.png", 0),
        ("dog/1.png", 1),
        ("dog/2.png", 1),
        ("dog/deeper/3.JPG", 1),
    ]
    assert not found.augmix
    assert read_image(found.items[-1].source()).image.size == (8, 6)


def test_folder_tree_with_a_class_file(tmp_path: Path) -> None:
    trees.write(write_tree(tmp_path) / "classnames.txt", "dog a good dog\nbig_cat lion\nbird robin\n")
    found = data.open_dataset(f"folder:{tmp_path}")
    assert found.classes == ("a good dog", "lion", "robin")
    assert [item.label for item in found.items] == [0, 0, 0, 1, 1]


@pytest.mark.parametrize(
    ("text", "message"), [("dog\n", "no name"), ("dog a dog\n", "has no line for the folder 'big_cat'")]
)
def test_folder_tree_with_a_wrong_class_file(text: str, message: str, tmp_path: Path) -> None:
    trees.write(write_tree(tmp_path) / "classnames.txt", text)
    with pytest.raises(InvalidDatasetError, match=message):
        data.open_dataset(f"folder:{tmp_path}")


def test_folder_of_splits_is_refused(tmp_path: Path) -> None:
    for name in ("train/cat", "Test/cat"):
        trees.write(tmp_path / name / "a.png", trees.picture())
    with pytest.raises(InvalidDatasetError, match=r"are splits, not classes: Test, train.*folder:.*Test"):
        data.open_dataset(f"folder:{tmp_path}")


def test_a_folder_one_level_too_high_is_refused(tmp_path: Path) -> None:
    write_tree(tmp_path / "own" / "pets")
    with pytest.raises(
        InvalidDatasetError, match=r"would be 'pets', which contains 2 folders.*Did you mean folder:.*pets"
    ):
        data.open_dataset(f"folder:{tmp_path / 'own'}")
    trees.write(tmp_path / "own" / "pets" / "1.png", trees.picture())  # a class with images and folders of images
    assert data.open_dataset(f"folder:{tmp_path / 'own'}").classes == ("pets",)


def test_folder_refusals(tmp_path: Path) -> None:
    with pytest.raises(InvalidDatasetError, match="does not exist"):
        data.open_dataset(f"folder:{tmp_path}/nowhere")
    (tmp_path / "empty").mkdir()
    with pytest.raises(InvalidDatasetError, match="No images"):
        data.open_dataset(f"folder:{tmp_path}")
    with pytest.raises(InvalidOptionError, match="has no split"):
        data.open_dataset(f"folder:{tmp_path}", split="train")


def write_shard(path: Path, members: dict[str, bytes]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w") as tar:
        for name, content in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))


def sample(key: str, label: int) -> dict[str, bytes]:
    return {f"{key}.jpg": trees.picture(label), f"{key}.cls": str(label).encode(), f"{key}.json": b"{}"}


def test_shards_by_braces(tmp_path: Path) -> None:
    write_shard(tmp_path / "000.tar", sample("a", 0) | sample("b/c.d", 1))
    write_shard(tmp_path / "001.tar", sample("a", 1))
    trees.write(tmp_path / "classnames.txt", "cat\ndog\n")
    found = data.open_dataset(f"wds:{tmp_path}/{{000..001}}.tar")
    assert found.classes == ("cat", "dog")
    assert [(item.id, item.label) for item in found.items] == [("000/a", 0), ("000/b/c.d", 1), ("001/a", 1)]
    for item in found.items:
        assert pickle.loads(pickle.dumps(item)).source() == trees.picture(item.label)
    assert data.open_dataset(f"wds:{tmp_path}/*.tar").items == found.items
    assert data.open_dataset(f"wds:{tmp_path}").items == found.items


def test_shards_in_clip_benchmarks_layout(tmp_path: Path) -> None:
    for number in range(11):
        write_shard(tmp_path / f"test/{number}.tar", sample(f"s{number}", number % 2))
    trees.write(tmp_path / "test/nshards.txt", "11")
    trees.write(tmp_path / "classnames.txt", "cat\ndog\n")
    assert [item.id for item in data.open_dataset(f"wds:{tmp_path}").items] == [f"{n}/s{n}" for n in range(11)]
    (tmp_path / "test/7.tar").unlink()
    with pytest.raises(InvalidDatasetError, match="1 of 11 shards are missing"):
        data.open_dataset(f"wds:{tmp_path}")


def test_shards_never_touch_the_disk(tmp_path: Path) -> None:
    write_shard(tmp_path / "in/0.tar", sample("../../outside", 0) | sample("/absolute", 0))
    with tarfile.open(tmp_path / "in/0.tar", "a") as tar:
        link = tarfile.TarInfo("link.jpg")
        link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
        tar.addfile(link)
    trees.write(tmp_path / "in/classnames.txt", "cat\n")
    before = sorted(tmp_path.rglob("*"))
    found = data.open_dataset(f"wds:{tmp_path}/in/0.tar")
    assert [item.source() for item in found.items] == [trees.picture(0)] * 2  # the link is no picture
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize(
    ("members", "message"),
    [
        ({"a.jpg": b"x"}, "without a label"),
        ({"a.cls": b"0"}, "without an image"),
        ({"a.jpg": b"x", "a.cls": b"zero"}, "is not a label"),
        ({"a.jpg": b"x", "a.cls": b"5"}, "has label 5"),
        ({}, "no sample"),
    ],
)
def test_shard_refusals(members: dict[str, bytes], message: str, tmp_path: Path) -> None:
    write_shard(tmp_path / "0.tar", members)
    trees.write(tmp_path / "classnames.txt", "cat\ndog\n")
    with pytest.raises(InvalidDatasetError, match=message):
        data.open_dataset(f"wds:{tmp_path}/0.tar")


def test_shards_that_are_no_tar_or_have_no_names(tmp_path: Path) -> None:
    trees.write(tmp_path / "0.tar", b"not a tar at all")
    with pytest.raises(InvalidDatasetError, match=r"no classnames\.txt"):
        data.open_dataset(f"wds:{tmp_path}/0.tar")
    trees.write(tmp_path / "classnames.txt", "cat\n")
    with pytest.raises(InvalidDatasetError, match="can't be read"):
        data.open_dataset(f"wds:{tmp_path}/0.tar")
    with pytest.raises(InvalidDatasetError, match="there are none"):
        data.open_dataset(f"wds:{tmp_path}/*.zip")
    with pytest.raises(InvalidDatasetError, match="empty or too long"):
        data.open_dataset(f"wds:{tmp_path}/{{3..1}}.tar")


def test_a_shard_cut_off_later_is_noticed(tmp_path: Path) -> None:
    write_shard(tmp_path / "0.tar", sample("a", 0))
    trees.write(tmp_path / "classnames.txt", "cat\n")
    item = data.open_dataset(f"wds:{tmp_path}/0.tar").items[0]
    os.truncate(tmp_path / "0.tar", 600)
    with pytest.raises(InvalidDatasetError, match="ends after"):
        item.source()


@given(first=st.integers(0, 50), count=st.integers(1, 20), width=st.integers(1, 6))
def test_braces_expand_to_padded_numbers(first: int, count: int, width: int) -> None:
    names = expand_braces(f"a{{{first:0{width}d}..{first + count - 1}}}b{{x,y}}")
    assert names == [f"a{n:0{max(width, len(str(first)))}d}b{c}" for n in range(first, first + count) for c in "xy"]


@pytest.fixture
def table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    datasets = pytest.importorskip("datasets")
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    datasets.disable_progress_bars()
    rows = {"image": [{"bytes": trees.picture(n), "path": None} for n in range(4)], "label": [0, 1, 1, 0]}
    features = datasets.Features(image=datasets.Image(), label=datasets.ClassLabel(names=["big_cat", "dog"]))
    datasets.Dataset.from_dict(rows, features=features).save_to_disk(tmp_path / "saved")
    datasets.DatasetDict(validation=datasets.Dataset.from_dict(rows, features=features)).save_to_disk(tmp_path / "dict")
    return tmp_path


def test_hugging_face_table(table: Path) -> None:
    found = data.open_dataset(f"hf:{table}/saved")
    assert found.classes == ("big cat", "dog")
    assert [item.label for item in found.items] == [0, 1, 1, 0]
    assert [pickle.loads(pickle.dumps(item)).source() for item in found.items] == [trees.picture(n) for n in range(4)]
    assert data.open_dataset(f"hf:{table}/dict:validation").split == "validation"
    with pytest.raises(InvalidDatasetError, match="can't be opened"):
        data.open_dataset(f"hf:{table}/dict:test")


def test_hugging_face_image_folder(table: Path) -> None:
    for name in ("cat", "dog"):
        trees.write(table / f"photos/test/{name}/1.jpg", trees.picture(9))
    found = data.open_dataset(f"hf:{table}/photos:test")
    assert found.classes == ("cat", "dog")
    assert read_image(found.items[0].source()).image.size == (8, 6)


def test_hugging_face_refusals(table: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import datasets

    datasets.Dataset.from_dict({"label": [1]}).save_to_disk(table / "plain")
    with pytest.raises(InvalidDatasetError, match="0 columns of type Image"):
        data.open_dataset(f"hf:{table}/plain")
    features = datasets.Features(image=datasets.Image(), label=datasets.ClassLabel(names=["cat"]))
    rows = {"image": [{"bytes": trees.picture(), "path": None}], "label": [-1]}
    datasets.Dataset.from_dict(rows, features=features).save_to_disk(table / "unlabelled")
    with pytest.raises(InvalidDatasetError, match=r"Row 0 .* has no label"):
        data.open_dataset(f"hf:{table}/unlabelled")
    monkeypatch.setitem(__import__("sys").modules, "datasets", None)
    with pytest.raises(MissingDependencyError, match="extra 'data'"):
        data.open_dataset(f"hf:{table}/another")


def test_items_are_frozen_and_a_subset_is_stable() -> None:
    items = tuple(data.Item(id=f"{n}.jpg", label=n % 3, read=f"/x/{n}.jpg") for n in range(300))
    whole = data.ImageSet(name="x", classes=("a", "b", "c"), items=items)
    assert items[0].source() == Path("/x/0.jpg")
    with pytest.raises(FrozenInstanceError):
        items[0].label = 2  # type: ignore[misc]
    assert whole.subset(50).items == whole.subset(100).items[:50]
    assert whole.subset(50).items != whole.subset(50, seed=1).items
    assert set(whole.subset(10_000).items) == set(items)
    assert {item.label for item in whole.subset(20).items} == {0, 1, 2}
    with pytest.raises(InvalidOptionError, match="subset of 0"):
        whole.subset(0)
    assert len(pickle.dumps(items)) < 300 * 60


def test_a_slice_reads_exactly_its_bytes(tmp_path: Path) -> None:
    trees.write(tmp_path / "f", b"0123456789")
    assert Slice(str(tmp_path / "f"), 3, 4).load() == b"3456"
