from __future__ import annotations

import csv
import json
import re
from pathlib import Path

import pytest
from report import made

from poise.report.exports import export, export_clip_benchmark, export_csv
from poise.report.page import page_data, write_page
from poise.report.runs import load
from poise.report.scores import scoreboard


def data_of(page: str) -> dict:
    found = re.search(r'<script type="application/json" id="data">(.*?)</script>', page, re.DOTALL)
    assert found
    return json.loads(found[1])


def test_page_holds_everything_and_fetches_nothing(runs: Path, tmp_path: Path) -> None:
    path = write_page(runs, tmp_path / "page.html", title="Tom & Jerry", resamples=20)
    page = path.read_text("utf-8")
    assert "<title>Tom &amp; Jerry</title>" in page
    assert not re.search(r'(src|href)\s*=\s*["\']', page)
    assert not re.search(r"@@[A-Z]+@@|@import|url\((?!#)", page.replace("url(#${id})", ""))
    assert "default-src 'none'" in page
    data = data_of(page)
    assert len(data["groups"]) == 14
    assert {metric["name"] for metric in data["metrics"]} >= {"accuracy", "ece", "sce", "aurc"}
    group = data["groups"][0]
    assert len(group["bins"]) == 20
    assert sum(row[2] for row in group["bins"]) == 160
    assert sum(map(sum, group["histogram"].values())) == pytest.approx(1, abs=1e-4)
    assert group["risk"][-1][0] == 1
    assert data["texts"] or data["texts_note"]


def test_page_into_a_folder(runs: Path, tmp_path: Path) -> None:
    assert write_page(runs, tmp_path / "site", resamples=5).name == "index.html"


def test_hostile_names_can_not_leave_their_place(tmp_path: Path) -> None:
    evil = "</script><script>alert(1)</script><!--@@JS@@"
    made.write_run(tmp_path / "runs", datasets=(evil.replace("/", ""),), methods=("tpt",), model=evil)
    page = write_page(tmp_path / "runs", tmp_path / "page.html", resamples=5).read_text("utf-8")
    assert page.count("</script>") == 2
    assert "<script>alert" not in page
    assert data_of(page)["settings"][0]["label"] == evil


def test_page_data_has_no_nan(tmp_path: Path) -> None:
    rows = {"images": 3, "datasets": ("dtd",), "methods": ("tpt",), "seeds": (1,)}
    made.write_run(tmp_path, **rows)
    json.dumps(page_data(scoreboard(load(tmp_path), resamples=5)), allow_nan=False)


def test_csv_for_reliability_scripts(runs: Path, tmp_path: Path) -> None:
    records = load(runs)
    files = export_csv(records, tmp_path)
    assert len(files) == 14 * 2
    group = next(records.chosen(dataset="eurosat", method="tpt"))
    (path,) = (path for path in files if path.name == "eurosat_tpt_pocket_seed2.csv")
    rows = list(csv.DictReader(path.read_text().splitlines()))
    assert list(rows[0]) == ["true_label", "pred_label", "confidence"]
    assert [float(row["confidence"]) for row in rows] == group.seeds[2]["confidence"].tolist()
    assert [int(row["true_label"]) for row in rows] == group.seeds[2]["label"].tolist()


def test_csv_with_names_is_safe_to_open(runs: Path, tmp_path: Path) -> None:
    files = export_csv(load(runs), tmp_path, names=True)
    labels = {row["true_label"] for row in csv.DictReader(files[0].read_text().splitlines())}
    assert "'=cat" in labels
    assert "dog" in labels


def test_clip_benchmark_json(runs: Path, tmp_path: Path) -> None:
    """What `clip_benchmark build` does with a file: the metrics and the other fields become one row."""
    files = export_clip_benchmark(load(runs), tmp_path)
    assert len(files) == 14
    for path in files:
        data = json.loads(path.read_text())
        row = {**data["metrics"], **data}
        del row["metrics"]
        assert {"dataset", "model", "pretrained", "task", "language", "acc1", "acc5", "mean_per_class_recall"} <= set(
            row
        )
        assert row["task"] == "zeroshot_classification"
        assert isinstance(row["model"] + " " + row["pretrained"], str)
        assert 0 <= row["acc1"] <= row["acc5"] <= 1


def test_open_clip_names_are_split(tmp_path: Path) -> None:
    made.write_run(tmp_path / "runs", datasets=("dtd",), methods=("zero-shot", "tpt"), model="ViT-B-16/openai")
    files = export(tmp_path / "runs", tmp_path / "out")
    found = [json.loads(path.read_text()) for path in files if path.suffix == ".json"]
    assert [(each["model"], each["pretrained"]) for each in found] == [
        ("ViT-B-16", "openai"), ("ViT-B-16", "openai+tpt"),
    ]  # fmt: skip
    assert {path.parent.name for path in files} == {"csv", "clip_benchmark"}
