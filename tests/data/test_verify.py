from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from poise import data
from poise.cli.commands.data import app
from poise.data import download
from poise.errors import InvalidDatasetError, InvalidOptionError, UnknownNameError
from poise.evaluate.sanity import plausibility
from tests.data import trees

runner = CliRunner()


@pytest.fixture
def known_counts() -> Iterator[None]:
    """The catalogue with the counts of the small trees: one image per class."""
    rows = [data.row(name) for name in data.names()]

    def register(rows: list[data.DatasetRow]) -> None:
        for row in rows:
            data.datasets.remove(row.name)
            data.register(row)

    register([replace(row, images=row.classes) for row in rows])
    yield
    register(rows)


@pytest.mark.usefixtures("known_counts")
@pytest.mark.parametrize("name", trees.NAMES)
def test_a_complete_set_is_ok(name: str, tmp_path: Path) -> None:
    trees.build(name, tmp_path, "tpt")
    finding = data.check(name, tmp_path)
    assert finding.problems == ()
    assert finding.status == "ok"
    assert finding.class_hash == data.row(name).class_hash


def test_counts_are_compared_with_the_known_ones(tmp_path: Path) -> None:
    trees.build("eurosat", tmp_path)
    finding = data.check("eurosat", tmp_path)
    assert (finding.status, finding.images, finding.expected) == ("partial", 10, 8100)
    assert "published test split has 8100" in finding.problems[0]


def test_missing_and_damaged_images_are_named(tmp_path: Path) -> None:
    folder = trees.build("eurosat", tmp_path)
    (folder / "Forest/test_0001.jpg").unlink()
    trees.write(folder / "River/test_0001.jpg", b"<html>not found</html>")
    finding = data.check("eurosat", tmp_path)
    assert finding.status == "damaged"
    assert "1 image is missing, e.g. 'Forest/test_0001.jpg'" in finding.problems[0]
    assert "1 image is damaged" in finding.problems[1]
    assert "River/test_0001.jpg" in finding.problems[1]
    assert finding.images == 9


def test_only_deep_looks_at_every_image(tmp_path: Path) -> None:
    folder = trees.build("caltech101", tmp_path)
    trees.write(folder / "Leopards/test_0001.jpg", trees.picture()[:100])
    assert data.check("caltech101", tmp_path, sample=4).status == "partial"
    assert "Leopards" in data.check("caltech101", tmp_path, deep=True).problems[0]


def test_labels_that_the_path_contradicts_are_reported(tmp_path: Path) -> None:
    import json

    trees.build("pets", tmp_path)
    entries = trees.split_entries("pets")
    first, second = entries["test"][:2]
    entries["test"][:2] = [(first[0], *second[1:]), (second[0], *first[1:])]
    trees.write(tmp_path / "oxford_pets" / trees.SPLIT["pets"].split_file, json.dumps(entries))
    finding = data.check("pets", tmp_path)
    assert "2 images have a label that its path contradicts" in finding.problems[0]


def test_absent_sets_count_only_when_asked_for(tmp_path: Path, known_counts: None) -> None:
    trees.build("eurosat", tmp_path)
    findings, fine = data.check_all(tmp_path)
    assert fine
    assert {finding.name: finding.status for finding in findings}["dtd"] == "absent"
    assert not data.check_all(tmp_path, ["eurosat", "dtd"])[1]
    assert not data.check_all(tmp_path / "eurosat")[1]  # nothing at all is not fine
    with pytest.raises(UnknownNameError, match="Did you mean 'dtd'"):
        data.check_all(tmp_path, ["dtdd"])


def test_other_sources_can_be_checked(tmp_path: Path) -> None:
    trees.write(tmp_path / "cat/1.jpg", trees.picture())
    assert data.check(f"folder:{tmp_path}").status == "ok"
    trees.write(tmp_path / "cat/2.jpg", b"")
    assert data.check(f"folder:{tmp_path}").status == "damaged"
    with pytest.raises(InvalidDatasetError):
        data.check(f"folder:{tmp_path}/nowhere")


def test_check_command(tmp_path: Path, known_counts: None) -> None:
    trees.build("eurosat", tmp_path)
    good = runner.invoke(app, ["check", "--data", str(tmp_path), "eurosat"])
    assert good.exit_code == 0, good.output
    assert re.search("ok +eurosat +10/10 +10 +7614d0bbeca9328d", good.output)
    bad = runner.invoke(app, ["check", "--data", str(tmp_path), "eurosat", "cars"])
    assert bad.exit_code == 3
    assert "split_zhou_StanfordCars.json" in bad.output
    assert "To get it" in bad.output


def test_list_command() -> None:
    result = runner.invoke(app, ["list"])
    assert result.exit_code == 0
    assert all(name in result.output for name in data.names())


def fake_images(name: str, place: str):
    """What torchvision would leave on disk, from a small tree."""

    def fetch(kind: str, root: Path) -> None:
        assert kind == data.row(name).torchvision
        made = trees.build(name, root / "made")
        (root / place).parent.mkdir(parents=True, exist_ok=True)
        made.rename(root / place)

    return fetch


