"""Small prediction sets by the oracle, with ties and at the edges."""

from __future__ import annotations

import math

import numpy as np
import pytest

from poise.calibration.conformal import quantile, scores
from tests.oracles import calibration as oracle

SMALL = [
    [0.125] * 8,
    [0.5, 0.5, 0, 0, 0, 0, 0, 0],
    [0.3, 0.1, 0.1, 0.1, 0.1, 0.1, 0.1, 0.1],
    [0, 0, 0, 0, 0, 0, 0, 1.0],
    [0.05, 0.05, 0.2, 0.2, 0.2, 0.1, 0.1, 0.1],
    [0.9, 0.1, 0, 0, 0, 0, 0, 0],
]


@pytest.mark.parametrize("name", list(scores))
@pytest.mark.parametrize("kind", [np.float32, np.float64])
def test_small_sets_with_ties(name: str, kind: type) -> None:
    given = np.array(SMALL, dtype=kind)
    rows, u = given.astype(np.float64).tolist(), [0.0, 0.25, 0.5, 0.75, 1.0, 0.4]
    score = scores.get(name)
    for label in range(8):
        expected = [oracle.SCORES[name](row, label, noise) for row, noise in zip(rows, u, strict=True)]
        np.testing.assert_allclose(score.of_labels(given, [label] * 6, u), expected, atol=1e-7)
    for limit in (-0.5, 0.003, 0.061, 0.13, 0.333, 0.47, 0.71, 0.957, 1.5):  # none of them is a score
        members, empty = score.sets(given, limit, u)
        plain, none = oracle.sets(name, rows, [limit] * 8, u)
        assert (members.tolist(), empty.tolist()) == (plain, none)
    limits = [0.333, 0.957, 0.13, 0.71, 0.47, 0.061, 1.5, 0.22]
    members, empty = score.sets(given, limits, u)
    plain, none = oracle.sets(name, rows, limits, u)
    assert (members.tolist(), empty.tolist()) == (plain, none)


def test_of_many_tied_classes_the_first_are_inside() -> None:
    tied = np.full((1, 200), 1 / 200)
    for limit in (0.4024, np.full(200, 0.4024)):  # 80 ranks, and a bit
        members, _ = scores.get("aps").sets(tied, limit, [0.0])
        assert members[0].tolist() == [True] * 80 + [False] * 120


def test_sets_of_one_class() -> None:
    for name in scores:
        members, empty = scores.get(name).sets([[1.0], [1.0]], 0.5, [0.2, 0.9])
        assert members.tolist() == [[True], [True]]
        assert empty.tolist() == ([False, False] if name == "lac" else [True, False])


def test_the_quantile_of_many_scores_is_that_of_sorted_scores() -> None:
    for seed in range(20):
        values = np.random.default_rng(seed).random(2000)
        for coverage, rank in ((0.0004, 1), (0.1, 201), (0.5, 1001), (0.9, 1801)):
            assert quantile(values, coverage) == np.sort(values)[rank - 1]


def test_a_limit_between_two_numbers_of_single_precision_is_exact() -> None:
    """A class at 0.3 in float32 is outside where the limit is above it, however little, in float64."""
    given = np.array([[0.3, 0.7]], dtype=np.float32)
    p = float(given[0, 0])
    for above, inside in ((2e-8, False), (0.0, True)):  # of which 1e-8 is slack
        for limit in (-math.log(p + above), np.full(2, -math.log(p + above))):
            assert scores.get("lac").sets(given, limit).members[0].tolist() == [inside, True]
            assert scores.get("lac").sets(given.astype(np.float64), limit).members[0].tolist() == [inside, True]
