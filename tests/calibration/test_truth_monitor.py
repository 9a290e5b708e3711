"""Labels that come later: false alarms over whole streams, and alarms where promises are broken."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest

from poise.calibration import Calibration, calibrate_probabilities
from poise.calibration.truth_monitor import LOWER, CoverageTest, TruthMonitor
from poise.errors import InvalidOptionError


def drawn(images: int, generator: np.random.Generator, error: float = 0.0) -> tuple[np.ndarray, np.ndarray]:
    """Return probabilities of three labels and correct labels; a share of these is replaced at random."""
    probs = generator.dirichlet([0.15, 0.15, 0.15], images)
    truth = (np.cumsum(probs, 1) < generator.random((images, 1))).sum(1).clip(max=2)
    return probs, np.where(generator.random(images) < error, generator.integers(0, 3, images), truth)


def stream(
    calibration: Calibration, probs: np.ndarray, truth: np.ndarray, seed: int, alpha: float = 0.2
) -> TruthMonitor:
    watch = calibration.truth_monitor(alpha, coverage=0.8, max_error=0.4, seed=seed)
    sets = calibration.apply(probs, coverage=0.8).sets
    for row, label, members in zip(probs, truth, sets, strict=True):
        watch.update(float(row.max()), bool(row.argmax() == label), bool(members[label]))
    return watch


def test_false_alarms_over_whole_streams() -> None:
    """Calibrations are drawn anew, so that coverages and errors differ between streams as they do in truth."""
    generator, streams, rang = np.random.default_rng(0), 30, 0
    for seed in range(streams):
        calibration = calibrate_probabilities(*drawn(60, generator))
        rang += stream(calibration, *drawn(150, generator), seed).alarm
    assert rang <= streams * 0.2 + 4 * math.sqrt(streams * 0.2 * 0.8)


@pytest.mark.slow
def test_false_alarms_of_each_test_in_many_streams() -> None:
    generator, streams, rang = np.random.default_rng(1), 1000, dict.fromkeys(("answers", "coverage", "error"), 0)
    for seed in range(streams):
        calibration = calibrate_probabilities(*drawn(60, generator))
        for name in stream(calibration, *drawn(400, generator), seed).rang:
            rang[name] += 1
    for found in rang.values():  # each has a third of alpha
        assert found / streams <= 0.2 / 3 + 4 * math.sqrt(0.2 / 3 / streams)


def test_more_errors_raise_each_alarm() -> None:
    generator = np.random.default_rng(2)
    calibration = calibrate_probabilities(*drawn(200, generator))
    watch = stream(calibration, *drawn(600, generator, error=0.9), 0, alpha=0.01)
    assert {*watch.rang} == {"answers", "coverage", "error"}
    assert "Alarm at image" in str(watch)
    assert all(value >= 100 for value in watch.evidence.values())
    fine = stream(calibration, *drawn(100, generator), 0, alpha=0.01)
    assert (fine.alarm, fine.images) == (False, 100)
    assert "No sign after 100 labelled images that sets contain" in str(fine)


def slow_capital(images: int, rank: int, outcomes: list[bool]) -> float:
    """Return the ratio of Polya urns, in exact fractions."""
    total = Fraction(0)
    for share in LOWER:
        ratio, lower = Fraction(1), [Fraction(share) * rank, images + 1 - Fraction(share) * rank]
        usual = [Fraction(rank), Fraction(images + 1 - rank)]
        for covered in outcomes:
            at = 0 if covered else 1
            ratio *= lower[at] / usual[at]
            lower[at] += 1
            usual[at] += 1
        total += ratio
    return float(total / len(LOWER))


def test_the_capital_of_coverage() -> None:
    outcomes = (np.random.default_rng(0).random(30) < 0.7).tolist()
    test = CoverageTest(20, 17)
    for covered in outcomes:
        test.update(covered)
    assert math.exp(test.log_capital) == pytest.approx(slow_capital(20, 17, outcomes))
    for at in range(30):  # a hit in place of a miss never raises it
        assert slow_capital(20, 17, [*outcomes[:at], True, *outcomes[at + 1 :]]) <= slow_capital(20, 17, outcomes)


def test_what_is_refused() -> None:
    calibration = calibrate_probabilities(*drawn(60, np.random.default_rng(3)))
    with pytest.raises(InvalidOptionError, match="alpha is 2"):
        calibration.truth_monitor(2)
    with pytest.raises(InvalidOptionError, match=r"A confidence is 1\.5"):
        calibration.truth_monitor().update(1.5, True)
    with pytest.raises(InvalidOptionError, match="no prediction set"):
        calibration.truth_monitor(coverage=0.8).update(0.5, True)
