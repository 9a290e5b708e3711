"""The alarm: equal to a plain oracle, rarely false over whole streams, and soon where images differ."""

from __future__ import annotations

import json
import math
import pickle
from dataclasses import replace

import numpy as np
import pytest
from scipy import integrate, stats

from poise.calibration import Monitor
from poise.calibration.monitor import JUMP, PRIOR, bets
from poise.errors import InvalidOptionError, UnknownNameError
from tests.calibration.test_stored import made


def oracle(calibration: np.ndarray, new: np.ndarray, seed: int) -> list[float]:
    """Evidence after each image, [n, k] and [m, k] for k kinds of values, with all ranks counted anew."""
    calibration, new = calibration.round(6), new.round(6)
    generator = np.random.default_rng(seed)
    kinds = new.shape[1]
    capitals = np.tile(PRIOR, (kinds, 1))  # of each bet
    found = []
    for at in range(len(new)):
        earlier = np.concatenate([calibration, new[:at]])
        for kind in range(kinds):
            less = (earlier[:, kind] < new[at, kind]).sum()
            equal = (earlier[:, kind] == new[at, kind]).sum() + 1
            p = (less + generator.random() * equal) / (len(earlier) + 1)
            laid = (1 - JUMP) * capitals[kind] + JUMP * capitals[kind].sum() * PRIOR
            capitals[kind] = laid * bets(p)
        found.append(capitals.sum(1).max() / kinds)
    return found


def stream(monitor: Monitor, values: np.ndarray) -> Monitor:
    for row in values:
        monitor.update(*map(float, row))
    return monitor


@pytest.mark.parametrize("digits", [9, 1])
@pytest.mark.parametrize("kinds", [1, 2])
def test_evidence_is_that_of_the_oracle(kinds: int, digits: int) -> None:
    generator = np.random.default_rng(0)
    calibration, new = generator.random((30, kinds)).round(digits), generator.beta(2, 4, (60, kinds)).round(digits)
    monitor = Monitor(*calibration.T, seed=3)
    assert stream(monitor, new).trail == pytest.approx(oracle(calibration, new, 3))
    assert (monitor.images, monitor.evidence) == (60, monitor.trail[-1])


def test_bets_are_fair() -> None:
    """Densities: under a uniform p-value each bet pays its stake on average."""
    assert PRIOR.sum() == pytest.approx(1)
    for at in range(len(PRIOR)):
        paid = integrate.quad(lambda p, at=at: bets(p)[at], 0, 1, points=[0.5])[0]
        assert paid == pytest.approx(1)
    assert (bets(0.0) >= 0).all()
    assert (bets(1.0) >= 0).all()


@pytest.mark.parametrize("kind", ["continuous", "ties", "dependent"])
def test_false_alarms_over_whole_streams(kind: str) -> None:
    """Of 400 streams, at most alpha of them, with room for chance: five standard deviations."""
    streams, generator = 400, np.random.default_rng(5)
    largest = np.empty(streams)
    for at in range(streams):
        values = generator.random((180, 2))
        if kind == "ties":
            values = values.round(1)
        if kind == "dependent":  # a match that says where the confidence lies
            values[:, 1] = np.where(values[:, 0] < 0.5, values[:, 0], 1.5 - values[:, 0])
        largest[at] = max(stream(Monitor(*values[:30].T, seed=at), values[30:]).trail)
    for alpha in (0.01, 0.05, 0.2):
        assert (largest >= 1 / alpha).sum() <= streams * alpha + 5 * math.sqrt(streams * alpha * (1 - alpha))


def test_ranks_are_uniform_with_ties() -> None:
    """A bet on low ranks gains nothing from values that are nearly all equal, such as confidences of 1."""
    generator = np.random.default_rng(2)
    last = [
        stream(Monitor(values[:20], seed=at), values[20:, None]).trail[-1]
        for at, values in enumerate(np.where(generator.random((2000, 25)) < 0.7, 1.0, 0.5))
    ]
    assert stats.ttest_1samp(last, 1.0).pvalue > 1e-6  # a martingale: its mean stays 1


@pytest.mark.parametrize(
    ("confidence", "match", "most"),
    [((2, 5), (5, 5), 40), ((5, 5), (2, 5), 40), ((10, 2), (5, 5), 60), ((0.5, 0.5), (5, 5), 150)],
    ids=["less confident", "worse match", "more confident", "both extremes"],
)
def test_power(confidence: tuple[float, float], match: tuple[float, float], most: int) -> None:
    """Calibration confidences and matches are Beta(5, 5); nine of ten shifted streams ring within some images."""
    generator, within = np.random.default_rng(1), 0
    for seed in range(50):
        new = np.stack([generator.beta(*confidence, most), generator.beta(*match, most)], 1)
        within += stream(Monitor(*generator.beta(5, 5, (2, 100)), seed=seed), new).alarm
    assert within >= 45


def test_a_change_after_many_images_is_noticed() -> None:
    generator = np.random.default_rng(4)
    new = np.concatenate([generator.beta(5, 5, 1000), generator.beta(2, 6, 80)])
    monitor = stream(Monitor(generator.beta(5, 5, 100)), new[:, None])
    assert monitor.rang is not None
    assert monitor.rang > 1000


def test_an_alarm_stays_and_names_its_image() -> None:
    monitor = Monitor(np.linspace(0, 1, 101))
    stream(monitor, np.full((20, 1), 0.001))
    first = monitor.rang
    assert first is not None
    assert [value >= 100 for value in monitor.trail].index(True) + 1 == first
    stream(monitor, np.random.default_rng(0).random((5, 1)))
    assert (monitor.alarm, monitor.rang, monitor.images) == (True, first, 25)
    assert f"alarm at image {first} of 25" in str(monitor)
    assert "No sign after 0 images" in str(Monitor([0.5]))


def test_evidence_stays_finite() -> None:
    monitor = stream(Monitor(np.linspace(0.5, 1, 20)), np.linspace(0.5, 0, 3000)[:, None])
    assert math.isfinite(monitor.evidence)
    assert monitor.alarm


def test_state_is_plain_and_continues() -> None:
    generator = np.random.default_rng(0)
    monitor = stream(Monitor(*generator.random((2, 20))), generator.random((10, 2)))
    again = Monitor.from_dict(json.loads(json.dumps(monitor.to_dict())))
    pickled = pickle.loads(pickle.dumps(monitor))
    more = generator.random((10, 2))
    assert stream(again, more).trail == stream(monitor, more).trail == stream(pickled, more).trail


def test_a_calibration_makes_it() -> None:
    calibration = made()
    part = replace(calibration.methods["one"], match=np.linspace(0, 1, len(calibration)))
    monitor = replace(calibration, methods={"one": part}).monitor(0.05, method="one")
    assert monitor.to_dict()["match"] == part.match.tolist()
    assert monitor.to_dict()["confidence"] == part.confidence.tolist()
    assert monitor.alpha == 0.05
    assert "match" not in calibration.monitor().to_dict()  # of probabilities alone
    with pytest.raises(UnknownNameError, match="three"):
        calibration.monitor(method="three")


def test_what_is_refused() -> None:
    with pytest.raises(InvalidOptionError, match="alpha is 0"):
        Monitor([0.5], alpha=0)
    for wrong in (1.5, math.nan):
        with pytest.raises(InvalidOptionError, match="confidence is"):
            Monitor([0.5]).update(wrong)
    for wrong in (None, math.nan):
        with pytest.raises(InvalidOptionError, match="match of an image"):
            Monitor([0.5], [0.5]).update(0.5, wrong)
