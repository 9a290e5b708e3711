"""`poise evaluate`, `Classifier.evaluate`: numbers are those of the answers; calibration images are left out."""

from __future__ import annotations

import csv
import json
import re
from pathlib import Path

import numpy as np
import pytest
import scipy.stats
from PIL import Image
from typer.testing import CliRunner

import poise
from poise.calibration import Answered
from poise.calibration.mistakes import confusions, label_counts, listings, mistakes
from poise.calibration.plots import risk_svg
from poise.calibration.shares import proportion
from poise.cli.app import app
from poise.errors import InvalidCalibrationError, InvalidOptionError
from poise.inference.evaluating import UNREADABLE, USED
from poise.inference.predictor import Predictor
from poise.metrics.selective import risk_coverage

LABELS = ["american bulldog", "cat"]
OPTIONS = {"model": "tiny", "method": ["zero-shot"], "device": "cpu"}


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("photos")
    rng = np.random.default_rng(0)
    for part in ("labelled", "rest"):
        for label in LABELS:
            place = root / part / label.replace(" ", "_")
            place.mkdir(parents=True)
            for at in range(20):
                Image.fromarray(rng.integers(0, 256, (24, 24, 3), dtype=np.uint8)).save(place / f"{at}.png")
    return root


@pytest.fixture(scope="module")
def calibration(folders: Path) -> Path:
    out = folders / "calibration.json"
    options = ["--model", "tiny", "--method", "zero-shot", "--device", "cpu"]
    done = CliRunner().invoke(app, ["calibrate", str(folders / "labelled"), "--out", str(out), *options])
    assert done.exit_code == 0, done.output
    return out


def run(*arguments: object):
    return CliRunner().invoke(app, ["evaluate", *map(str, arguments), "--device", "cpu"])


def test_unlabelled_images_give_a_second_accuracy(folders: Path, calibration: Path) -> None:
    done = run(folders / "rest", "--calibration", calibration, "--unlabelled", folders / "rest")
    assert done.exit_code == 0, (done.output, done.exception)
    assert "Accuracy, with unlabelled images" in done.output
    assert "also uses the confidences of 40 images without labels (PPI++)" in " ".join(done.output.split())


def test_numbers_are_those_of_the_answers(folders: Path, calibration: Path, tmp_path: Path) -> None:
    out = tmp_path / "numbers.json"
    done = run(folders / "rest", "--calibration", calibration, "--coverage", 0.8, "--max-error", 0.9, "--out", out)
    assert done.exit_code == 0, done.output
    found = json.loads(out.read_text())
    assert (found["images"], found["left_out"]) == (40, {USED: 0, UNREADABLE: 0})
    classify = poise.Classifier(LABELS, **OPTIONS, calibration=calibration, coverage=0.8, max_error=0.9)
    paths = sorted((folders / "rest").rglob("*.png"))
    truth = [path.parent.name.replace("_", " ") for path in paths]
    results = [row["zero-shot"] for row in classify(paths)]
    right = [result.label == label for result, label in zip(results, truth, strict=True)]
    answered = [result.decision == "answer" for result in results]
    assert any(answered)
    covered = [label in result.prediction_set for result, label in zip(results, truth, strict=True)]
    wrong = sum(sure and not good for sure, good in zip(answered, right, strict=True))
    want = {
        "accuracy": sum(right) / 40,
        "answered": sum(answered) / 40,
        "answered_error": wrong / sum(answered),
        "coverage": sum(covered) / 40,
        "set_size": sum(len(result.prediction_set) for result in results) / 40,
    }
    metrics = found["methods"]["zero-shot"]
    assert {name: metrics[name]["value"] for name in want} == pytest.approx(want)
    assert all(row["low"] <= row["value"] <= row["high"] for row in metrics.values())
    assert "Wrong among the answered (promised: at most 90 %)" in done.stdout


def test_a_threshold_of_ones_own_is_evaluated_without_a_promise(folders: Path, calibration: Path) -> None:
    done = run(folders / "rest", "--calibration", calibration, "--threshold", 0.6)
    assert done.exit_code == 0, (done.output, done.exception)
    classify = poise.Classifier(LABELS, **OPTIONS, calibration=calibration)
    paths = sorted((folders / "rest").rglob("*.png"))
    answers = [row["zero-shot"] for row in classify(paths)]
    sure = [answer for answer in answers if answer.confidence >= 0.6]
    found = classify.evaluate(paths, [path.parent.name for path in paths], threshold=0.6)
    assert found.metrics()["zero-shot"]["answered"].value == len(sure) / len(answers)
    assert found.max_error is None
    assert "Answered" in done.output
    assert "promised" not in done.output
    both = run(folders / "rest", "--calibration", calibration, "--threshold", 0.6, "--max-error", 0.9)
    assert "Give one of them" in str(both.exception)