def fake_split(name: str):
    def fetch(drive: str, folder: Path, file: str) -> None:
        import json

        assert drive == data.row(name).split_drive
        trees.write(folder / file, json.dumps(trees.split_entries(name)))

    return fetch


PLACES = {
    "dtd": "dtd/dtd/images",
    "flowers102": "flowers-102/jpg",
    "food101": "food-101/images",
    "eurosat": "eurosat/2750",
    "pets": "oxford-iiit-pet/images",
    "caltech101": "caltech101/101_ObjectCategories",
    "sun397": "SUN397",
    "aircraft": "fgvc-aircraft-2013b/data",
}


def get(name: str, root: Path, **fetchers: object) -> data.CheckResult:
    """Download with other functions for ``images`` and ``split``."""
    names = {"images": "fetch_with_torchvision", "split": "fetch_split"}
    with pytest.MonkeyPatch.context() as patch:
        for kind, fetch in fetchers.items():
            patch.setattr(download, names[kind], fetch)
        return download.get(name, root)


@pytest.mark.usefixtures("known_counts")
@pytest.mark.parametrize("name", list(PLACES))
def test_what_torchvision_downloads_is_read(name: str, tmp_path: Path) -> None:
    finding = get(name, tmp_path, images=fake_images(name, PLACES[name]), split=fake_split(name))
    assert finding.status == "ok", finding.problems
    assert Path(finding.folder) == tmp_path / PLACES[name]
    again = get(name, tmp_path, images=pytest.fail, split=pytest.fail)  # nothing is fetched twice
    assert again == finding


@pytest.mark.usefixtures("known_counts")
@pytest.mark.parametrize("name", ["eurosat", "caltech101", "sun397"])
def test_a_split_file_alone_does_not_pass_for_the_images(name: str, tmp_path: Path) -> None:
    trees.build(name, tmp_path, pictures=False)
    finding = get(name, tmp_path, images=fake_images(name, PLACES[name]), split=pytest.fail)
    assert finding.status == "ok", finding.problems


def test_a_failed_download_says_what_to_do(tmp_path: Path) -> None:
    def broken(*_: object) -> None:
        raise OSError("network unreachable")

    with pytest.raises(InvalidDatasetError, match="network unreachable") as caught:
        get("dtd", tmp_path, images=broken)
    assert "https://www.robots.ox.ac.uk/~vgg/data/dtd/" in caught.value.hint
    with pytest.raises(
        InvalidDatasetError, match=r"split_zhou_DescribableTextures\.json could not be fetched"
    ) as caught:
        get("dtd", tmp_path, images=fake_images("dtd", PLACES["dtd"]), split=broken)
    assert "drive.google.com" in caught.value.hint
    with pytest.raises(InvalidDatasetError, match="can't be fetched automatically"):
        get("imagenet", tmp_path)
    with pytest.raises(InvalidDatasetError, match="no images after the download"):
        get("food101", tmp_path, images=lambda kind, root: None)


def test_torchvision_has_the_downloaders() -> None:
    import torchvision

    for name in data.names():
        kind = data.row(name).torchvision
        assert not kind or hasattr(torchvision.datasets, kind)


def test_get_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, known_counts: None) -> None:
    import torchvision

    class Downloader:
        def __init__(self, root: str, download: bool) -> None:
            assert download
            fake_images("eurosat", PLACES["eurosat"])("EuroSAT", Path(root))

    monkeypatch.setattr(torchvision.datasets, "EuroSAT", Downloader)
    monkeypatch.setattr(
        "torchvision.datasets.utils.download_file_from_google_drive",
        lambda drive, folder, file: fake_split("eurosat")(drive, Path(folder), file),
    )
    result = runner.invoke(app, ["get", "eurosat", "--data", str(tmp_path)])
    assert result.exit_code == 0, result.output
    assert "ok" in result.output


def test_an_implausible_accuracy_is_called_out() -> None:
    classes = tuple(map(str, range(100)))
    with_reference = data.ImageSet(name="caltech101", classes=classes, items=(), reference_accuracy=0.929)
    without = data.ImageSet(name="folder:x", classes=classes, items=())
    assert "no better than chance" in str(plausibility(without, 0.01, 500))
    assert plausibility(without, 0.05, 500) is None
    assert "published for CLIP ViT-B/16" in str(plausibility(with_reference, 0.05, 500))
    assert plausibility(with_reference, 0.5, 500) is None
    assert plausibility(with_reference, 0.0, 20) is None  # too few to say anything
    # Cases that people lost days over: Pets 9.9 %, Caltech 2.9 %, ImageNet-A 0.5 %.
    for name, accuracy in [("pets", 0.099), ("caltech101", 0.029), ("imagenet-a", 0.005)]:
        row = data.row(name)
        wrong = data.ImageSet(name, tuple(map(str, range(row.classes))), (), reference_accuracy=row.accuracy)
        assert plausibility(wrong, accuracy, 1000) is not None
        assert plausibility(wrong, row.accuracy, 1000) is None
    with pytest.raises(InvalidOptionError, match="fraction"):
        plausibility(without, 92.9, 100)
