"""Images that nobody has labelled: lists, tars and tables, here and on remote filesystems, whole and damaged."""

from __future__ import annotations

import io
import pickle
import threading
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import ClassVar

import fsspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from poise import filesystems
from poise.data import file_patterns
from poise.data.file_patterns import find_remote
from poise.data.items import Item
from poise.data.opening import open_dataset, open_images
from poise.data.sources import BAD_SHARD, PER_SHARD, Shard, are_files, read_shard, sample
from poise.data.stored_features import FeatureShard, Made, feature_table
from poise.errors import InvalidDatasetError, InvalidOptionError, StorageError, UnreachableError
from poise.filesystems import list_files, open_input, read_whole, size_of, write_whole
from poise.loading.sources import PlannedImage, read_planned
from poise.results import Failure
from poise.views import ViewRecipe
from tests.data import trees
from tests.data.test_sources import write_shard


def read(shards: list[Shard]) -> list[str]:
    """Return the id of each image, or the code of its failure, after a trip to another process."""
    found = []
    for shard in pickle.loads(pickle.dumps(shards)):
        for item in read_shard(shard):
            outcome = read_planned(item, ViewRecipe(1))
            found.append(outcome.source if isinstance(outcome, PlannedImage) else f"{outcome.source}: {outcome.code}")
    return found


def tar(path: Path, names: list[str]) -> Path:
    write_shard(path, {f"{name}.jpg": trees.picture(at) for at, name in enumerate(names)})
    return path


def test_files_folders_and_lists_give_the_same_images(tmp_path: Path) -> None:
    for at in range(3):
        trees.write(tmp_path / f"{at}.png", trees.picture(at, "PNG"))
    paths = [str(tmp_path / f"{at}.png") for at in range(3)]
    (tmp_path / "all.txt").write_text(f"0.png\n\n{paths[1]}\n2.png\n")
    assert read(open_images([str(tmp_path)])) == paths
    assert read(open_images([f"list:{tmp_path}/all.txt"])) == paths
    assert read(open_images([paths[0], "samples"]))[0] == paths[0]
    with pytest.raises(InvalidDatasetError, match=r"'list:nowhere.txt' can't be read: No such file"):
        open_images(["list:nowhere.txt"])


def test_a_long_list_is_divided_and_not_kept(tmp_path: Path) -> None:
    (tmp_path / "long.txt").write_text("".join(f"{at}.png\n" for at in range(2 * PER_SHARD + 3)))
    shards = open_images([f"list:{tmp_path}/long.txt"])
    assert [shard.images() for shard in shards] == [PER_SHARD, PER_SHARD, 3]
    ids = [item.id for shard in shards for item in shard.items()]
    assert [Path(name).name for name in ids] == [f"{at}.png" for at in range(2 * PER_SHARD + 3)]
    assert len(sample(shards, 30)) == 23  # ten of each shard, and there are three in the last


def test_tars_are_read_without_labels(tmp_path: Path) -> None:
    tar(tmp_path / "000.tar", ["a", "b/c.d"])
    tar(tmp_path / "001.tar", ["../../outside", "/absolute"])
    shards = open_images([f"wds:{tmp_path}/{{000..001}}.tar"])
    assert read(shards) == ["000/a", "000/b/c.d", "001/../../outside", "001//absolute"]
    assert [shard.images() for shard in shards] == [None, None]
    assert sorted(file.name for file in tmp_path.iterdir()) == ["000.tar", "001.tar"]


@pytest.mark.parametrize("cut", [100, 700, 1600])
def test_a_truncated_tar_gives_what_is_before_and_one_failure(cut: int, tmp_path: Path) -> None:
    path = tar(tmp_path / "0.tar", ["a", "b"])
    whole = read(open_images([f"wds:{path}"]))
    path.write_bytes(path.read_bytes()[:cut])
    found = read(open_images([f"wds:{path}"]))
    assert found[-1] == f"0.tar: {BAD_SHARD}"
    assert found[:-1] == whole[: len(found) - 1]


