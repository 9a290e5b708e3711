"""Runs on datasets whose classes are in a tree: how far wrong answers are, and answers with nodes."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from poise.calibration.certify import certify_changing
from poise.data.class_trees import class_tree
from poise.errors import InvalidDatasetError
from poise.evaluate.held_out import draw
from poise.metrics import get
from poise.report.records.runs import Records, load
from poise.report.records.scores import scoreboard
from poise.report.tables.formats import render
from poise.report.tables.results import result_tables
from tests.report import made

PATHS = ["animal > =cat", "animal > dog", "animal > <b>bird</b>", "boat", "tree", "car"]
LEVELS = {"calibrate": 150, "coverage": 0.8, "max_error": 0.3}


def written(place: Path, config: dict[str, float] | None, trees: object) -> Path:
    folder = made.write_run(
        place, datasets=("dtd",), methods=("zero-shot",), seeds=(1,), images=400, config=config or {}
    )
    head = json.loads((folder / "run.json").read_text("utf-8"))
    (folder / "run.json").write_text(json.dumps({**head, "trees": trees}), encoding="utf-8")
    return place


@pytest.fixture(scope="module")
def records(tmp_path_factory: pytest.TempPathFactory) -> Records:
    return load(written(tmp_path_factory.mktemp("tree"), LEVELS, {"dtd": PATHS}))


def test_nodes_and_steps_equal_a_plain_computation(records: Records) -> None:
    tree = class_tree(made.header()["datasets"]["dtd"]["classes"], PATHS)
    rows = made.rows("dtd", "zero-shot", 1, images=400)
    held = draw([row["id"] for row in rows], 150)
    first, rest = ([row for row in rows if (row["id"] in held) == inside] for inside in (True, False))
    probs, truth = (np.array([row[name] for row in first]) for name in ("probs", "label"))
    threshold = certify_changing(*tree.thresholds(probs, truth), 0.3).threshold
    assert threshold is not None
    plain, calibrated = (next(records.chosen(method=name)) for name in ("zero-shot", "zero-shot | calibrated"))
    sample = calibrated.samples()[0]
    answers = tree.answers(np.array([row["probs"] for row in rest]), threshold)
    lines = [path.split(" > ") for path in PATHS]
    assert sample.depth is not None
    assert sample.right is not None
    for row, answer, depth, right in zip(rest, answers, sample.depth, sample.right, strict=True):
        line = lines[row["label"]]
        assert depth == (0 if answer is None else 1 + next(line.index(answer) for line in lines if answer in line))
        assert right == (answer in line)
    heights = [
        0 if row["prediction"] == row["label"] else 1 if max(row["prediction"], row["label"]) < 3 else None
        for row in rest
    ]
    found = plain.samples()[0].height
    assert found is not None
    assert all(one is None or one == two for one, two in zip(heights, found, strict=True))
    assert set(found[[at for at, one in enumerate(heights) if one is None]].tolist()) <= {1, 2}


def test_tables_show_nodes_beside_plain_abstention(records: Records) -> None:
    names = ["answered", "answered_error", "node_answered", "node_error", "depth", "height"]
    board = scoreboard(records, metrics=names, resamples=50)
    scores = next(entry.scores for key, entry in board.entries.items() if key[2] == "zero-shot | calibrated")
    assert scores["node_answered"].value >= scores["answered"].value
    assert scores["node_error"].value < 0.45
    tables = result_tables(board, metrics=names)
    assert get("depth").title in render(tables, "md")


def test_runs_without_a_tree_and_damaged_ones(tmp_path: Path) -> None:
    plain = load(written(tmp_path / "a", None, {}))
    assert plain.groups[0].samples()[0].height is None
    with pytest.raises(InvalidDatasetError, match="value of 'trees'"):
        load(written(tmp_path / "b", None, {"dtd": [1]}))
