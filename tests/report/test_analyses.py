from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from poise.report.records.runs import load
from poise.report.records.scores import scoreboard
from poise.report.tables.analyses import ablation, analyse, analysis_tables, split


def test_split_by_hand() -> None:
    found = split(np.array([0.2, 0.4, 0.9]), np.array([True, True, False]))
    assert (found.correct, found.wrong) == pytest.approx((0.3, 0.9))
    assert found.correct_error == pytest.approx(0.1)
    assert np.isnan(found.wrong_error)
    assert np.isnan(split(np.array([0.5]), np.array([True])).wrong)


def test_analyses_are_read_off_the_rows(runs: Path) -> None:
    group = next(load(runs).chosen(dataset="eurosat", method="tpt"))
    found = analyse(group)
    rows = group.pooled
    wrong = ~rows["correct"]
    assert len(wrong) == 160
    assert found.confidence.wrong == pytest.approx(rows["confidence"][wrong].mean())
    assert found.entropy_change.wrong == pytest.approx((rows["entropy"] - rows["init_entropy"])[wrong].mean())
    assert found.entropy_change.correct < 0  # the generated tpt sharpens
    assert found.discrepancy == pytest.approx((rows["target_prediction"] != rows["prediction"]).mean())
    assert (found.atfd, found.init_atfd) == pytest.approx((0.422, 0.4))
    assert found.repaired - found.broken == pytest.approx(
        rows["correct"].mean() - (rows["init_prediction"] == rows["label"]).mean()
    )


def test_zero_shot_changes_nothing(runs: Path) -> None:
    found = analyse(next(load(runs).chosen(dataset="eurosat", method="zero-shot")))
    assert found.repaired == found.broken == 0
    assert found.entropy_change.correct == pytest.approx(0, abs=1e-12)


def test_ablation_grid(runs: Path) -> None:
    records = load(runs)
    board = scoreboard(records, metrics=("accuracy", "ece"), resamples=10)
    corners = ablation(board, records.settings[0])
    assert [(row["temperature"], row["divergence"]) for row in corners] == [
        (False, False),
        (True, False),
        (False, True),
        (True, True),
    ]
    score = board.average(records.settings[0], ["caltech101", "eurosat"], "kld", "ece")
    assert score is not None
    assert 0 < corners[2]["ece_floor"] < corners[2]["ece"]
    assert corners[2]["ece"] == pytest.approx(100 * score.value)


def test_table_has_a_line_for_every_group(runs: Path) -> None:
    table = analysis_tables(load(runs))[0]
    assert len(table.lines) == len(table.records) == 14
    assert {len(line.cells) for line in table.lines} == {len(table.columns)}
