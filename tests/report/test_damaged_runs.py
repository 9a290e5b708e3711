"""Whatever is damaged in a run's folder, every command ends in one sentence, and `bench run` repairs the run."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from poise.cli.app import app
from poise.errors import PoiseError
from poise.files import checksum
from tests.evaluate.attempt import arguments, make_images

READERS = ("table", "analyse", "export", "resume-info")


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[str]]:
    """The folder of a run, and the command that made it."""
    root = tmp_path_factory.mktemp("finished")
    images = make_images(root / "images", classes=2, each=2)
    chosen = ["--method", "zero-shot,tpt", "--seeds", "1", "--views", "2", "--chunk", "2"]
    command = arguments(images, root / "runs", *chosen)
    assert CliRunner().invoke(app, command).exit_code == 0
    return root / "runs" / "run", command


def part(folder: Path) -> Path:
    return min(folder.rglob("part-*.parquet"))


def features(folder: Path) -> Path:
    return next(folder.glob("features/*.npz"))


def forge(folder: Path) -> None:
    table = pq.read_table(part(folder))
    place = table.column_names.index("confidence")
    pq.write_table(table.set_column(place, "confidence", pa.array([0.5] * len(table))), part(folder))


def other_types(folder: Path) -> None:
    """A file with the right checksum whose columns are of other types."""
    table = pq.read_table(part(folder))
    place = table.column_names.index("confidence")
    pq.write_table(table.set_column(place, "confidence", pa.array([[1]] * len(table))), part(folder))
    lines = [json.loads(line) for line in (folder / "ledger.jsonl").read_text().splitlines()]
    unit = part(folder).relative_to(folder).with_suffix("").as_posix()
    for line in lines:
        if line.get("unit") == unit:
            line["sha256"] = checksum(part(folder).read_bytes())
    (folder / "ledger.jsonl").write_text("\n".join(map(json.dumps, lines)))


def lines(*rows: str) -> Callable[[Path], None]:
    def append(folder: Path) -> None:
        with (folder / "ledger.jsonl").open("a") as file:
            file.writelines(f"{row}\n" for row in rows)

    return append


def edited(file: Callable[[Path], Path], content: bytes | int) -> Callable[[Path], None]:
    def edit(folder: Path) -> None:
        path = file(folder)
        path.write_bytes(path.read_bytes()[:content] if isinstance(content, int) else content)

    return edit


def pickled(folder: Path) -> None:
    arrays = {"labels": np.array([print]), "start": np.zeros(3), "sample_ids": np.array(["x"])}
    np.savez(features(folder), **arrays)


DAMAGE = {
    "torn part": edited(part, -9),
    "empty part": edited(part, b""),
    "forged part": forge,
    "other types": other_types,
    "no part": lambda folder: part(folder).unlink(),
    "no ledger": lambda folder: (folder / "ledger.jsonl").unlink(),
    "ledger of bytes": edited(lambda folder: folder / "ledger.jsonl", bytes(range(256))),
    "lines of other types": lines(
        '{"unit": [1], "sha256": {}}',
        '{"unit": "a", "sha256": "b", "images": "many"}',
        '{"event": "start", "command": 3}',
        "[" * 5000,
    ),
    "lines that lead elsewhere": lines(
        '{"unit": "../../other", "sha256": "", "images": 1, "errors": 0}',
        '{"unit": "/etc/passwd", "sha256": "", "images": 1, "errors": 0}',
    ),
    "torn features": edited(features, 100),
    "empty features": edited(features, b""),
    "pickled features": pickled,
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_every_reader_says_what_is_damaged(finished: tuple[Path, list[str]], damage: str, tmp_path: Path) -> None:
    from poise.report.figures.tsne import text_features

    original, command = finished
    folder = tmp_path / "run"
    shutil.copytree(original, folder)
    DAMAGE[damage](folder)
    for name in READERS:
        out = ["--out", str(tmp_path / "out")] if name == "export" else []
        result = CliRunner().invoke(app, ["bench", name, str(tmp_path), *out])
        assert result.exception is None or isinstance(result.exception, PoiseError | SystemExit), (name, result)
        refused = damage.endswith(("part", "types", "no ledger")) and "lines" not in damage and name != "resume-info"
        if refused:
            assert isinstance(result.exception, PoiseError), name
            assert "bench run" in str(result.exception)
    if "features" in damage:
        from poise.report.records.runs import load

        with pytest.raises(PoiseError, match=r"text features.*damaged.*bench run"):
            list(text_features(load(folder)))
    if damage == "other types":  # its checksum is right, so that only readers can tell
        return
    result = CliRunner().invoke(app, [*command, "--out", str(tmp_path)])
    assert result.exit_code == 0, result.output
    again = {file.relative_to(folder): file.read_bytes() for file in (*folder.rglob("part-*"), features(folder))}
    assert again == {file: (original / file).read_bytes() for file in again}


def test_a_header_without_a_plan_has_no_progress(finished: tuple[Path, list[str]], tmp_path: Path) -> None:
    shutil.copytree(finished[0], tmp_path / "run")
    (tmp_path / "run" / "run.json").write_text('{"run": "run"}')
    result = CliRunner().invoke(app, ["bench", "resume-info", str(tmp_path)])
    assert isinstance(result.exception, PoiseError)
    assert "has no 'config'" in str(result.exception)
