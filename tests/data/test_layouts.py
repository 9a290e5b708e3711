from __future__ import annotations

import pickle
from pathlib import Path

import pytest

from poise import data
from poise.data.wnids import imagenet_names, wordnet_ids
from poise.errors import InvalidDatasetError, InvalidOptionError, UnknownNameError
from poise.files import hash_names
from poise.images import read_image
from tests.data import trees


@pytest.mark.parametrize("layout", ["coop", "tpt"])
@pytest.mark.parametrize("name", trees.NAMES)
def test_opens_in_both_layouts(name: str, layout: str, tmp_path: Path) -> None:
    folder = trees.build(name, tmp_path, layout)
    row = data.row(name)
    found = data.open_dataset(name, tmp_path)

    assert Path(found.folder) == folder
    assert len(found.classes) == row.classes
    assert found.class_hash == row.class_hash
    assert [item.label for item in found.items] == list(range(row.classes))
    assert len({item.id for item in found.items}) == row.classes
    assert (found.template, found.augmix, found.shift) == ("a photo of a {}.", row.augmix, row.shift)
    assert found.reference_accuracy == row.accuracy
    last = found.items[-1]
    assert read_image(last.source()).image.size == (8, 6)
    assert pickle.loads(pickle.dumps(last)) == last
    if name in trees.ORIGINAL:
        assert published_name(name, trees.ORIGINAL[name][7]) == found.classes[7]


def published_name(name: str, original: str) -> str:
    tree = trees.SPLIT.get(name)
    return (tree.name(original) if tree else original).replace("_", " ")


def test_the_catalogue_has_the_15_sets_with_both_protocols() -> None:
    assert sorted(data.names()) == sorted(trees.NAMES)
    rows = {name: data.row(name) for name in data.names()}
    fine_grained = {name for name, row in rows.items() if row.augmix}
    assert fine_grained == set(trees.ORIGINAL)
    assert {name for name, row in rows.items() if row.augmix_under("c-tpt")} == set(rows) - {"imagenet"}
    assert {name for name, row in rows.items() if row.shift} == set(rows) - set(trees.ORIGINAL) - {"imagenet"}
    counts = dict(
        aircraft=3333,
        caltech101=2465,
        cars=8041,
        dtd=1692,
        eurosat=8100,
        flowers102=2463,
        food101=30300,
        pets=3669,
        sun397=19850,
        ucf101=3783,
        imagenet=50000,
    )
    assert counts.items() <= {name: row.images for name, row in rows.items()}.items()
    assert [rows[name].heading for name in trees.ORIGINAL] == [
        "Air",
        "Calt",
        "Car",
        "DTD",
        "SAT",
        "FLW",
        "Food",
        "Pets",
        "SUN",
        "UCF",
    ]


@pytest.mark.parametrize("name", list(trees.ORIGINAL))
def test_edits_turn_original_names_into_the_published_ones(name: str) -> None:
    row = data.row(name)
    originals = trees.ORIGINAL[name]
    if row.class_encoded_in:  # elsewhere nothing on disk but the split file tells the class
        assert hash_names(map(row.edit, originals)) == row.class_hash
    assert hash_names(published_name(name, original) for original in originals) == row.class_hash


def test_published_names_to_the_letter(tmp_path: Path) -> None:
    classes = {}
    for name in ("caltech101", "cars", "sun397", "ucf101", "pets", "eurosat"):
        trees.build(name, tmp_path)
        classes[name] = data.open_dataset(name, tmp_path).classes
    assert classes["caltech101"][:5] == ("face", "leopard", "motorbike", "accordion", "airplane")
    assert classes["cars"][0] == "2000 AM General Hummer SUV"
    assert classes["sun397"][-3] == "indoor wrestling ring"
    assert classes["ucf101"][0] == "Apply Eye Makeup"
    assert classes["pets"][-1] == "yorkshire terrier"
    assert classes["eurosat"][-1] == "Sea or Lake"


@pytest.mark.parametrize("name", ["imagenet-a", "imagenet-r"])
def test_subsets_of_imagenet_are_in_wordnet_order(name: str, tmp_path: Path) -> None:
    trees.build(name, tmp_path, "tpt")
    found = data.open_dataset(name, tmp_path)
    full = dict(zip(wordnet_ids(), imagenet_names(), strict=True))
    wnids = [item.id.split("/")[0] for item in found.items]
    assert wnids == sorted(wnids)
    assert len(wnids) == 200
    assert [full[wnid] for wnid in wnids] == list(found.classes)
    first = {"imagenet-a": "stingray", "imagenet-r": "goldfish"}
    assert found.classes[0] == first[name]