def table(place: Path, **columns: object) -> Path:
    pq.write_table(pa.table(columns), place)
    return place


def test_tables_of_bytes_and_of_paths(tmp_path: Path) -> None:
    pictures = [trees.picture(at) for at in range(2)]
    table(tmp_path / "bytes.parquet", jpg=pictures, label=[0, 1])
    table(tmp_path / "named.parquet", image=[{"bytes": item, "path": None} for item in pictures], id=["x", "y"])
    trees.write(tmp_path / "in" / "a.jpg", pictures[0])
    outside = ["in/a.jpg", "../a.jpg", "/etc/passwd", "s3://bucket/a.jpg", None]
    table(tmp_path / "paths.parquet", path=outside)
    assert read(open_images([f"parquet:{tmp_path}/bytes.parquet"])) == ["bytes/0", "bytes/1"]
    assert read(open_images([f"parquet:{tmp_path}/named.parquet"])) == ["named/x", "named/y"]
    found = read(open_images([f"parquet:{tmp_path}/paths.parquet"]))
    assert found[0] == "paths/in/a.jpg"
    assert [row.rpartition(": ")[2] for row in found[1:]] == ["bad_dataset"] * 4
    assert [shard.images() for shard in open_images([f"parquet:{tmp_path}"])] == [2, 2, 5]


