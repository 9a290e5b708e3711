from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from poise import metrics
from poise.errors import InvalidDatasetError, InvalidOptionError
from poise.report.records.runs import load
from tests.report import made


def test_load_sorts_rows_into_groups(runs: Path) -> None:
    records = load(runs)
    assert records.datasets == ["caltech101", "eurosat"]
    assert records.methods == list(made.METHODS)
    assert len(records.groups) == 14
    group = next(records.chosen(dataset="eurosat", method="kld"))
    assert list(group.seeds) == [1, 2]
    assert group.n == 80
    assert group.seeds[1].probs is not None
    assert group.seeds[1].probs.shape == (80, 6)
    assert group.seeds[1].ids == group.seeds[2].ids
    assert records.classes("eurosat")[0] == "=cat"
    assert records.classes("nowhere") == ()


def test_a_sample_keeps_the_records_confidence(runs: Path) -> None:
    rows = next(load(runs).chosen(dataset="eurosat", method="tpt")).seeds[1]
    sample = rows.sample()
    assert sample.confidence is rows["confidence"]
    assert sample.correct.mean() == pytest.approx((rows["prediction"] == rows["label"]).mean())


def test_error_rows_are_left_out_and_counted(tmp_path: Path) -> None:
    made.write_run(tmp_path, datasets=("dtd",), methods=("tpt",), error_at=(0, 7))
    (group,) = load(tmp_path).groups
    assert group.n == 78
    assert group.errors == 4
    assert np.isfinite(group.pooled["confidence"]).all()


def test_seeds_are_compared_on_their_common_images(tmp_path: Path) -> None:
    rows = made.rows("dtd", "tpt", 1) + made.rows("dtd", "tpt", 2)[:50]
    (tmp_path / "run.json").write_text(json.dumps(made.header()))
    pq.write_table(pa.Table.from_pylist(rows, schema=made.SCHEMA), tmp_path / "part-00000.parquet")
    made.list_parts(tmp_path)
    (group,) = load(tmp_path).groups
    assert group.n == 50
    assert group.uneven == 30


def test_seeds_without_a_common_image_are_not_averaged(tmp_path: Path) -> None:
    rows = made.rows("dtd", "tpt", 1)[:30] + made.rows("dtd", "tpt", 2)[30:]
    (tmp_path / "run.json").write_text(json.dumps(made.header()))
    pq.write_table(pa.Table.from_pylist(rows, schema=made.SCHEMA), tmp_path / "part-00000.parquet")
    made.list_parts(tmp_path)
    (group,) = load(tmp_path).groups
    assert list(group.seeds) == [2]
    assert group.n == 50


def test_overlapping_runs_of_one_setting_are_not_doubled(tmp_path: Path) -> None:
    made.write_run(tmp_path, run="one", seeds=(1,))
    made.write_run(tmp_path, run="two", seeds=(1, 2), config={"limit": 500})
    records = load(tmp_path)
    assert len(records.settings) == 1
    assert {group.n for group in records.groups} == {80}
    assert all(list(group.seeds) == [1, 2] for group in records.groups)


def test_other_choices_are_other_settings(tmp_path: Path) -> None:
    made.write_run(tmp_path, run="one", methods=("tpt",))
    made.write_run(
        tmp_path,
        run="two",
        methods=("tpt",),
        init_kind="coop",
        config={"views": 8, "init": "/far/prompts/x.safetensors", "options": {"tpt": {"lr": 0.01}}, "template": ""},
    )
    records = load(tmp_path)
    labels = [records.label(setting) for setting in records.settings]
    assert len(labels) == 2
    assert any(label.endswith("init=prompts/x.safetensors, tpt.lr=0.01, views=8") for label in labels), labels
    assert {setting.init for setting in records.settings} == {"template", "coop"}


def test_top_k_records_give_what_they_can(tmp_path: Path) -> None:
    made.write_run(tmp_path, datasets=("imagenet",), methods=("tpt",), full=False, classes=9)
    (group,) = load(tmp_path).groups
    sample = group.samples()[0]
    assert sample.probs is None
    assert "top5" in metrics.available(sample)
    assert "nll" not in metrics.available(sample)


def test_missing_records_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidDatasetError, match="no folder"):
        load(tmp_path / "nowhere")
    with pytest.raises(InvalidDatasetError, match=r"run\.json"):
        load(tmp_path)
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "run.json").write_text(json.dumps(made.header()))
    with pytest.raises(InvalidDatasetError, match="no rows"):
        load(tmp_path)
    pq.write_table(pa.table({"run": ["demo"]}), tmp_path / "a" / "part-0.parquet")
    with pytest.raises(InvalidDatasetError, match=r"no ledger.*bench run"):
        load(tmp_path)
    made.list_parts(tmp_path / "a")
    with pytest.raises(InvalidDatasetError, match="no column model"):
        load(tmp_path)


def test_two_runs_of_one_name_are_refused(tmp_path: Path) -> None:
    made.write_run(tmp_path / "x", methods=("tpt",))
    made.write_run(tmp_path / "y", methods=("tpt",))
    with pytest.raises(InvalidOptionError, match="Two runs"):
        load(tmp_path)


def test_files_that_the_ledger_does_not_know_are_not_read(tmp_path: Path) -> None:
    folder = made.write_run(tmp_path, datasets=("dtd",), methods=("tpt",), seeds=(1,))
    part = next(folder.rglob("part-*"))
    (part.parent / "part-00001.parquet").write_bytes(b"left over by a killed process")
    assert load(tmp_path).groups[0].n == 80


@pytest.mark.parametrize("damage", ["torn", "forged", "gone"])
def test_damaged_records_are_refused(tmp_path: Path, damage: str) -> None:
    folder = made.write_run(tmp_path, datasets=("dtd",), methods=("tpt",), seeds=(1,))
    part = next(folder.rglob("part-*"))
    if damage == "gone":
        part.unlink()
    elif damage == "torn":
        part.write_bytes(part.read_bytes()[:100])
    else:
        pq.write_table(pa.Table.from_pylist(made.rows("dtd", "kld"), schema=made.SCHEMA), part)
    with pytest.raises(InvalidDatasetError, match=r"part-00000.*damaged.*bench run"):
        load(tmp_path)


HEADERS = [
    json.dumps(change)
    for change in (
        {"run": {}},
        {"methods": 3},
        {"methods": {"tpt": 3}},
        {"datasets": [1]},
        {"datasets": {"dtd": 3}},
        {"datasets": {"dtd": {"images": "x"}}},
        {"datasets": {"dtd": {"images": 10**12}}},
        {"datasets": {"dtd": {"classes": 3}}},
        {"config": {"seeds": 3}},
        {"config": {"seeds": [2**64]}},
        {"config": {"chunk": 0}},
        {"config": {"calibrate": "x"}},
        {"config": {"coverage": [1]}},
    )
]


@pytest.mark.parametrize("text", ["{", "[]", '{"config": 3}', *HEADERS])
def test_a_damaged_header_is_refused(tmp_path: Path, text: str) -> None:
    folder = made.write_run(tmp_path, datasets=("dtd",), methods=("tpt",))
    (folder / "run.json").write_text(text)
    with pytest.raises(InvalidDatasetError, match=r"run\.json"):
        load(tmp_path)