def test_imagenet_v2_folders_keep_their_number_as_label(tmp_path: Path) -> None:
    trees.build("imagenet-v2", tmp_path, "tpt")
    found = data.open_dataset("imagenet-v2", tmp_path)
    by_folder = {item.id.split("/")[0]: item.label for item in found.items}
    assert by_folder["10"] == 10
    assert by_folder["2"] == 2  # the 112th folder when names are sorted as strings
    assert all(Path(item.id).name.startswith(wordnet_ids()[item.label]) for item in found.items)


def test_a_missing_class_folder_shifts_no_label(tmp_path: Path) -> None:
    folder = trees.build("imagenet-a", tmp_path, "tpt")
    gone = folder / wordnet_ids("imagenet_a")[0]
    next(gone.iterdir()).unlink()
    gone.rmdir()
    found = data.open_dataset("imagenet-a", tmp_path)
    assert len(found.classes) == 200
    assert [item.label for item in found.items] == list(range(1, 200))


def test_a_foreign_imagenet_folder_is_refused(tmp_path: Path) -> None:
    trees.build("imagenet-a", tmp_path, "tpt")
    (tmp_path / "imagenet-a").rename(tmp_path / "imagenet-r")
    with pytest.raises(InvalidDatasetError, match="not in ImageNet-R"):
        data.open_dataset("imagenet-r", tmp_path)


def test_unsorted_imagenet_images_are_refused(tmp_path: Path) -> None:
    trees.write(tmp_path / "ImageNet/val/ILSVRC2012_val_00000001.JPEG", trees.picture())
    with pytest.raises(InvalidDatasetError, match="one folder per class"):
        data.open_dataset("imagenet", tmp_path)


def test_folder_names_may_differ_in_case_and_dashes(tmp_path: Path) -> None:
    trees.build("caltech101", tmp_path, "coop")
    (tmp_path / "caltech-101").rename(tmp_path / "Caltech_101")
    assert len(data.open_dataset("caltech101", tmp_path)) == 100


def test_both_layouts_of_one_name_are_told_apart_by_the_images(tmp_path: Path) -> None:
    # TPT keeps EuroSAT's classes directly in "eurosat", CoOp in "eurosat/2750": an empty 2750 must not win.
    folder = trees.build("eurosat", tmp_path, "tpt")
    (tmp_path / "eurosat" / "2750").mkdir()
    assert Path(data.open_dataset("eurosat", tmp_path).folder) == folder


@pytest.mark.parametrize("folder", ["dtd/dtd/images", "DTD/images"])
def test_torchvisions_place_is_read_too(folder: str, tmp_path: Path) -> None:
    trees.build("dtd", tmp_path / "made", "coop")
    (tmp_path / folder).parent.mkdir(parents=True)
    (tmp_path / "made/dtd/images").rename(tmp_path / folder)
    split = trees.SPLIT["dtd"].split_file
    (tmp_path / "made/dtd" / split).rename(tmp_path / split)
    assert len(data.open_dataset("dtd", tmp_path)) == 47


def test_protocol_and_options(tmp_path: Path) -> None:
    trees.build("imagenet-a", tmp_path, "tpt")
    assert not data.open_dataset("imagenet-a", tmp_path).augmix
    assert data.open_dataset("imagenet-a", tmp_path, protocol="c-tpt").augmix
    with pytest.raises(InvalidOptionError, match="protocol 'o-tpt'"):
        data.open_dataset("imagenet-a", tmp_path, protocol="o-tpt")  # type: ignore[arg-type]
    with pytest.raises(InvalidOptionError, match="split 'dev'"):
        data.open_dataset("imagenet-a", tmp_path, split="dev")
    with pytest.raises(InvalidDatasetError, match="no 'train' split"):
        data.open_dataset("imagenet-a", tmp_path, split="train")
    with pytest.raises(UnknownNameError, match="Did you mean 'imagenet-a'"):
        data.open_dataset("imagenet-aa", tmp_path)
    with pytest.raises(InvalidDatasetError, match="does not exist"):
        data.open_dataset("imagenet-a", tmp_path / "nowhere")
    with pytest.raises(InvalidDatasetError, match="No data folder"):
        data.open_dataset("imagenet-a")


@pytest.mark.parametrize("name", trees.NAMES)
def test_nothing_there_says_what_was_looked_for_and_how_to_get_it(name: str, tmp_path: Path) -> None:
    with pytest.raises(InvalidDatasetError) as caught:
        data.open_dataset(name, tmp_path)
    assert caught.value.code == "dataset_absent"
    assert data.row(name).places[0].folder.split("/")[0] in caught.value.message
    assert "To get it" in caught.value.hint
