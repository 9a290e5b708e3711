"""No file is read whole without a limit: a device that never ends, or a huge file, is one clear error."""

from __future__ import annotations

import ast
import io
import resource
import tarfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import poise
from poise import calibration, data
from poise.cli.commands.serve import read_token
from poise.cli.input.labelled_images import read_labelled
from poise.cli.input.number_files import read_table, read_truth
from poise.cli.output.sink import finished
from poise.data.file_patterns import MAX_FILES, expand_braces
from poise.data.folder import read_class_file
from poise.data.shards import find_shards, open_shards, read_samples
from poise.data.splits import read_split_file
from poise.data.text_files import read_lines
from poise.errors import InvalidDatasetError, PoiseError
from poise.evaluate.config import read
from poise.evaluate.storage.checks import read_header
from poise.evaluate.storage.ledger import Ledger
from poise.evaluate.storage.parts import read_parts
from poise.evaluate.storage.run_folder import RunFolder
from poise.images import read_image
from poise.inits import convert
from poise.prompts import files
from poise.prompts.labels import read_labels

SOURCE = Path(poise.__file__).parent
# Files of the installed packages, of the operating system, or of a size that is checked before.
OWN = {
    "cores.py": "the kernel's own files",
    "backbones/loaders/pocket.py": "part of the package",
    "backbones/loaders/onnx_file.py": "regular files up to a size",
    "backbones/loaders/checkpoint.py": "regular files up to a size",
    "report/page/build.py": "part of the package",
    "data/wnids.py": "part of timm",
    "demo/answering.py": "uploads, which the server has limited",
    "demo/example_rows.py": "part of the package",
    "demo/layout.py": "part of the package",
    "serve/http/api_page.py": "part of the package",
    "serve/http/bodies.py": "bodies, which the server has limited",
    "client/http_client.py": "the caller's own image",
}


def _whole(call: ast.AST) -> bool:
    """Whether a call reads a whole file."""
    if not (isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute)):
        return False
    unlimited = call.func.attr == "read" and not call.args and not call.keywords
    json_load = call.func.attr == "load" and isinstance(call.func.value, ast.Name) and call.func.value.id == "json"
    return call.func.attr in ("read_text", "read_bytes") or unlimited or json_load


def test_files_are_read_whole_in_these_modules_only() -> None:
    found = {
        path.relative_to(SOURCE).as_posix()
        for path in SOURCE.rglob("*.py")
        if any(map(_whole, ast.walk(ast.parse(path.read_text("utf-8")))))
    }
    assert found <= OWN.keys(), f"use poise.files.read_bounded in {sorted(found - OWN.keys())}"


def _linked(name: str) -> Callable[[Path], Path]:
    """Return a function that puts an endless file at this place of a folder, and the folder."""

    def link(path: Path) -> Path:
        (path.parent / name).parent.mkdir(parents=True, exist_ok=True)
        (path.parent / name).symlink_to(path)
        return path.parent

    return link


ENDLESS: dict[str, Callable[[Path], object]] = {
    "labels": read_labels,
    "image": read_image,
    "labelled images": read_labelled,
    "numbers": lambda path: read_table(_linked("p.npy")(path) / "p.npy", "x"),
    "correct labels": lambda path: read_truth(_linked("y.csv")(path) / "y.csv", ["cat", "dog"]),
    "prompt": files.load,
    "published prompt": lambda path: convert.read_coop(path, "tiny"),
    "calibration": calibration.Calibration.load,
    "config": read,
    "token": read_token,
    "split file": read_split_file,
    "class file": read_class_file,
    "lines": read_lines,
    "header": lambda path: read_header(_linked("run.json")(path)),
    "ledger": lambda path: Ledger(path).lines(),
    "init": lambda path: poise.Classifier(["a", "b"], "tiny", init=str(path), device="cpu"),
    "shards": lambda path: data.open_dataset(f"wds:{path}"),
    "model folder": lambda path: poise.load_model(f"local-dir:{_linked('open_clip_config.json')(path)}"),
    "model of transformers": lambda path: poise.load_model(f"transformers:{_linked('config.json')(path)}"),
    "onnx": lambda path: poise.load_model(f"onnx:{path}"),
}


@pytest.fixture
def little_memory():
    """Let memory end before the machine's does."""
    before = resource.getrlimit(resource.RLIMIT_AS)
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + (6 << 30), before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_AS, before)


@pytest.mark.parametrize("name", ENDLESS)
def test_a_file_that_never_ends_is_an_error(name: str, tmp_path: Path, little_memory: None) -> None:
    endless = tmp_path / "endless"
    endless.symlink_to("/dev/zero")
    with pytest.raises(PoiseError):
        ENDLESS[name](endless)


def test_an_endless_file_among_a_run_s_files_is_damaged(tmp_path: Path, little_memory: None) -> None:
    part = tmp_path / "one" / "set" / "part-00000.parquet"
    part.parent.mkdir(parents=True)
    with part.open("wb") as file:
        file.truncate(2 << 30)  # it takes no place on the disk
    folder = RunFolder(tmp_path, "one")
    folder.ledger.append({"unit": "set/part-00000", "sha256": "0"})
    with pytest.raises(InvalidDatasetError, match="larger than 1024 MiB"):
        list(read_parts(tmp_path / "one"))
    folder.ledger.append({"file": "set/part-00000.parquet", "sha256": "0"})
    assert not folder.has_file("set/part-00000.parquet")
    assert finished(Path("/dev/zero"), ["zero-shot"]) == frozenset()


@pytest.mark.parametrize(
    "content", [b"many", b"3.5", b"-1", b"9" * 5000, b"\xff\xfe", b"1e3", b"99999999", "²".encode(), b"1\n2x", b""]
)
def test_numbers_of_shards_that_are_none(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "nshards.txt").write_bytes(content)
    with pytest.raises(InvalidDatasetError, match="nshards"):
        find_shards(str(tmp_path))


@pytest.mark.parametrize(
    "pattern", ["{a,b}" * 60, "{0..99999}{0..99999}", "{0.." + "9" * 5000 + "}", "{" + "0" * 5000 + "..1}", "{5..1}"]
)
def test_patterns_of_too_many_shards_are_not_expanded(pattern: str) -> None:
    with pytest.raises(InvalidDatasetError):
        expand_braces(pattern)
    assert len(expand_braces(f"{{1..{MAX_FILES}}}")) == MAX_FILES


def _shard(path: Path, size: int = 4) -> None:
    with tarfile.open(path, "w") as tar:
        for name, content in (("a.cls", b"0"), ("a.png", b"x" * size)):
            member = tarfile.TarInfo(name)
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))


def test_class_names_of_shards_that_are_not_utf8(tmp_path: Path) -> None:
    _shard(tmp_path / "0.tar")
    (tmp_path / "classnames.txt").write_bytes(b"caf\xe9\n")
    with pytest.raises(InvalidDatasetError, match="not UTF-8"):
        open_shards(str(tmp_path))


def test_damaged_shards_are_one_error(tmp_path: Path) -> None:
    _shard(tmp_path / "0.tar", 600)
    whole = (tmp_path / "0.tar").read_bytes()
    random = np.random.default_rng(0)
    for _ in range(300):
        edited = bytearray(whole)
        for at in random.integers(0, 1536, 4):
            edited[at] = random.integers(256)
        (tmp_path / "1.tar").write_bytes(edited)
        try:
            for _, _, place in read_samples(str(tmp_path / "1.tar")):
                place.load()
        except PoiseError:
            pass
