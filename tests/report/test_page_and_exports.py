from __future__ import annotations

import csv
import html
import json
import re
from html.parser import HTMLParser
from pathlib import Path

import pytest

from poise import metrics
from poise.report.exports import export, export_clip_benchmark, export_csv
from poise.report.figures.write import kinds
from poise.report.page.build import write_page
from poise.report.records.runs import load
from tests.report import made


class Reader(HTMLParser):
    """Collects what a browser would load and run, and whether elements are closed as they were opened."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.links: list[str] = []
        self.tags: list[str] = []
        self.ids: list[str] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        given = dict(attrs)
        self.links += [value or "" for name, value in given.items() if name in ("src", "href", "xlink:href")]
        self.ids += [given["id"] or ""] if "id" in given else []
        assert not any(name.startswith("on") for name in given)


@pytest.fixture(scope="module")
def page(runs: Path, tmp_path_factory: pytest.TempPathFactory) -> str:
    path = write_page(runs, tmp_path_factory.mktemp("page") / "site", title="Tom & Jerry", resamples=20)
    assert path.name == "index.html"
    return path.read_text("utf-8")


def test_page_is_complete_and_self_contained(page: str) -> None:
    found = Reader(page)
    assert "<title>Tom &amp; Jerry</title>" in page
    assert found.links
    assert all(link.startswith("#") for link in found.links)
    assert not re.search(r"@@[A-Z]+@@|@import|url\((?!#)", page)
    assert "default-src 'none'" in page
    assert found.tags.count("script") == 1
    for kind in kinds:
        assert (kinds.get(kind).title in page) == (kind not in ("coverage", "certified", "labels"))  # of other runs
    shown = metrics.available(metrics.Sample.of([[0.2, 0.8]], [1]))
    for name in shown:
        assert html.escape(metrics.get(name).about) in page
    assert "(floor " in page
    panels = page.count("<figure>")
    assert panels == 2 * (7 + 7 + 1 + 1 + 1) + 1 + 3 * 2 + len(shown) + 6
    wide = 1 + 3 * 2 + 3 * 2  # drawn a second time for telephones: at most two of them share the width
    assert page.count('<svg class="narrow"') == page.count('<svg class="wide"') == wide
    assert page.count('role="img"') == panels + wide


def test_page_opens_with_calibration(page: str) -> None:
    assert page.index("Calibration error and accuracy</h2>") < page.index("<table") < page.index("Reliability</h2>")
    assert page.index("<h3>ECE") < page.index("<h3>Acc.")
    assert "± " in page  # standard deviations over seeds


def test_figures_on_the_page_share_no_id_and_follow_its_colours(page: str) -> None:
    found = Reader(page)
    assert len(found.ids) == len(set(found.ids))
    used = set(re.findall(r"url\(#([^)]+)\)", page)) | {link[1:] for link in found.links}
    assert used <= set(found.ids)
    svgs = "".join(re.findall(r"<svg.*?</svg>", page, re.DOTALL))
    assert not re.search("#[0-9a-f]{6}", re.sub("#f[0-9]+-", "", svgs))
    used = set(re.findall(r"var\((--c[0-9a-f]{6})\)", svgs))
    assert "--c000000" in used
    assert used == set(re.findall(r"(--c[0-9a-f]{6}):", page))


def test_hostile_names_are_escaped_on_the_page(tmp_path: Path) -> None:
    evil = "</script><script>alert(1)</script></svg><!--@@JS@@"
    made.write_run(tmp_path / "runs", datasets=(evil.replace("/", ""),), methods=("tpt",), model=evil)
    page = write_page(tmp_path / "runs", tmp_path / "page.html", resamples=5).read_text("utf-8")
    found = Reader(page)
    assert found.tags.count("script") == page.count("</script>") == 1
    assert "<script>alert" not in page
    assert "<!--" not in page
    assert html.escape(evil) in page


def test_a_few_images_make_a_page(tmp_path: Path) -> None:
    made.write_run(tmp_path, images=3, datasets=("dtd",), methods=("tpt",), seeds=(1,))
    page = write_page(tmp_path, tmp_path / "page.html", resamples=5).read_text("utf-8")
    assert "nan" not in page.split("<svg")[0]


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
        ("ViT-B-16", "openai"),
        ("ViT-B-16", "openai+tpt"),
    ]
    assert {path.parent.name for path in files} == {"csv", "clip_benchmark"}