def test_tables_that_are_damaged_or_have_no_images(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    path = table(tmp_path / "t.parquet", image=[rng.bytes(5000) for _ in range(40)])
    content = path.read_bytes()
    path.write_bytes(content[:3000])
    assert read(open_images([f"parquet:{path}"])) == [f"t.parquet: {BAD_SHARD}"]
    table(tmp_path / "u.parquet", number=[1])
    (shard,) = open_images([f"parquet:{tmp_path}/u.parquet"])
    (failure,) = read_shard(shard)
    assert isinstance(failure, Failure)
    assert "has no column of images, but number" in failure.message


def test_sources_that_are_not_there(tmp_path: Path) -> None:
    with pytest.raises(InvalidDatasetError, match=r"2 of 2 shards are missing"):
        open_images([f"wds:{tmp_path}/{{0..1}}.tar"])
    with pytest.raises(InvalidOptionError, match=r"'0.tar' is no image. For the images in it, write wds:0.tar"):
        open_images(["0.tar"])
    with pytest.raises(InvalidOptionError, match="No images found"):
        open_images([str(tmp_path / "*.jpg")])
    with pytest.raises(InvalidOptionError, match=r"'nope://x/a.tar' can't be opened"):
        list(read_shard(open_images(["wds:nope://x/a.tar"])[0]))


# Remote filesystems: fsspec's own, in memory, which can be made to fail.


@pytest.fixture
def memory(monkeypatch: pytest.MonkeyPatch) -> fsspec.AbstractFileSystem:
    monkeypatch.setattr(filesystems, "PAUSE", 0.0)
    system = fsspec.filesystem("memory")
    system.store.clear()
    return system


def test_files_of_a_remote_filesystem(memory: fsspec.AbstractFileSystem, tmp_path: Path) -> None:
    content = tar(tmp_path / "0.tar", ["a", "b"]).read_bytes()
    write_whole("memory://bucket/in/0.tar", content)
    write_whole("memory://bucket/in/1.tar", content)
    assert list_files("memory://bucket/in") == {"0.tar": len(content), "1.tar": len(content)}
    assert list_files("memory://bucket/none") == {}
    assert size_of("memory://bucket/in/0.tar") == len(content)
    ids = ["0/a", "0/b", "1/a", "1/b"]
    for pattern in ("{0..1}.tar", "*.tar", ""):
        assert read(open_images([f"wds:memory://bucket/in/{pattern}"])) == ids
    with open_input("memory://bucket/in/0.tar") as file:
        file.seek(-5, io.SEEK_END)
        assert file.read() == content[-5:]
    with pytest.raises(OSError, match="larger than"):
        read_whole("memory://bucket/in/0.tar", 10)


def test_images_in_a_remote_folder(memory: fsspec.AbstractFileSystem, tmp_path: Path) -> None:
    for at, name in enumerate(("b.JPG", "a/c.png", "a/deep/d.jpeg", "a/.hidden/e.jpg", ".f.jpg", "notes.txt")):
        write_whole(f"memory://bucket/photos/{name}", trees.picture(at))
    place = "memory://bucket/photos"
    every = [f"{place}/{name}" for name in ("a/c.png", "a/deep/d.jpeg", "b.JPG")]
    assert read(open_images([place])) == read(open_images([f"{place}/"])) == every
    assert read(open_images([f"{place}/*.JPG"])) == read(open_images([f"{place}/b.JPG"])) == [f"{place}/b.JPG"]
    shards = open_images([f"{place}/{{b.JPG,none.jpg}}"])
    assert read(shards) == [f"{place}/b.JPG", f"{place}/none.jpg: unreadable_image"]
    assert not are_files(shards)
    with pytest.raises(InvalidOptionError, match=r"No images found in 'memory://bucket/photos/a/none'"):
        open_images([f"{place}/a/none"])
    with pytest.raises(InvalidDatasetError, match=r"has a \* in the name of a folder"):
        open_images([f"{place}/*/c.png"])


def test_labelled_tars_of_a_remote_filesystem(memory: fsspec.AbstractFileSystem, tmp_path: Path) -> None:
    write_shard(tmp_path / "0.tar", {"a.jpg": trees.picture(0), "a.cls": b"1"})
    write_whole("memory://bucket/set/test/0.tar", (tmp_path / "0.tar").read_bytes())
    write_whole("memory://bucket/set/classnames.txt", b"cat\ndog\n")
    found = open_dataset("wds:memory://bucket/set/test/*.tar")
    (item,) = found.items
    assert (item.id, found.classes[item.label], item.source()) == ("0/a", "dog", trees.picture(0))


def test_features_of_an_empty_shard(tmp_path: Path) -> None:
    table = feature_table([], np.zeros((0, 2, 4), np.float16), Made("tiny", "0", {"views": 2}))
    pq.write_table(table, tmp_path / "p.parquet")
    assert list(read_shard(FeatureShard(str(tmp_path / "p.parquet")))) == []


def test_options_of_an_address_stay_with_its_files(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def listed(folder: str, *, below: bool = False) -> dict[str, int]:
        asked.append(folder)
        return {"0.tar": 1, "1.txt": 1}

    monkeypatch.setattr(file_patterns, "list_files", listed)
    for pattern in ("s3://b/in/*.tar?region=x", "s3://b/in/?region=x", "s3://b/in?region=x"):
        assert find_remote(pattern, (".tar",)) == ["s3://b/in/0.tar?region=x"]
    assert asked == ["s3://b/in?region=x", "s3://b/in/?region=x", "s3://b/in?region=x"]


class Ranges(SimpleHTTPRequestHandler):
    """Serves a folder; ranges of bytes, too, which the standard library's own handler does not know."""

    asked: ClassVar[list[str]] = []

    def do_GET(self) -> None:
        path = Path(self.translate_path(self.path))
        if not path.is_file():
            self.send_error(404)
            return
        wanted = self.headers.get("Range", "")
        self.asked.append(wanted)
        first, _, last = (wanted or "bytes=0-").removeprefix("bytes=").partition("-")
        content = path.read_bytes()
        piece = content[int(first) : int(last) + 1 if last else None]
        self.send_response(206)
        self.send_header("Content-Range", f"bytes {first}-{int(first) + len(piece) - 1}/{len(content)}")
        self.send_header("Content-Length", str(len(piece)))
        self.end_headers()
        self.wfile.write(piece)

    def log_message(self, format: str, *arguments: object) -> None:
        pass


def test_ranges_of_files_on_a_web_server(tmp_path: Path) -> None:
    tar(tmp_path / "0.tar", ["a", "b"])
    trees.write(tmp_path / "c.jpg", trees.picture(2))
    table(tmp_path / "t.parquet", jpg=[trees.picture(3)])
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Ranges, directory=str(tmp_path))) as server:
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()  # stops within 10 ms
        place = f"http://127.0.0.1:{server.server_port}"
        found = read(open_images([f"{place}/c.jpg", f"wds:{place}/{{0..0}}.tar", f"parquet:{place}/t.parquet"]))
        assert found == [f"{place}/c.jpg", "0/a", "0/b", "t/0"]
        with pytest.raises(UnreachableError, match=r"The shard '1.tar' can't be read"):
            read(open_images([f"wds:{place}/1.tar"]))
        server.shutdown()
    assert {wanted for wanted in Ranges.asked if wanted} >= {f"bytes=0-{(tmp_path / '0.tar').stat().st_size - 1}"}


