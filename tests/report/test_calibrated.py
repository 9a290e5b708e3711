"""Runs with calibration images: what is left out, what is fitted, and what reports make of it."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from poise import metrics
from poise.calibration import certify, fit_calibrator
from poise.errors import InvalidDatasetError
from poise.evaluate.held_out import draw
from poise.report.colours import CALIBRATED, look, order
from poise.report.exports import export_clip_benchmark
from poise.report.page.build import write_page
from poise.report.records.calibrated import LEVELS as DRAWN
from poise.report.records.calibrated import certified_curve, coverage_curve, coverage_spread
from poise.report.records.groups import Group
from poise.report.records.runs import Records, load
from poise.report.records.scores import scoreboard
from poise.report.tables.analyses import analysis_tables
from poise.report.tables.compare import comparison
from poise.report.tables.formats import render
from poise.report.tables.results import result_tables
from tests.report import made

LEVELS = {"calibrate": 100, "coverage": 0.8, "max_error": 0.6}
SIMPLE = ("zero-shot", "tpt")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("calibrated")
    made.write_run(place, datasets=("dtd",), methods=SIMPLE, images=300, config=LEVELS)
    return place


@pytest.fixture(scope="module")
def records(folder: Path) -> Records:
    return load(folder)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Records:
    """The same rows, without calibration images."""
    place = tmp_path_factory.mktemp("whole")
    made.write_run(place, datasets=("dtd",), methods=SIMPLE, images=300)
    return load(place)


def group(records: Records, method: str) -> Group:
    return next(records.chosen(method=method))


def test_each_method_is_there_as_it_is_and_calibrated(records: Records) -> None:
    assert records.methods == ["zero-shot", "zero-shot | calibrated", "tpt", "tpt | calibrated"]
    assert {found.n for found in records.groups} == {200}
    assert len({found.ids for found in records.groups}) == 1


def test_the_images_are_drawn_by_their_ids_alone(records: Records, whole: Records) -> None:
    ids = group(whole, "tpt").ids
    assert draw(ids, 100) == draw(ids[::-1], 100) == set(ids) - set(group(records, "tpt").ids)
    assert draw(ids, 50) < draw(ids, 100)


def test_as_it_is_the_method_has_the_rows_of_the_run(records: Records, whole: Records) -> None:
    ours, theirs = (group(each, "tpt").seeds[2] for each in (records, whole))
    places = [theirs.ids.index(name) for name in ours.ids]
    assert ours.probs.tolist() == theirs.probs[places].tolist()
    for name, column in ours.columns.items():
        assert column.tolist() == theirs[name][places].tolist()


def test_calibrated_rows_by_hand(records: Records, whole: Records) -> None:
    everything, plain = group(whole, "tpt").seeds[1], group(records, "tpt").seeds[1]
    held = np.array([name not in plain.ids for name in everything.ids])
    probs, labels = everything.probs[held], everything["label"][held]
    scores = np.sort(1 - probs[np.arange(100), labels].astype(np.float64))
    limit = scores[81 - 1]  # the ceil(101 * 0.8)-th
    sets = 1 - plain.probs.astype(np.float64) <= limit + 1e-7
    found = group(records, "tpt | calibrated").seeds[1]
    assert found["set_sizes"].tolist() == sets.sum(1).clip(min=1).tolist()
    threshold = certify(everything["confidence"][held], everything["correct"][held], 0.6).threshold
    assert threshold is not None
    assert found["answered"].tolist() == (plain["confidence"] >= threshold).tolist()
    calibrator = fit_calibrator(probs, labels).calibrator
    assert found["confidence"] == pytest.approx(calibrator.apply(plain.probs.astype(np.float64)).max(1))
    assert found["prediction"].tolist() == plain["prediction"].tolist()
    sample = found.sample()
    assert sample.covered.mean() == pytest.approx(0.8, abs=0.12)
    assert sample.probs.max(1) == pytest.approx(sample.confidence, rel=1e-6)


def test_calibration_lowers_the_error_of_an_overconfident_method(records: Records) -> None:
    board = scoreboard(records, metrics=("ece",), resamples=20)
    ece = {
        found.method: board.entries[found.setting, "dtd", found.method].scores["ece"].value for found in records.groups
    }
    assert ece["tpt | calibrated"] < ece["tpt"] / 2


def test_tables_show_sets_only_of_calibrated_methods(records: Records) -> None:
    (table,) = result_tables(records, metrics=("ece", "coverage", "answered"), resamples=20)
    shown = [(line.cells[0].text, line.cells[1].text) for line in table.lines if not line.quiet]
    assert ("tpt", "ECE") in shown
    assert ("tpt", "Coverage") not in shown
    assert ("tpt | calibrated", "Coverage") in shown
    notes = " ".join(table.notes)
    assert "Metrics leave out 100 images of each dataset" in notes
    assert "coverage of 80 %" in notes
    assert "A dash" not in notes
    for format in ("md", "latex", "csv", "json", "html", "terminal"):
        assert "calibrated" in render([table], format)
    assert "tpt \\| calibrated" in render([table], "md")


def test_thresholds_that_fail_and_classes_without_images_are_noted(tmp_path: Path) -> None:
    made.write_run(tmp_path, datasets=("dtd",), methods=("tpt",), images=300, config={**LEVELS, "max_error": 0.05})
    head = json.loads((tmp_path / "demo" / "run.json").read_text())
    head["datasets"]["dtd"]["classes"] += ["never seen"]
    (tmp_path / "demo" / "run.json").write_text(json.dumps(head))
    (table,) = result_tables(tmp_path, metrics=("answered", "answered_error"), resamples=20)
    notes = " ".join(table.notes)
    assert "nothing is answered, for: tpt on dtd (2 seeds)" in notes
    assert "without any calibration image: dtd 1" in notes
    assert {(row["metric"], row["value"]) for row in table.records} == {("answered", 0)}


def test_a_method_without_answers_has_a_dash_instead_of_an_error(records: Records) -> None:
    found = group(records, "tpt | calibrated")
    nothing = {**found.seeds[2].columns, "answered": np.zeros(found.n, dtype=bool)}
    silent = replace(found, seeds={**found.seeds, 2: replace(found.seeds[2], columns=nothing)})
    changed = replace(records, groups=tuple(silent if each is found else each for each in records.groups))
    (table,) = result_tables(changed, metrics=("answered_error",), resamples=20)
    (name, score, *_), (silent_name, *dashes) = ([cell.text for cell in line.cells] for line in table.lines)
    assert (name, silent_name, set(dashes)) == ("zero-shot | calibrated", "tpt | calibrated", {"—"})
    assert float(score) > 0
    assert "A dash" in " ".join(table.notes)


def test_calibrated_methods_can_be_compared(folder: Path) -> None:
    table = comparison(folder, "tpt | calibrated", ["tpt"], ["ece", "accuracy"], resamples=50)
    values = {row["metric"]: row["difference"] for row in table.records}
    assert values["ece"] < 0
    assert values["accuracy"] == 0


def test_other_reports(records: Records, tmp_path: Path) -> None:
    assert {row["method"] for row in analysis_tables(records)[0].records} == set(SIMPLE)
    assert records.tunes("tpt | calibrated")
    assert not records.tunes("zero-shot | calibrated")
    files = export_clip_benchmark(records, tmp_path)
    assert {path.name for path in files} >= {"dtd_tpt-calibrated_pocket.json", "dtd_tpt_pocket.json"}
    assert look("tpt" + CALIBRATED).colour == look("tpt").colour
    assert look("tpt" + CALIBRATED).dash != look("tpt").dash
    assert order("tpt") < order("tpt" + CALIBRATED) < order("c-tpt")


def test_curves_of_coverage_and_certified_points(records: Records) -> None:
    found = group(records, "tpt | calibrated")
    at = int(np.argmin(abs(DRAWN - 0.8)))
    shares = [rows["covered"].mean() for rows in found.seeds.values()]
    assert DRAWN[at] == pytest.approx(0.8)
    assert coverage_curve(found)[at] == pytest.approx(np.mean(shares), abs=0.02)  # empty sets, and 0.8 by linspace
    assert coverage_spread(found)[at] == pytest.approx(np.sqrt(0.16 * (1 / 100 + 1 / 200)))
    curve, share, error = certified_curve(found)
    answered = np.concatenate([rows["answered"] for rows in found.seeds.values()])
    correct = np.concatenate([rows["correct"] for rows in found.seeds.values()])
    assert share == answered.mean()
    assert error == pytest.approx(1 - correct[answered].mean())
    assert curve.risk[-1] == pytest.approx(1 - correct.mean())


def test_page_and_third_party_metrics(folder: Path, tmp_path: Path) -> None:
    row = metrics.Metric(
        name="mine",
        title="Mine",
        about="Sets of one class.",
        needs="sets",
        value=lambda sample: float((sample.set_sizes == 1).mean()),
        floor="ece_floor",
    )
    metrics.register(row)
    try:
        page = write_page(folder, tmp_path / "page.html", resamples=5).read_text("utf-8")
        (table,) = result_tables(folder, metrics=("mine",), resamples=5)
    finally:
        metrics.unregister("mine")
    for title in ("Coverage of prediction sets", "Certified thresholds", "Mine: Sets of one class."):
        assert title in page
    assert {row["method"] for row in table.records} == {"zero-shot | calibrated", "tpt | calibrated"}
    assert all(row["floor"] > 0 for row in table.records)


def test_too_few_answers_are_refused(tmp_path: Path) -> None:
    made.write_run(tmp_path, datasets=("dtd",), methods=SIMPLE, images=80, config=LEVELS)
    with pytest.raises(InvalidDatasetError, match="answers for 80 images of 'dtd', and 100 are for calibration"):
        load(tmp_path)


def test_records_without_probabilities_are_refused(tmp_path: Path) -> None:
    made.write_run(tmp_path, datasets=("dtd",), methods=("tpt",), images=200, full=False, config=LEVELS)
    with pytest.raises(InvalidDatasetError, match="lack probabilities"):
        load(tmp_path)


def test_methods_share_their_calibration_images(tmp_path: Path) -> None:
    made.write_run(tmp_path, run="one", datasets=("dtd",), methods=("tpt",), images=300, config=LEVELS)
    made.write_run(tmp_path, run="two", datasets=("dtd",), methods=("kld",), images=250, config=LEVELS)
    found = {each.method: set(each.ids) for each in load(tmp_path).groups}
    assert len(found["tpt"]) == 200
    assert found["kld"] == {name for name in found["tpt"] if int(name[2:7]) < 250}
