from __future__ import annotations

import math

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch

from poise.data import Item
from poise.evaluate import records
from poise.inference.answers import answer_rows
from poise.results import Failure
from poise.types import Answer, Prompt

COLUMNS = {"run": "run", "model": "tiny", "dataset": "set", "seed": 3}


def adapted(probs, start=None, target=None, fallback=None):
    probs = torch.tensor(probs, dtype=torch.float64)
    count, classes = probs.shape
    texts = torch.eye(classes, dtype=torch.float64).expand(count, classes, classes)
    return Answer(
        logits=probs.log(),
        probs=probs,
        init_probs=probs if start is None else torch.tensor(start, dtype=torch.float64),
        target_probs=probs if target is None else torch.tensor(target, dtype=torch.float64),
        confidences=torch.ones(count, 2),
        temperatures=torch.ones(count, 2),
        view_labels=torch.zeros(count, 2, dtype=torch.long),
        selected=torch.zeros(count, 1, dtype=torch.long),
        losses=torch.zeros(count, 1),
        fallback=torch.tensor(fallback or [False] * count),
        prompt=Prompt(torch.zeros(count, 1, 1)),
        text_features=texts,
    )


def rows(answers, labels, **options):
    start = torch.tensor([[[0.25], [-0.25]]])  # at a quarter from their middle
    made = []
    for index, (label, row) in enumerate(zip(labels, answer_rows(answers, start), strict=True)):
        image = Item(f"image {index}", label, "")
        outcome = Failure("x", "non_finite", "no") if row is None else row
        made += records.rows(COLUMNS, image, list(answers), outcome, **options)
    return made


def test_a_row_by_hand():
    answer = adapted([[0.25, 0.75]], start=[[0.5, 0.5]], target=[[1.0, 0.0]], fallback=[True])
    (row,) = rows({"tpt": answer}, [1])
    assert row["prediction"] == 1
    assert row["correct"] is True
    assert row["confidence"] == 0.75
    assert row["entropy"] == pytest.approx(-(0.25 * math.log(0.25) + 0.75 * math.log(0.75)), abs=1e-15)
    assert row["init_entropy"] == pytest.approx(math.log(2), abs=1e-15)
    assert row["target_prediction"] == 0
    assert row["fallback"] is True
    assert row["error"] is None
    assert row["atfd"] == pytest.approx(math.sqrt(0.5))  # two unit axes, each at half their distance from the middle
    assert row["init_atfd"] == 0.25
    assert (row["run"], row["model"], row["dataset"], row["method"], row["seed"]) == ("run", "tiny", "set", "tpt", 3)


def test_entropy_of_certainty_is_zero():
    assert records.entropy(np.array([[1.0, 0.0], [0.0, 1.0]])).tolist() == [0.0, 0.0]


def test_rows_come_image_by_image_and_encode_to_the_schema():
    answers = {"tpt": adapted([[0.2, 0.8], [0.9, 0.1]]), "kld": adapted([[0.3, 0.7], [0.6, 0.4]])}
    made = rows(answers, [0, 0])
    assert [(row["id"], row["method"]) for row in made] == [
        ("image 0", "tpt"),
        ("image 0", "kld"),
        ("image 1", "tpt"),
        ("image 1", "kld"),
    ]
    made += records.rows(COLUMNS, Item("bad", 1, ""), ["tpt", "kld"], Failure("bad", "unreadable_image", "no"))
    content = records.encode(made)
    assert content == records.encode(made)
    table = pq.read_table(__import__("io").BytesIO(content))
    assert table.schema.equals(records.SCHEMA)
    bad = table.to_pylist()[-1]
    assert bad["prediction"] == bad["init_prediction"] == bad["target_prediction"] == records.NO_CLASS
    assert math.isnan(bad["confidence"])
    assert bad["probs"] is None
    assert bad["correct"] is False
    assert bad["error"] == "unreadable_image: no"


def test_an_output_that_is_not_finite_is_an_error_and_no_number():
    good, bad = rows({"tpt": adapted([[0.2, 0.8], [math.nan, math.nan]])}, [0, 1])
    assert (good["error"], good["prediction"]) == (None, 1)
    assert bad["error"].startswith("non_finite")
    assert (bad["prediction"], bad["correct"], bad.get("probs")) == (records.NO_CLASS, False, None)


@pytest.mark.parametrize("classes", [200, 201])
def test_many_classes_keep_the_top_only(classes):
    probs = torch.rand(2, classes, generator=torch.Generator().manual_seed(0)).double()
    probs = (probs / probs.sum(-1, keepdim=True)).tolist()
    row = rows({"tpt": adapted(probs)}, [0, 1])[1]
    if classes <= records.FULL_PROBS_UP_TO:
        assert row["top_ids"] is None
        np.testing.assert_array_equal(row["probs"], np.float32(probs[1]))
        return
    assert row["probs"] is None
    assert len(row["top_ids"]) == len(row["top_probs"]) == records.TOP
    assert row["top_ids"][0] == row["prediction"]
    np.testing.assert_array_equal(row["top_probs"], np.sort(np.float32(probs[1]))[::-1][: records.TOP])


def test_all_probabilities_are_kept_on_request():
    probs = np.full(300, 1 / 300)
    (row,) = rows({"tpt": adapted([probs.tolist()])}, [0], full=True)
    assert row["top_ids"] is None
    assert len(row["probs"]) == 300


def test_reading_an_empty_folder_gives_no_rows(tmp_path):
    assert records.read(tmp_path).num_rows == 0
    (tmp_path / "part-00000.parquet").write_bytes(records.encode(rows({"tpt": adapted([[0.2, 0.8]])}, [0])))
    assert records.read(tmp_path).num_rows == 1
