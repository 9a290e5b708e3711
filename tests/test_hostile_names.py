"""Names that are not UTF-8, names with markup, and paths that can't be used: each costs at most its own row."""

from __future__ import annotations

import csv
import json
import os
import shutil
import sys
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path

import pytest
from typer.testing import CliRunner

from poise.cli.app import app
from poise.data import open_dataset
from poise.images.find import find_images
from tests.evaluate.attempt import make_images

TINY = ["--model", "tiny", "--views", "2", "--device", "cpu"]
MARKUP = ["=HYPERLINK(1)", "<script>alert(1)<", "[bold]x[", "$\\input{x}$#_&%", "| a | `b` |", "\x1b[31mred", "\u202e"]


def bench(images: Path, out: Path, *more: str):
    command = [
        "bench",
        "run",
        "--dataset",
        f"folder:{images}",
        *TINY,
        "--method",
        "zero-shot,tpt",
        "--seeds",
        "1",
        "--name",
        "run",
        "--out",
        str(out),
        *more,
    ]
    result = CliRunner().invoke(app, command)
    assert result.exit_code == 0, (result.output, result.exception)
    return result


@pytest.mark.skipif(sys.platform != "linux", reason="file names are bytes on Linux")
def test_a_benchmark_keeps_the_rows_of_names_that_are_not_utf8(tmp_path: Path) -> None:
    images = make_images(Path(os.fsdecode(os.fsencode(tmp_path) + b"/im\xfe")), classes=2, each=1)
    shutil.copy(images / "class0" / "0.png", os.fsencode(images / "class0") + b"/\xff.png")
    (images / "class1").rename(os.fsdecode(os.fsencode(images) + b"/\xe9"))
    bench(images, tmp_path / "out", "--data", str(images))
    for name in ("table", "analyse", "resume-info"):
        result = CliRunner().invoke(app, ["bench", name, str(tmp_path / "out")])
        assert result.exit_code == 0, (name, result.exception)
    result = CliRunner().invoke(
        app, ["bench", "export", str(tmp_path / "out"), "--out", str(tmp_path / "ex"), "--names"]
    )
    assert result.exit_code == 0, result.exception
    (file,) = tmp_path.glob("ex/csv/*zero-shot*.csv")
    rows = list(csv.DictReader(file.read_text("utf-8").splitlines()))
    assert sorted(row["true_label"] for row in rows) == ["\\udce9", "class0", "class0"]
    checked = CliRunner().invoke(app, ["data", "check", f"folder:{images}", "--data", str(tmp_path), "--deep"])
    assert checked.exit_code == 0, (checked.output, checked.exception)
    assert bench(images, tmp_path / "out").output.count("0 of 1 chunk new") == 1


@pytest.mark.parametrize("path", ["x" * 300 + ".png", "~nosuchuser/x.png", "a\0b.png"])
def test_a_path_that_cannot_exist_costs_one_row(tmp_path: Path, path: str) -> None:
    images = make_images(tmp_path / "images", classes=1, each=1)
    arguments = ["classify", str(images), path, "--labels", "a,b", "--format", "json", "--method", "zero-shot", *TINY]
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 3, (result.output, result.exception)
    good, bad = json.loads(result.stdout)
    assert good["error"] is None
    assert bad["error"]["code"] == "unreadable_image"


def close(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    """Make a folder one that may not be listed; the rights of files do not stop the user root."""
    scandir, access = os.scandir, os.access

    def closed(path: str = "."):
        if Path(path) == folder:
            raise PermissionError(13, "Permission denied", str(path))
        return scandir(path)

    monkeypatch.setattr(os, "scandir", closed)
    monkeypatch.setattr(os, "access", lambda path, mode: Path(path) != folder and access(path, mode))


def test_a_closed_folder_costs_one_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    images = make_images(tmp_path / "images", classes=2, each=1)
    close(monkeypatch, images / "class1")
    assert find_images([images]) == [images / "class0" / "0.png", images / "class1"]
    arguments = ["classify", str(images), "--labels", "a,b", "--format", "json", "--method", "zero-shot", *TINY]
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 3, (result.output, result.exception)
    assert "may not be listed" in json.loads(result.stdout)[1]["error"]["message"]
    assert [item.id for item in open_dataset(f"folder:{images}").items] == ["class0/0.png", "class1/."]


class Tags(HTMLParser):
    """Collects the tags of a page."""

    def __init__(self) -> None:
        super().__init__()
        self.scripts = 0

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.scripts += tag == "script"
        assert not any(name.startswith("on") for name, _ in attrs)


def _rows(text: str) -> None:
    for row in csv.reader(text.splitlines()):
        assert not any(cell.startswith(("=", "+", "@", "\t", "\r")) for cell in row), row


def _page(text: str) -> None:
    tags = Tags()
    tags.feed(text)
    assert tags.scripts <= 1  # the page's own
    assert "<script>alert" not in text


def _quiet(text: str) -> None:
    assert "\x1b" not in text
    assert "\u202e" not in text


@pytest.fixture(scope="module")
def hostile_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("hostile")
    images = make_images(root / "<script>alert(1)<" / "=1+1", classes=len(MARKUP), each=1)
    for number, name in enumerate(MARKUP):
        (images / f"class{number}").rename(images / name)
    bench(images, root / "out")
    return root / "out"


@pytest.mark.parametrize(
    ("output", "check"), [("csv", _rows), ("html", _page), ("terminal", _quiet), ("md", _quiet), ("latex", _quiet)]
)
def test_markup_in_names_is_text_in_every_format(hostile_run: Path, output: str, check: Callable[[str], None]) -> None:
    for command in (["table"], ["analyse"], ["compare", "--method", "tpt", "--against", "zero-shot"]):
        name, *more = command
        result = CliRunner().invoke(app, ["bench", name, str(hostile_run), "--format", output, *more])
        assert result.exit_code == 0, (result.output, result.exception)
        check(result.stdout)


def test_markup_in_class_names_is_text_in_exports_and_on_the_page(hostile_run: Path, tmp_path: Path) -> None:
    result = CliRunner().invoke(app, ["bench", "export", str(hostile_run), "--out", str(tmp_path), "--names"])
    assert result.exit_code == 0, result.exception
    for file in tmp_path.glob("csv/*.csv"):
        _rows(file.read_text("utf-8"))
    result = CliRunner().invoke(app, ["bench", "page", str(hostile_run), "--out", str(tmp_path / "page.html")])
    assert result.exit_code == 0, result.exception
    _page((tmp_path / "page.html").read_text("utf-8"))
