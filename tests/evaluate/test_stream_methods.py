"""Methods along a stream in a benchmark: one unit per seed, in the seed's order, and as if alone."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from poise.cli.app import app
from tests.evaluate.attempt import arguments, make_images


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_images(tmp_path_factory.mktemp("data") / "images")


def run(images: Path, out: Path, methods: str, *more: str) -> dict[int, list[dict]]:
    """The rows of a run, by seed, in the order of the file."""
    result = CliRunner().invoke(app, arguments(images, out, "--method", methods, "--views", "10", *more))
    assert result.exit_code == 0, result.output
    files = {seed: list((out / "run").glob(f"*/seed{seed}/*.parquet")) for seed in (1, 2)}
    assert [len(found) for found in files.values()] == [1, 1]  # never split, though a chunk has 3 images
    return {seed: pq.read_table(found[0]).to_pylist() for seed, found in files.items()}


def test_streams_are_whole_follow_the_seed_and_are_as_if_alone(images: Path, tmp_path: Path) -> None:
    together = run(images, tmp_path / "together", "streams,tpt")
    orders = [[row["id"] for row in rows if row["method"] == "tda"] for rows in together.values()]
    assert sorted(orders[0]) == sorted(orders[1])
    assert orders[0] != orders[1]
    for name in ("tda", "boostadapter", "dmn"):
        alone = run(images, tmp_path / name, name)
        for seed, rows in alone.items():
            found = [row for row in together[seed] if row["method"] == name]
            assert [row["probs"] for row in rows] == [row["probs"] for row in found]
    stored = json.loads((tmp_path / "together" / "run" / "run.json").read_text())
    assert stored["ordered"]
    assert stored["methods"]["boostadapter"]["rule"] == "boostadapter"


def test_values_published_for_other_datasets_are_refused(images: Path, tmp_path: Path) -> None:
    more = ["--method", "tda", "--set", "options.tda.values=published"]
    result = CliRunner().invoke(app, arguments(images, tmp_path / "runs", *more))
    assert "No values are published for 'folder:" in str(result.exception)
