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

from poise.calibration import certify, images_for_error, upper_bound
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
    found = certify(confidence, wrong == 0, settings["risk"], delta=settings["delta"], starts=1)
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
    st.sampled_from([None, 1, 2, 3]),
)
def test_thresholds_equal_the_oracle(
    images: list[tuple[int, int]], max_error: str, delta: str, starts: int | None
) -> None:
    confidence = [level / 12 for level, _ in images]
    correct = [chance <= level for level, chance in images]
    found = certify(confidence, correct, float(max_error), delta=float(delta), starts=starts)
    expected = starts or oracle.room(len(images), max_error, delta)
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
    confidence, correct = np.linspace(1, 0.5, 300), np.arange(300) != 3
    assert certify(confidence, correct, 0.05, starts=1).threshold is None
    assert certify(confidence, correct, 0.05).answered == 300


def test_what_is_refused() -> None:
    for max_error, delta in ((0, 0.1), (1, 0.1), (0.1, 0), (0.1, 1), (float("nan"), 0.1), (-0.1, 0.1)):
        with pytest.raises(InvalidOptionError):
            certify([0.5], [True], max_error, delta=delta)
    for confidence, correct in (([0.5], []), ([1.5], [True]), ([float("nan")], [True]), ([0.5], [2])):
        with pytest.raises(InvalidOptionError):
            certify(confidence, correct, 0.1)
    with pytest.raises(InvalidOptionError):
        upper_bound(3, 2, 0.1)
