"""The paired intervals of tools/frameworks.py, on answers whose scores are plain to see."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

sys.path.append(str(Path(__file__).parents[2] / "tools"))
paired = pytest.importorskip("paired", reason="the sdist may come without tools")


def answers(right: list[bool], sure: float) -> tuple[np.ndarray, np.ndarray]:
    """Two classes, label 0 throughout: answers of one confidence, right where it is said."""
    return np.array([[sure, 1 - sure] if good else [1 - sure, sure] for good in right]), np.zeros(len(right), int)


def test_scores_and_differences_are_percents_with_intervals_around_them() -> None:
    right = [True] * 80 + [False] * 20
    before = paired.scores(*answers(right, 0.7))
    assert before["accuracy"].value == pytest.approx(80)
    assert before["ECE"].value == pytest.approx(10)  # one bin: |0.8 - 0.7|
    low, high = before["accuracy"].bounds
    assert 68 < low < 75 < 85 < high < 92  # four images in a hundred, twice
    after = paired.scores(*answers(right, 0.9))
    surer = after["ECE"] - before["ECE"]
    assert surer.value == pytest.approx(0)
    same = after["accuracy"] - before["accuracy"]
    assert same.bounds == pytest.approx((0, 0))  # the same images are right on every resample


def test_a_mean_over_seeds_and_its_row() -> None:
    before = paired.scores(*answers([True, False] * 50, 0.6))
    after = [paired.scores(*answers([True] * count + [False] * (100 - count), 0.6)) for count in (90, 100)]
    row = paired.Row("mean", paired.mean(after), before)
    accuracy, _, gain, _ = row.cells()
    assert accuracy.startswith("95.00 [")
    assert gain.startswith("+45.00* [+")
    assert row.record()["accuracy"][2] <= 100


def test_a_difference_of_rounding_is_not_marked() -> None:
    right = [True] * 60 + [False] * 40
    before, after = (paired.scores(*answers(right, sure)) for sure in (0.75, 0.75 + 1e-9))
    change = paired.Row("same", after, before).cells()[3]
    assert change == "+0.00 [+0.00, +0.00]"


def test_a_report_keeps_what_was_told(tmp_path) -> None:
    report = paired.Report(tmp_path / "deep" / "out.md", tmp_path / "records.jsonl")
    own = paired.scores(*answers([True] * 9 + [False], 0.6))
    report.table("Title", "less nothing", [paired.Row("plain", own)], {"views": 1})
    text = (tmp_path / "deep" / "out.md").read_text()
    assert "### Title" in text
    assert "| plain | 90.00 [" in text
    assert '"views": 1' in (tmp_path / "records.jsonl").read_text()
