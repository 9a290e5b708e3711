"""The objectives against hand-derived values and the plain oracle."""

from __future__ import annotations

import math

import pytest
import torch

from poise.errors import InvalidOptionError
from poise.objectives import (
    ConfidenceTemperature,
    CrossEntropy,
    Dispersion,
    Divergence,
    Entropy,
    Orthogonality,
    Sum,
    Target,
    objectives,
    select_views,
)
from poise.testing import OBJECTIVE_CHECKS, parametrize_checks
from poise.types import Outputs
from tests.oracles import objectives as plain


def outputs(logits: torch.Tensor, texts: torch.Tensor | None = None, reference: torch.Tensor | None = None) -> Outputs:
    texts = torch.zeros(len(logits), logits.shape[-1], 2) if texts is None else texts
    return Outputs(
        torch.zeros(*logits.shape[:2], 2), texts, logits, logits.detach() if reference is None else reference
    )


def random_logits(images: int = 3, views: int = 64, classes: int = 7, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return 4 * torch.randn(images, views, classes, dtype=torch.float64, generator=generator)


@parametrize_checks(
    OBJECTIVE_CHECKS, {name: objectives.get(name) for name in objectives if name != "alignment"}
)  # which reads no texts
def test_every_registered_objective_conforms(make, check) -> None:
    check(make())


def test_selection_keeps_six_of_sixty_four() -> None:
    logits = random_logits()
    index = select_views(logits, 0.1)
    assert index.shape == (3, 6)
    for image, row in enumerate(index.tolist()):
        assert row == plain.chosen_views(logits[image], 0.1)


@pytest.mark.parametrize(
    ("views", "fraction", "count"), [(64, 0.1, 6), (64, 1.0, 64), (5, 0.1, 1), (1, 0.1, 1), (30, 0.1, 3)]
)
def test_selection_counts(views: int, fraction: float, count: int) -> None:
    assert select_views(torch.randn(2, views, 3), fraction).shape == (2, count)


@pytest.mark.parametrize("fraction", [0.0, -0.1, 1.1])
def test_selection_outside_its_range_is_refused(fraction: float) -> None:
    with pytest.raises(InvalidOptionError, match="above 0 and at most 1"):
        select_views(torch.randn(1, 4, 3), fraction)


def test_selection_stays_when_logits_change() -> None:
    """Later steps read the reference, not the moving logits."""
    reference, moved = random_logits(seed=1), random_logits(seed=2)
    value = Entropy()(outputs(moved, reference=reference))
    for image in range(3):
        views = plain.chosen_views(reference[image], 0.1)
        assert value[image].item() == pytest.approx(plain.entropy(plain.target(moved[image], views)).item(), abs=1e-12)


def test_the_plain_view_can_be_left_out() -> None:
    """The paper's N counts augmented views: with 63 of them, all 63 at selection 1.0."""
    logits = random_logits()
    logits[:, 0] *= 10  # the surest view is the plain one
    out = outputs(logits)
    assert (Target(selection=0.1).views(out)[:, 0] == 0).all()
    augmented = Target(selection=0.1, include_plain=False)
    for image, row in enumerate(augmented.views(out).tolist()):
        assert row == [1 + view for view in plain.chosen_views(logits[image, 1:], 0.1)]
    assert sorted(Target(selection=1.0, include_plain=False).views(out)[0].tolist()) == list(range(1, 64))
    expected = plain.entropy(plain.target(logits[0], augmented.views(out)[0].tolist()))
    assert Entropy(augmented)(out)[0].item() == pytest.approx(expected.item(), abs=1e-12)
    with pytest.raises(InvalidOptionError, match="plain view alone"):
        augmented.views(outputs(logits[:, :1]))


def test_temperature_at_half_full_and_no_confidence() -> None:
    """T = 10 - 9.9 α: two equal logits give α = 0.5, one far above the other 1, a million equal ones nearly 0."""
    scaling = ConfidenceTemperature()
    assert scaling(torch.tensor([0.0, 0.0], dtype=torch.float64)).item() == pytest.approx(5.05, abs=1e-12)
    assert scaling(torch.tensor([1000.0, 0.0], dtype=torch.float64)).item() == pytest.approx(0.1, abs=1e-12)
    assert scaling(torch.zeros(10**6)).item() == pytest.approx(10.0, abs=1e-4)


@pytest.mark.parametrize(("t_min", "t_max"), [(0.0, 10.0), (-1.0, 1.0), (2.0, 1.0)])
def test_temperature_range_is_checked(t_min: float, t_max: float) -> None:
    with pytest.raises(InvalidOptionError, match="0 < t_min <= t_max"):
        ConfidenceTemperature(t_min=t_min, t_max=t_max)


@pytest.mark.parametrize("cats", [False, True])
@pytest.mark.parametrize("selection", [0.1, 1.0])
def test_losses_and_gradients_equal_the_plain_loop(cats: bool, selection: float) -> None:
    target = Target(selection=selection, temperature=ConfidenceTemperature() if cats else None)
    temperatures = (0.1, 10.0) if cats else (None, None)
    logits = random_logits().requires_grad_()
    for objective in (Entropy(target), CrossEntropy(target), Divergence(target)):
        value = objective(outputs(logits))
        (total,) = torch.autograd.grad(value.sum(), logits)
        for image in range(3):
            leaf = logits[image].detach().clone().requires_grad_()
            p_aug = plain.target(leaf, plain.chosen_views(leaf.detach(), selection), *temperatures)
            p = plain.softmax(leaf[0])
            expected = {
                Entropy: lambda p_aug=p_aug: plain.entropy(p_aug),
                CrossEntropy: lambda p_aug=p_aug, p=p: -sum(t * q.log() for t, q in zip(p_aug, p, strict=True)),
                Divergence: lambda p_aug=p_aug, p=p: plain.kl(p_aug, p),
            }[type(objective)]()
            (gradient,) = torch.autograd.grad(expected, leaf)
            assert value[image].item() == pytest.approx(expected.item(), abs=1e-10)
            torch.testing.assert_close(total[image], gradient, atol=1e-10, rtol=1e-8)


@pytest.mark.parametrize("cats", [False, True])
def test_divergence_is_cross_entropy_minus_entropy(cats: bool) -> None:
    target = Target(temperature=ConfidenceTemperature() if cats else None)
    logits = random_logits().requires_grad_()
    whole = Divergence(target)(outputs(logits))
    parts = CrossEntropy(target)(outputs(logits)) - Entropy(target)(outputs(logits))
    torch.testing.assert_close(whole, parts, atol=1e-12, rtol=0)
    gradients = [torch.autograd.grad(value.sum(), logits, retain_graph=True)[0] for value in (whole, parts)]
    torch.testing.assert_close(*gradients, atol=1e-12, rtol=0)


def test_detached_temperature_changes_the_gradient_and_not_the_value() -> None:
    logits = random_logits().requires_grad_()
    results = []
    for detach in (False, True):
        value = Divergence(Target(selection=1.0, temperature=ConfidenceTemperature(detach=detach)))(outputs(logits))
        results.append((value.detach(), torch.autograd.grad(value.sum(), logits)[0]))
    torch.testing.assert_close(results[0][0], results[1][0])
    assert (results[0][1] - results[1][1]).abs().max() > 1e-4


def test_divergence_vanishes_when_all_views_agree() -> None:
    logits = random_logits(views=1).expand(-1, 8, -1)
    torch.testing.assert_close(Divergence()(outputs(logits)), torch.zeros(3, dtype=torch.float64), atol=1e-14, rtol=0)


def test_losses_stay_finite_at_extreme_logits() -> None:
    logits = torch.tensor([[[1e4, 0.0, -1e4], [-1e4, 1e4, 0.0]]]).requires_grad_()
    for cats in (False, True):
        target = Target(selection=1.0, temperature=ConfidenceTemperature() if cats else None)
        for objective in (Entropy(target), CrossEntropy(target), Divergence(target)):
            value = objective(outputs(logits))
            (total,) = torch.autograd.grad(value.sum(), logits)
            assert value.isfinite().all()
            assert total.isfinite().all()


def test_dispersion_by_hand() -> None:
    """Three unit vectors at 0, 90 and 180 degrees: centroid (0, 1/3), distances √(1 + 1/9), 2/3, √(1 + 1/9)."""
    texts = torch.tensor([[[1.0, 0.0], [0.0, 1.0], [-1.0, 0.0]]], dtype=torch.float64)
    expected = -(2 * math.sqrt(10) / 3 + 2 / 3) / 3
    assert Dispersion()(outputs(torch.zeros(1, 1, 3), texts)).item() == pytest.approx(expected, abs=1e-14)


@pytest.mark.parametrize("classes", [2, 10, 47])
def test_orthogonality_equals_the_householder_form(classes: int) -> None:
    texts = torch.nn.functional.normalize(torch.randn(1, classes, 16, dtype=torch.float64), dim=-1).requires_grad_()
    value = Orthogonality()(outputs(torch.zeros(1, 1, classes), texts))
    expected = plain.householder_orthogonality(texts[0])
    assert value.item() == pytest.approx(expected.item(), abs=1e-12)
    gradients = [torch.autograd.grad(loss.sum(), texts)[0] for loss in (value, expected)]
    torch.testing.assert_close(*gradients, atol=1e-11, rtol=0)


def test_sum_weighs_its_terms() -> None:
    texts = torch.nn.functional.normalize(torch.randn(3, 7, 5, dtype=torch.float64), dim=-1)
    out = outputs(random_logits(), texts)
    value = Sum(((1.0, Entropy()), (50.0, Dispersion())))(out)
    torch.testing.assert_close(value, Entropy()(out) + 50 * Dispersion()(out))