def test_images_of_the_calibration_are_left_out_and_counted(folders: Path, calibration: Path) -> None:
    paths = [*sorted((folders / "rest").rglob("*.png")), *sorted((folders / "labelled").rglob("*.png")), b"no image"]
    truth = [path.parent.name.replace("_", " ") for path in paths[:-1]] + ["cat"]
    classify = poise.Classifier(LABELS, **OPTIONS, calibration=calibration)
    found = classify.evaluate(paths, truth)
    assert (len(found), found.left_out) == (40, {USED: 40, UNREADABLE: 1})
    assert "Left out: 40 that the calibration was made with." in found.summary()


def test_calibration_images_alone_are_refused_before_they_are_computed(
    folders: Path, calibration: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Predictor, "run", None)
    refused = run(folders / "labelled", "--calibration", calibration)
    assert isinstance(refused.exception, InvalidCalibrationError)
    assert "40 that the calibration was made with" in str(refused.exception)


def test_a_page_has_the_table_and_the_figures(folders: Path, calibration: Path, tmp_path: Path) -> None:
    out = tmp_path / "page.html"
    assert run(folders / "rest", "--calibration", calibration, "--out", out).exit_code == 0
    page = out.read_text("utf-8")
    assert page.count("<svg") == 2
    assert "Share of wrong answers by share of images answered" in page
    assert "Accuracy" in page
    assert isinstance(
        run(folders / "rest", "--calibration", calibration, "--out", "x.txt").exception, InvalidOptionError
    )


def test_errors_among_the_surest_are_drawn_with_the_promise() -> None:
    drawn = risk_svg(risk_coverage([0.9, 0.8, 0.7, 0.6], [True, False, True, False]), promised=0.1, answered=0.25)
    points = re.search(r'points="([^"]+)"', drawn)
    assert points is not None
    heights = [float(point.split(",")[1]) for point in points[1].split()]
    assert [round((198 - height) / 180 * 0.5, 3) for height in heights] == [0.0, 0.5, 0.333, 0.5]
    assert drawn.count("<line") == 2
    assert "50 %" in drawn


def test_a_calibration_describes_itself(calibration: Path) -> None:
    stored = poise.Calibration.load(calibration)
    text = stored.summary()
    assert "40 images, 2 labels: american bulldog 20, cat 20" in text
    assert stored.reason in text
    page = stored._repr_html_()
    assert page.count("<svg") == 1
    assert "american bulldog 20" in page


@pytest.mark.parametrize(("hits", "images"), [(0, 20), (3, 20), (20, 20), (50, 100)])
def test_shares_have_exact_intervals(hits: int, images: int) -> None:
    want = scipy.stats.binomtest(hits, images).proportion_ci(0.95, "exact")
    found = proportion(hits, images)
    assert (found.low, found.high) == pytest.approx((want.low, want.high))


def test_folders_and_labels_with_spaces_are_one_label(folders: Path, calibration: Path) -> None:
    """A calibration of the command line fits labels that Python read off folders, and answers have their names."""
    names = [path.name for path in sorted((folders / "rest").iterdir())]
    assert names[0] == "american_bulldog"
    classify = poise.Classifier(names, **OPTIONS, calibration=calibration)
    paths = sorted((folders / "rest").rglob("*.png"))
    assert {row["zero-shot"].label for row in classify(paths)} <= set(names)
    found = classify.evaluate(paths, [path.parent.name for path in paths])
    again = poise.Classifier(LABELS, **OPTIONS, calibration=calibration)
    want = again.evaluate(paths, [path.parent.name.replace("_", " ") for path in paths])
    assert found.metrics() == want.metrics()


def test_calibrate_prints_labels_and_counts(folders: Path, tmp_path: Path) -> None:
    options = ["--model", "tiny", "--method", "zero-shot", "--device", "cpu", "--out", str(tmp_path / "c.json")]
    said = CliRunner().invoke(app, ["calibrate", str(folders / "labelled"), *options]).stdout
    assert said.strip().startswith(
        "40 images, 2 labels: american bulldog 20, cat 20. Give --labels-file if images may have"
    )


def test_calibrate_ends_with_a_summary_in_two_sentences(folders: Path, tmp_path: Path) -> None:
    options = ["--model", "tiny", "--method", "zero-shot", "--device", "cpu", "--out", str(tmp_path / "c.json")]
    for errors, said in {"0.9": "From a raw confidence of 0.", "0.08": "No threshold can be certified"}.items():
        done = CliRunner().invoke(app, ["calibrate", str(folders / "labelled"), "--max-error", errors, *options])
        text = " ".join(done.stdout.split())
        assert re.search(r"In short: zero-shot is right on \d+\.\d % of 40 images \(", text)
        assert said in text.partition("In short")[2]


