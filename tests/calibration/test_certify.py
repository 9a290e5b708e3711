"""Certified thresholds against golden numbers, a slow oracle, and at the edges."""

from __future__ import annotations

import json
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from safetensors.numpy import load_file

from poise.calibration import Certificate, certify, images_for_error, upper_bound
from poise.calibration.certify import first_rank
from poise.errors import InvalidOptionError
from tests.oracles import calibration as oracle

GOLDEN = Path(__file__).parents[1] / "golden"
TENSORS = load_file(GOLDEN / "conformal.safetensors")
CASES = [case for case in json.loads((GOLDEN / "conformal.json").read_text())["cases"] if case["method"] == "selective"]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["id"])
def test_golden_thresholds(case: dict) -> None:
    confidence, wrong = (TENSORS[case["inputs"][role]] for role in ("confidence", "wrong"))
    tensors = {role: TENSORS[name] for role, name in case["outputs"].items()}
    settings = case["settings"]
    bounds = upper_bound(tensors["errors"], tensors["answered"], settings["delta"])
    np.testing.assert_allclose(bounds, tensors["ucb"], atol=1e-9)
    clear = np.abs(bounds - settings["risk"]) > 1e-9
    passes = tensors["mapie_p_value"] <= settings["delta"]
    np.testing.assert_array_equal((bounds <= settings["risk"])[clear], passes[clear])
    needed = images_for_error(settings["risk"], settings["delta"])
    found = certify(confidence, wrong == 0, settings["risk"], delta=settings["delta"], start=needed)
    assert found.threshold == case["values"]["threshold"]
    assert found.images == len(wrong)


@pytest.mark.parametrize("delta", [0.01, 0.05, 0.3])
def test_upper_bounds_equal_the_oracle(delta: float) -> None:
    cases = [(errors, n) for n in (1, 2, 7, 40) for errors in {0, 1, n // 2, n - 1, n}]
    errors, images = np.array(cases).T
    expected = [oracle.upper_bound(e, n, delta) for e, n in cases]
    np.testing.assert_allclose(upper_bound(errors, images, delta), expected, atol=1e-10)
    assert upper_bound(0, 0, delta) == 1


@given(
    st.lists(st.tuples(st.integers(0, 12), st.integers(0, 9)), max_size=70),
    st.sampled_from(["0.1", "0.25", "0.5"]),
    st.sampled_from(["0.05", "0.1", "0.25"]),
    st.sampled_from([None, 1, 5, 30]),
)
def test_thresholds_equal_the_oracle(
    images: list[tuple[int, int]], max_error: str, delta: str, start: int | None
) -> None:
    confidence = [level / 12 for level, _ in images]
    correct = [chance <= level for level, chance in images]
    found = certify(confidence, correct, float(max_error), delta=float(delta), start=start)
    expected = start or oracle.first_rank(len(images), max_error, delta)
    assert found.threshold == oracle.certified(confidence, correct, max_error, delta, expected)
    if found.threshold is not None:
        answered = [hit for value, hit in zip(confidence, correct, strict=True) if value >= found.threshold]
        assert (found.answered, found.errors) == (len(answered), answered.count(False))
        assert found.bound <= float(max_error) + 1e-12


def test_needed_images_are_the_smallest_number() -> None:
    for max_error in ("0.01", "0.05", "0.1", "0.2", "0.5", "0.9", "0.99"):
        for delta in ("0.01", "0.05", "0.1", "0.25", "0.81"):
            n = images_for_error(float(max_error), float(delta))
            right = 1 - Fraction(max_error)
            assert right**n <= Fraction(delta) < right ** (n - 1)
            assert certify([0.5] * n, [True] * n, float(max_error), delta=float(delta)).threshold == 0.5
            assert certify([0.5] * (n - 1), [True] * (n - 1), float(max_error), delta=float(delta)).threshold is None
    assert images_for_error(1e-9, 1e-12) > 10**9
    assert images_for_error(0.5, 1e-12) == 40


def test_edges() -> None:
    for confidence, correct in (([], []), ([0.5], [True]), ([0.5], [False]), ([0.9] * 100, [False] * 100)):
        found = certify(confidence, correct, 0.1)
        assert (found.threshold, found.answered, found.errors, found.bound) == (None, 0, 0, 1.0)
        assert found.images == len(correct)
    right = certify(np.linspace(0, 1, 100), np.ones(100), 0.1)
    assert (right.threshold, right.answered, right.errors) == (0.0, 100, 0)
    tied = certify([0.7] * 100, [True] * 98 + [False] * 2, 0.1)
    assert (tied.threshold, tied.answered, tied.errors) == (0.7, 100, 2)


def test_one_early_error_does_not_end_everything() -> None:
    confidence, correct = np.linspace(1, 0.5, 400), np.arange(400) != 3
    assert certify(confidence, correct, 0.05, start=59).threshold is None
    assert certify(confidence, correct, 0.05).answered == 400


def test_certificates_say_what_was_asked() -> None:
    assert certify([0.5], [True], 0.1, delta=0.2) == Certificate(None, 0, 0, 1.0, 0.1, 0.2, 1)
    assert certify([0.5] * 9, [False] * 9, 0.1) == Certificate(None, 0, 0, 1.0, 0.1, 0.05, 9)
    found = certify([0.9] * 30 + [0.4] * 10, [True] * 30 + [False] * 10, 0.1)
    assert (found.threshold, found.answered, found.errors, found.images) == (0.9, 30, 0, 40)
    assert (found.max_error, found.delta) == (0.1, 0.05)
    assert found.bound == pytest.approx(1 - 0.05 ** (1 / 30), abs=1e-12)
    assert isinstance(found.errors, int)
    assert images_for_error(0.05) == images_for_error(0.05, 0.05) == 59


def test_bounds_of_small_integers() -> None:
    """Counts may come as any integers; 255 is the largest of these."""
    found = upper_bound(np.array([255], dtype=np.uint8), np.array([300], dtype=np.uint16), 0.05)
    np.testing.assert_allclose(found, oracle.upper_bound(255, 300, 0.05), atol=1e-10)


@pytest.mark.parametrize("max_error", ["0.05", "0.1", "0.2", "0.5"])
@pytest.mark.parametrize("delta", ["0.05", "0.2"])
def test_the_first_rank_equals_the_oracle(max_error: str, delta: str) -> None:
    for images in (0, 1, 29, 100, 117, 240, 399, 500):
        expected = oracle.first_rank(images, max_error, delta)
        assert first_rank(images, float(max_error), float(delta)) == expected


def test_what_is_refused() -> None:
    for max_error, delta in ((0, 0.1), (1, 0.1), (0.1, 0), (0.1, 1), (float("nan"), 0.1), (-0.1, 0.1)):
        with pytest.raises(InvalidOptionError):
            certify([0.5], [True], max_error, delta=delta)
    for confidence, correct in (([0.5], []), ([1.5], [True]), ([float("nan")], [True]), ([0.5], [2])):
        with pytest.raises(InvalidOptionError):
            certify(confidence, correct, 0.1)
    with pytest.raises(InvalidOptionError):
        upper_bound(3, 2, 0.1)
