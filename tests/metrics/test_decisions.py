"""AUROC, prediction sets and withheld answers against hand-computed values and plain loops."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from poise import metrics
from poise.errors import InvalidOptionError
from tests.oracles import metrics as oracle


@pytest.mark.parametrize("levels", [3, 10, 10**9])
def test_auroc_equals_the_oracle(levels: int) -> None:
    generator = np.random.default_rng(levels)
    confidence = np.round(generator.random(90) * levels) / levels
    correct = generator.random(90) < 0.3 + 0.6 * confidence
    assert metrics.auroc(confidence, correct) == pytest.approx(oracle.auroc(confidence, correct), abs=1e-12)
    assert metrics.auroc(-confidence + 1, correct) == pytest.approx(1 - metrics.auroc(confidence, correct), abs=1e-12)


def test_auroc_without_two_sides_is_a_half() -> None:
    assert metrics.auroc([0.9, 0.4], [True, True]) == 0.5
    assert metrics.auroc([0.9, 0.4], [False, False]) == 0.5
    one = metrics.Sample.of_top([0.9, 0.4, 0.3], [True, True, False])
    draws = metrics.estimate([one], names=["auroc"], resamples=200)["auroc"].draws
    assert np.isfinite(draws).all()
    assert 0.5 in draws  # resamples without the wrong answer


def decided() -> metrics.Sample:
    correct = [True, True, False, False]
    top = metrics.Sample.of_top([0.9, 0.8, 0.7, 0.2], correct)
    return metrics.Sample(
        top.confidence,
        top.correct,
        labels=np.array([0, 0, 3, 3]),
        set_sizes=np.array([1, 1, 2, 4]),
        covered=np.array([True, True, False, True]),
        answered=np.array([True, True, True, False]),
    )


def test_decisions_by_hand() -> None:
    values = {name: metrics.get(name).value(decided()) for name in metrics.available(decided())}
    assert values["coverage"] == 0.75
    assert values["set_size"] == 2
    assert values["classwise_coverage"] == 0.75
    assert values["worst_coverage"] == 0.5
    assert values["answered"] == 0.75
    assert values["answered_error"] == pytest.approx(1 / 3)


def test_no_answer_is_no_error() -> None:
    assert metrics.answered_error([False, False], [True, False]) == 0
    assert metrics.classwise_coverage([True, False, True], [5, 2, 2]).tolist() == [0.5, 1]


def test_the_error_of_answers_has_no_value_without_answers() -> None:
    none = replace(decided(), answered=np.zeros(4, dtype=bool))
    assert metrics.get("answered").available(none)
    assert "answered_error" not in metrics.available(none)
    assert "answered_error" not in metrics.estimate([decided(), none], resamples=5)
    with pytest.raises(InvalidOptionError, match=r"'answered_error' needs at least one answered image"):
        metrics.estimate([none], names=["answered_error"])


def test_decisions_need_sets_and_answers() -> None:
    plain = metrics.Sample.of([[0.2, 0.8]], [1])
    assert not {"coverage", "set_size", "answered"} & set(metrics.available(plain))
    with pytest.raises(InvalidOptionError, match=r"'coverage' needs prediction sets and the labels"):
        metrics.estimate([plain], names=["coverage"])