def test_labels_that_a_calibration_has_not_are_named(folders: Path, calibration: Path, tmp_path: Path) -> None:
    (tmp_path / "rabbit").mkdir()
    (tmp_path / "rabbit" / "0.png").symlink_to(folders / "rest" / "cat" / "0.png")
    said = str(run(tmp_path, "--calibration", calibration).exception)
    assert "'rabbit'" in said
    assert "the labels of a calibration are fixed: calibrate again" in said


def test_mistakes_are_listed_by_label_by_pair_and_one_by_one(folders: Path, calibration: Path, tmp_path: Path) -> None:
    done = run(folders / "rest", "--calibration", calibration, "--max-error", 0.9, "--out", tmp_path / "all.csv")
    with (tmp_path / "all.csv").open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 40
    wrong = [row for row in rows if row["label"] != row["answer"]]
    assert wrong
    assert [row for row in rows if row["correct"] == "False"] == wrong
    run(folders / "rest", "--calibration", calibration, "--max-error", 0.9, "--out", tmp_path / "all.json")
    found = json.loads((tmp_path / "all.json").read_text("utf-8"))
    listed = found["mistakes"]["zero-shot"]
    assert {row["source"] for row in listed} == {row["source"] for row in wrong}
    assert [row["confidence"] for row in listed] == sorted((row["confidence"] for row in listed), reverse=True)
    assert set(listed[0]) == {"source", "label", "answer", "confidence", "decision"}
    assert sum(row["images"] for row in found["confusions"]["zero-shot"]) == len(wrong)
    counts = {row["label"]: (row["images"], row["correct"]) for row in found["by_label"]["zero-shot"]}
    for label in LABELS:
        assert counts[label] == (20, 20 - sum(row["label"] == label for row in wrong))
    about = found["about"]
    assert (about["calibration"], about["images"]) == (str(calibration), str(folders / "rest"))
    assert about["labels"] == "2: american bulldog, cat"
    shown = " ".join(done.stdout.split())
    for part in ("Accuracy of each label", "Most confused", f"Wrong answers, the surest first (10 of {len(wrong)})"):
        assert part in shown
    run(folders / "rest", "--calibration", calibration, "--out", tmp_path / "page.html")
    page = (tmp_path / "page.html").read_text("utf-8")
    assert page.count(".png</td>") == min(len(wrong), 50)
    assert f"<li>calibration: {calibration}</li>" in page
    assert "<li>date: 2" in page


def test_without_mistakes_there_is_nothing_to_list() -> None:
    probs = np.array([[0.9, 0.1], [0.2, 0.8], [0.6, 0.4]])
    part = Answered(probs=probs, raw=probs.max(1), labels=np.array([0, 1, 0]))
    assert listings(part, LABELS, ["a", "b", "c"], 10) == []
    part = Answered(probs=probs, raw=probs.max(1), labels=np.array([1, 0, 1]))
    assert confusions(part, LABELS) == [("cat", "american bulldog", 2), ("american bulldog", "cat", 1)]
    assert [row["source"] for row in mistakes(part, LABELS, ["a", "b", "c"])] == ["a", "b", "c"]
    assert label_counts(part, LABELS) == [("cat", 2, 0), ("american bulldog", 1, 0)]


def test_images_without_an_answer_are_named(folders: Path, calibration: Path, tmp_path: Path) -> None:
    lines = [f"{path},{path.parent.name}" for path in sorted((folders / "rest").rglob("*.png"))[::8]]
    (tmp_path / "text.png").write_text("no image")
    table = tmp_path / "truth.csv"
    table.write_text("\n".join(["path,label", *lines, "gone.png,cat", "text.png,cat"]))
    done = run(table, "--calibration", calibration, "--out", tmp_path / "all.json")
    assert done.exit_code == 3
    assert f"left out: {tmp_path}/gone.png: '{tmp_path}/gone.png' does not exist" in done.stderr
    assert f"left out: {tmp_path}/text.png: '{tmp_path}/text.png' is not an image" in done.stderr
    failures = json.loads((tmp_path / "all.json").read_text("utf-8"))["failures"]
    assert [Path(failure["source"]).name for failure in failures] == ["gone.png", "text.png"]
    table.write_text("path,label\ngone.png,cat")
    none = run(table, "--calibration", calibration)
    assert "None of 1 image can be used: 1 without an answer, such as" in str(none.exception)
    assert "does not exist" in str(none.exception)


def test_it_needs_a_calibration() -> None:
    with pytest.raises(InvalidOptionError, match="no calibration"):
        poise.Classifier(LABELS, **OPTIONS).evaluate([b""], ["cat"])
