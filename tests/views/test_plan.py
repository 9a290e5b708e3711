from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torchvision.transforms import RandomResizedCrop

from poise.errors import InvalidOptionError, UnknownNameError
from poise.views import ViewPlan, plan_views
from poise.views.magnitudes import (
    OPERATIONS,
    posterize_bits,
    rotate_degrees,
    shear_factor,
    solarize_threshold,
    translate_pixels,
)
from poise.views.recipe import ViewRecipe

BOXES = [[105, 8, 359, 361], [255, 89, 210, 231], [111, 50, 310, 312]]
FLIPS = [True, False, True]
OPS = [[0, 8, 6], [8, 2, 3], [8, 7, 0]]


def _numbers(plan: ViewPlan, rows: slice = slice(None)) -> list[bytes]:
    arrays = [plan.boxes, plan.flips]
    if plan.augmix is not None:
        arrays += [getattr(plan.augmix, field.name) for field in dataclasses.fields(plan.augmix)]
    return [array[rows].tobytes() for array in arrays]


def test_same_seed_and_key_give_the_same_bytes() -> None:
    one, two = (plan_views((320, 200), key="k", seed=3, augmix=True) for _ in range(2))
    assert _numbers(one) == _numbers(two)


@pytest.mark.parametrize("change", [{"seed": 4}, {"key": "other"}])
def test_another_seed_or_key_gives_other_numbers(change: dict[str, object]) -> None:
    one = plan_views((320, 200), key="k", seed=3)
    two = plan_views((320, 200), **{"key": "k", "seed": 3, **change})  # type: ignore[arg-type]
    assert not np.array_equal(one.boxes, two.boxes)


@given(st.integers(2, 80), st.integers(-(2**70), 2**70), st.text(max_size=20))
@settings(max_examples=30, deadline=None)
def test_a_view_depends_on_its_own_number_alone(views: int, seed: int, key: str) -> None:
    few = plan_views((640, 480), views=views, seed=seed, key=key, augmix=True)
    many = plan_views((640, 480), views=90, seed=seed, key=key, augmix=True)
    assert _numbers(few) == _numbers(many, slice(0, views - 1))


def test_augmix_does_not_move_the_crops() -> None:
    plain, mixed = (plan_views((640, 480), key="k", augmix=augmix) for augmix in (False, True))
    np.testing.assert_array_equal(plain.boxes, mixed.boxes)
    np.testing.assert_array_equal(plain.flips, mixed.flips)


def test_the_numbers_never_change_between_releases() -> None:
    plan = plan_views((500, 375), views=4, seed=0, key="golden", augmix=True)
    assert plan.boxes.tolist() == BOXES
    assert plan.flips.tolist() == FLIPS
    assert plan.augmix is not None
    assert plan.augmix.operations[0].tolist() == OPS


@given(st.integers(1, 4096), st.integers(1, 4096))
@settings(max_examples=150, deadline=None)
def test_boxes_are_never_empty_and_lie_inside(width: int, height: int) -> None:
    left, top, w, h = plan_views((width, height), views=40, key=f"{width}").boxes.T
    assert (w >= 1).all()
    assert (h >= 1).all()
    assert (left >= 0).all()
    assert (top >= 0).all()
    assert (left + w <= width).all()
    assert (top + h <= height).all()


@pytest.mark.parametrize("size", [(500, 375), (224, 224), (100, 800), (3, 5000)])
def test_crops_are_distributed_as_torchvision_draws_them(size: tuple[int, int]) -> None:
    width, height = size
    ours = plan_views(size, views=4001, key="d").boxes.astype(float)
    image = torch.empty(3, height, width, device="meta")
    torch.manual_seed(0)
    drawn = [RandomResizedCrop.get_params(image, [0.08, 1.0], [3 / 4, 4 / 3]) for _ in range(2500)]
    theirs = np.array(drawn, dtype=float)[:, [1, 0, 3, 2]]
    for column in range(4):
        a, b = np.sort(ours[:, column]), np.sort(theirs[:, column])
        grid = np.union1d(a, b)
        gap = np.abs(np.searchsorted(a, grid, "right") / len(a) - np.searchsorted(b, grid, "right") / len(b)).max()
        assert gap < 1.95 * np.sqrt(1 / len(a) + 1 / len(b))  # two-sample Kolmogorov-Smirnov at 0.1 %


def test_augmix_numbers_have_the_published_distributions() -> None:
    plan = plan_views((64, 64), views=6001, key="d", augmix=True)
    mix = plan.augmix
    assert mix is not None
    assert set(np.unique(mix.depths)) == {1, 2, 3}
    assert np.bincount(mix.operations.reshape(-1), minlength=9).min() > 0.95 * mix.operations.size / 9
    assert mix.levels.min() >= 0.1
    assert mix.levels.max() <= 1.0
    assert abs(mix.levels.mean() - 0.55) < 0.01
    assert abs(mix.signs.mean()) < 0.02
    np.testing.assert_allclose(mix.weights.sum(axis=1), 1, atol=1e-6)
    np.testing.assert_allclose(mix.weights.mean(axis=0), 1 / 3, atol=0.01)
    np.testing.assert_allclose(mix.weights.var(axis=0), 1 / 18, atol=0.004)  # Dirichlet(1, 1, 1)
    assert abs(mix.keep.mean() - 0.5) < 0.015
    assert abs(plan.flips.mean() - 0.5) < 0.03


def test_magnitudes_at_severity_one() -> None:
    levels = np.linspace(0.1, 1, 2000, endpoint=False)
    assert set(posterize_bits(levels)) == {4}
    assert set(rotate_degrees(levels)) == {0, 1, 2}
    assert (solarize_threshold(levels).min(), solarize_threshold(levels).max()) == (231, 254)
    assert (translate_pixels(levels, 224).min(), translate_pixels(levels, 224).max()) == (0, 7)
    assert shear_factor(levels).min() == pytest.approx(0.003)
    assert shear_factor(levels).max() < 0.03
    assert len(OPERATIONS) == 9


def test_one_view_needs_no_numbers() -> None:
    assert plan_views((5, 5), views=1, augmix=True).views == 1


@pytest.mark.parametrize("bad", [{"views": 0}, {"size": (0, 3)}, {"size": (3, -1)}])
def test_impossible_requests_are_refused(bad: dict[str, object]) -> None:
    with pytest.raises(InvalidOptionError):
        plan_views(**{"size": (3, 3), **bad})  # type: ignore[arg-type]


def test_an_unknown_view_engine_is_refused() -> None:
    with pytest.raises(UnknownNameError, match="Did you mean 'batched'"):
        ViewRecipe(engine="batchd")
