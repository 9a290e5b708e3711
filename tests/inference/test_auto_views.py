"""views="auto": the fewest views whose answers agree with 64."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from scipy import stats
from typer.testing import CliRunner

from poise import Calibration, Classifier
from poise.cli.app import app
from poise.errors import InvalidOptionError
from poise.inference import auto_views
from poise.inference.auto_views import choose_views, decide
from poise.inference.variants import with_views

LABELS = ["cat", "dog"]


def images(count: int) -> list[np.ndarray]:
    return list(np.random.default_rng(0).integers(0, 256, (count, 20, 24, 3), np.uint8))


def table(wrong: int, shift: float, count: int = 100) -> np.ndarray:
    """Answers [1, count, 2], of which the first ``wrong`` have the other label and all another confidence."""
    first = np.full(count, 0.8 - shift)
    first[:wrong] = 1 - first[:wrong]
    return np.stack([first, 1 - first], -1)[None]


@pytest.mark.parametrize(
    ("fewer", "views"),
    [
        ({32: (0, 0.0), 16: (1, 0.01), 8: (1, 0.02), 4: (20, 0.0)}, 8),
        ({32: (0, 0.0), 16: (0, 0.1), 8: (0, 0.0)}, 32),  # the sequence ends at the first failure
        ({32: (40, 0.0), 16: (0, 0.0)}, 64),
        ({}, 64),
    ],
)
def test_the_fewest_views_that_pass_in_a_row(fewer: dict[int, tuple[int, float]], views: int) -> None:
    answers = {64: table(0, 0.0), **{count: table(*facts) for count, facts in fewer.items()}}
    assert decide(answers).views == views


def test_bounds_are_those_of_scipy() -> None:
    rng = np.random.default_rng(0)
    one, other = rng.dirichlet([1, 1, 1], (2, 50)), rng.dirichlet([1, 1, 1], (2, 50))
    (row,) = decide({64: one, 32: other}).tested
    wrong = max((one[k].argmax(-1) != other[k].argmax(-1)).sum() for k in range(2))
    assert row.labels == pytest.approx((wrong / 50, stats.beta.ppf(0.95, wrong + 1, 50 - wrong)))
    changes = np.abs(one.max(-1) - other.max(-1))
    bounds = [change.mean() + stats.t.ppf(0.95, 49) * stats.sem(change) for change in changes]
    assert row.confidence[1] == pytest.approx(max(bounds))


def test_the_sample_is_answered_as_by_a_classifier_with_so_many_views(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(auto_views, "FULL", 8)  # 64 views would take long
    monkeypatch.setattr(auto_views, "CANDIDATES", (4,))
    monkeypatch.setattr(auto_views, "FEWEST", 6)
    classifier = Classifier(LABELS, model="tiny", method="tpt", views=8, device="cpu")
    choice = choose_views(classifier, images(6))
    assert choice.images == 6
    full, fewer = (with_views(classifier, count).predict_proba(images(6)) for count in (8, 4))
    assert choice.tested[0].labels[0] == pytest.approx((full.argmax(1) != fewer.argmax(1)).mean())
    assert choice.tested[0].confidence[0] == pytest.approx(np.abs(full.max(1) - fewer.max(1)).mean(), abs=1e-5)


def test_zero_shot_needs_one_view_and_few_images_are_refused() -> None:
    assert choose_views(Classifier(LABELS, model="tiny", method="zero-shot", device="cpu"), []).views == 1
    with pytest.raises(InvalidOptionError, match="60 or more"):
        choose_views(Classifier(LABELS, model="tiny", method="tpt", device="cpu"), images(5))


def test_auto_without_a_calibration_says_what_to_do() -> None:
    with pytest.raises(InvalidOptionError, match="calibrate --views auto"):
        Classifier(LABELS, model="tiny", views="auto", device="cpu")
    with pytest.raises(InvalidOptionError, match="whole number"):
        Classifier(LABELS, model="tiny", views="many", device="cpu")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for at, pixels in enumerate(images(30)):
        path = tmp_path / "images" / LABELS[at % 2] / f"{at}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels).save(path)
    return tmp_path / "images"


def test_the_command_line_records_the_choice(folder: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def choose(classifier: Any, paths: Any) -> Any:
        assert len(paths) == 30
        return auto_views.ViewChoice(4, 30, ())

    monkeypatch.setattr(auto_views, "choose_views", choose)
    out, run, options = tmp_path / "c.json", CliRunner(), ["--model", "tiny", "--views", "auto"]
    done = run.invoke(app, ["calibrate", str(folder), "--out", str(out), "--method", "tpt", *options])
    assert done.exit_code == 0, done.output
    assert Calibration.load(out).conditions.views == 4
    assert "--views auto: 4 views" in done.output
    calibrated = Classifier(LABELS, model="tiny", method="tpt", views="auto", calibration=out, device="cpu")
    assert calibrated.recipe.views == 4
    shown = run.invoke(app, ["classify", str(folder), "--labels", "cat,dog", "--method", "tpt", *options])
    assert shown.exit_code == 0, shown.output
    assert "4 views" in shown.output
    wrong = run.invoke(app, ["classify", str(folder), "--labels", "cat,dog", "--views", "few"])
    assert wrong.exit_code == 2
