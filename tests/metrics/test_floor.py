"""The sampling floor of ECE against exact expectations and simulated answers."""

from __future__ import annotations

import numpy as np
import pytest

from poise import metrics
from poise.errors import InvalidOptionError
from tests.oracles import metrics as oracle


def confidences(kind: str, count: int) -> np.ndarray:
    generator = np.random.default_rng(count)
    return {
        "spread": generator.random(count),
        "sharp": 1 - generator.beta(0.3, 3, count),
        "extreme": 1 - 10.0 ** -generator.uniform(0, 6, count),
        "equal": np.full(count, 0.83),
    }[kind]


@pytest.mark.parametrize("count", [1, 2, 7, 40, 300])
@pytest.mark.parametrize("kind", ["spread", "sharp", "extreme", "equal"])
def test_floor_is_nearly_the_exact_expectation(kind: str, count: int) -> None:
    values = confidences(kind, count)
    assert metrics.ece_floor(values) == pytest.approx(oracle.ece_floor(values.tolist()), rel=0.003)


@pytest.mark.parametrize("count", [20, 300])
def test_floor_of_the_least_favourable_bin_is_within_a_fortieth(count: int) -> None:
    values = np.where(np.arange(count) % 20, 0.99999, 0.951)  # both ends of the last bin
    assert metrics.ece_floor(values) == pytest.approx(oracle.ece_floor(values.tolist()), rel=0.025)


def test_floor_is_the_mean_ece_of_calibrated_answers() -> None:
    values = confidences("sharp", 250)
    drawn = np.random.default_rng(1).random((2000, 250)) < values
    simulated = [metrics.ece(values, correct) for correct in drawn]
    error = 5 * np.std(simulated) / np.sqrt(len(simulated))
    assert metrics.ece_floor(values) == pytest.approx(np.mean(simulated), abs=error + 0.003 * np.mean(simulated))


def test_floor_of_certain_answers_is_nothing() -> None:
    assert metrics.ece_floor([1.0] * 9 + [0.0] * 3) == pytest.approx(0, abs=1e-12)
    assert metrics.ece_floor([0.5]) == pytest.approx(0.5)


def test_floor_is_continuous_where_a_whole_number_of_hits_is_expected() -> None:
    below, on, above = (metrics.ece_floor(np.full(10, share)) for share in (0.7 - 1e-9, 0.7, 0.7 + 1e-9))
    assert (below, above) == pytest.approx((on, on), abs=1e-8)


def test_floor_falls_with_the_number_of_images() -> None:
    floors = [metrics.ece_floor(np.resize([0.3, 0.55, 0.8, 0.93], count)) for count in (100, 400, 1600)]
    assert floors[0] / floors[1] == pytest.approx(2, rel=0.05)
    assert floors[1] / floors[2] == pytest.approx(2, rel=0.02)


def test_ece_names_its_floor() -> None:
    row = metrics.get(metrics.get("ece").floor)
    assert row.name == "ece_floor"
    assert row.higher_is_better is None
    assert row.direction == ""


def test_bad_confidences_have_no_floor() -> None:
    with pytest.raises(InvalidOptionError):
        metrics.ece_floor([1.2])