def test_a_missing_remote_shard_is_an_error_and_no_row(memory: fsspec.AbstractFileSystem) -> None:
    with pytest.raises(UnreachableError, match=r"The shard 'none.tar' can't be read"):
        list(read_shard(open_images(["wds:memory://bucket/none.tar"])[0]))


class Fault:
    """Makes the reads of a file fail a number of times, in the ways of a network."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, times: int, error: Exception | None) -> None:
        self.left, self.error = times, error
        original = filesystems._Remote._opened
        fault = self

        class Broken:
            def __init__(self, file: object) -> None:
                self.file = file

            def __getattr__(self, name: str) -> object:
                return getattr(self.file, name)

            def read(self, size: int) -> bytes:
                if fault.left > 0:
                    fault.left -= 1
                    if fault.error is not None:
                        raise fault.error
                    return b""
                return self.file.read(min(size, 700))  # type: ignore[attr-defined, no-any-return]

        monkeypatch.setattr(filesystems._Remote, "_opened", lambda this: Broken(original(this)))


@pytest.mark.parametrize("error", [OSError("500"), ConnectionResetError("cut"), TimeoutError("slow"), None])
def test_failing_reads_are_repeated_where_they_stopped(
    error: Exception | None, memory: fsspec.AbstractFileSystem, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_whole("memory://bucket/0.tar", tar(tmp_path / "0.tar", ["a", "b", "c"]).read_bytes())
    Fault(monkeypatch, filesystems.ATTEMPTS - 1, error)
    assert read(open_images(["wds:memory://bucket/0.tar"])) == ["0/a", "0/b", "0/c"]


def test_reads_that_never_succeed_end(
    memory: fsspec.AbstractFileSystem, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_whole("memory://bucket/0.tar", tar(tmp_path / "0.tar", ["a"]).read_bytes())
    fault = Fault(monkeypatch, 10**6, OSError("503 Slow Down"))
    with pytest.raises(UnreachableError, match=r"503 Slow Down \(attempt 5\)\. Run the command again with --resume"):
        list(read_shard(open_images(["wds:memory://bucket/0.tar"])[0]))
    assert fault.left == 10**6 - filesystems.ATTEMPTS


def test_a_filesystem_that_refuses_writes(memory: fsspec.AbstractFileSystem, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*args: object, **options: object) -> None:
        raise PermissionError(13, "the bucket is read-only")

    monkeypatch.setattr(type(memory), "_open", refuse)
    with pytest.raises(StorageError, match=r"Can't write 'memory://bucket/x': the bucket is read-only.*--resume"):
        write_whole("memory://bucket/x", b"")


def test_items_of_shards_are_unlabelled(tmp_path: Path) -> None:
    tar(tmp_path / "0.tar", ["a"])
    (item,) = read_shard(open_images([f"wds:{tmp_path}/0.tar"])[0])
    assert isinstance(item, Item)
    assert item.label == -1
