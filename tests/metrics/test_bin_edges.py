"""The edge rule: (lower, upper], 0 in the first bin, 1 in the last, whatever precision spells the edge."""

from __future__ import annotations

import numpy as np
import pytest

from poise.metrics import ece, equal_width, sce
from poise.metrics.binning import assign, edges, published_edges
from tests.oracles import metrics as oracle

# The published float32 edges, written out with the digits that tell neighbouring float32 numbers apart. They are not
# read from torch.linspace, whose last bits depend on the CPU's instructions.
PUBLISHED = {
    5: [0.0, 0.2, 0.4, 0.6, 0.8, 1.0],
    15: [
        0.0,
        0.06666667,
        0.13333334,
        0.20000002,
        0.26666668,
        0.33333334,
        0.40000004,
        0.4666667,
        0.5333333,
        0.59999996,
        0.6666666,
        0.73333335,
        0.8,
        0.8666667,
        0.93333334,
        1.0,
    ],
    20: [
        0.0,
        0.05,
        0.1,
        0.15,
        0.2,
        0.25,
        0.3,
        0.35,
        0.4,
        0.45000002,
        0.5,
        0.55,
        0.6,
        0.65,
        0.7,
        0.75,
        0.8,
        0.85,
        0.9,
        0.95,
        1.0,
    ],
}


@pytest.mark.parametrize("bins", [1, 2, 5, 10, 15, 20, 30, 100])
def test_every_edge_belongs_to_the_bin_below_it(bins: int) -> None:
    below = np.maximum(np.arange(bins + 1) - 1, 0)
    spellings = {
        "k / n": np.arange(bins + 1) / bins,
        "numpy linspace": np.linspace(0, 1, bins + 1),
        "float32": (np.arange(bins + 1) / bins).astype(np.float32),
        "published": np.array(oracle.edges(bins), dtype=np.float32),
        "ours": edges(bins),
    }
    for name, spelling in spellings.items():
        assert assign(spelling, bins).tolist() == below.tolist(), name


@pytest.mark.parametrize("bins", [2, 10, 15, 20])
def test_just_off_the_edges(bins: int) -> None:
    inner = edges(bins)[1:-1]
    assert assign(np.nextafter(inner, 1), bins).tolist() == list(range(1, bins))
    assert assign(np.nextafter(inner, 0), bins).tolist() == list(range(bins - 1))
    assert assign(inner + 1e-6, bins).tolist() == list(range(1, bins))


def test_all_float32_neighbours_of_the_edges_fall_as_published() -> None:
    theirs = np.array(PUBLISHED[20], dtype=np.float32)
    near = [theirs[1:-1]]
    for direction in (np.float32(0), np.float32(1)):
        step = theirs[1:-1]
        for _ in range(3):
            step = np.nextafter(step, direction)
            near.append(step)
    values = np.concatenate(near)
    published = np.searchsorted(theirs.astype(np.float64), values.astype(np.float64), side="left") - 1
    assert assign(values).tolist() == published.tolist()


@pytest.mark.parametrize("bins", PUBLISHED)
def test_published_edges_are_these(bins: int) -> None:
    written = np.array(PUBLISHED[bins], dtype=np.float32).tolist()
    assert published_edges(bins).tolist() == written
    assert oracle.edges(bins) == written


@pytest.mark.parametrize("bins", [1, 2, 7, 13, 30, 64, 100, 1000])
def test_published_edges_round_the_exact_ones_once(bins: int) -> None:
    assert published_edges(bins).tolist() == oracle.edges(bins)


def test_zero_and_one_are_counted() -> None:
    table = equal_width([0.0, 1.0, 1.0], [True, True, False])
    assert table.count[[0, -1]].tolist() == [1, 2]
    assert table.count.sum() == 3
    assert ece([0.0, 1.0], [False, True]) == 0
    assert ece([0.0], [True]) == 1.0  # the published code, which drops confidence 0, would say 0


def test_sce_at_probability_zero_and_one() -> None:
    assert sce([[1.0, 0.0], [0.0, 1.0]], [0, 1]) == 0
    assert sce([[1.0, 0.0]], [1]) == 1.0


def test_empty_bins_are_nan() -> None:
    table = equal_width([0.97], [True])
    assert len(table) == 20
    assert np.isnan(table.accuracy[:-1]).all()
    assert table.gap[:-1].tolist() == [0.0] * 19
    assert table.expected_gap == pytest.approx(0.03)
