"""Checks of an objective: one finite number per image, with a gradient, whatever stands around the image."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from poise.testing.checks import require, run_checks
from poise.types import Objective, Outputs


def example_outputs(images: int = 3, views: int = 8, classes: int = 5, width: int = 6, seed: int = 0) -> Outputs:
    """Random outputs in float64 whose logits follow from their features, with gradient to the text features."""
    generator = torch.Generator().manual_seed(seed)

    def unit(*shape: int) -> Tensor:
        return torch.nn.functional.normalize(torch.randn(*shape, dtype=torch.float64, generator=generator), dim=-1)

    image_features, texts = unit(images, views, width), unit(images, classes, width).requires_grad_()
    reference = 10 * image_features @ unit(1, classes, width).mT
    return Outputs(image_features, texts, 10 * image_features @ texts.mT, reference)


def value_per_image(objective: Objective) -> None:
    """It returns one finite number per image."""
    value = objective(example_outputs())
    require(value.shape == (3,), f"an objective returns one number per image, [B]; got {tuple(value.shape)}")
    require(bool(value.isfinite().all()), "the value is not finite")


def gradient_reaches_texts(objective: Objective) -> None:
    """The text features get a finite gradient."""
    out = example_outputs()
    (gradient,) = torch.autograd.grad(objective(out).sum(), out.text_features)
    require(bool(gradient.isfinite().all()), "the gradient is not finite")
    require(bool(gradient.abs().sum() > 0), "no gradient reaches the text features")


def images_are_independent(objective: Objective) -> None:
    """An image's value and gradient don't depend on the images beside it."""
    out = example_outputs()
    value = objective(out)
    (alone,) = torch.autograd.grad(value[0], out.text_features)
    require(bool(alone[1:].abs().sum() == 0), "one image's value depends on another image")
    single = objective(_changed(out, lambda tensor: tensor[:1]))
    _close(single, value[:1], "a batch of one gives another value than the same image among three")


def view_order_is_free(objective: Objective) -> None:
    """The order of the views after the plain one doesn't matter."""
    out = example_outputs()
    order = torch.tensor([0, *reversed(range(1, out.logits.shape[1]))])
    shuffled = replace(
        out, **{name: getattr(out, name)[:, order] for name in ("image_features", "logits", "reference_logits")}
    )
    _close(objective(shuffled), objective(out), "the value depends on the order of the views after view 0")


def precision(objective: Objective) -> None:
    """Float32 gives what float64 gives."""
    out = example_outputs()
    narrow = objective(_changed(out, lambda tensor: tensor.float())).double()
    _close(narrow, objective(out), "float32 and float64 disagree", rtol=1e-3, atol=1e-4)


OBJECTIVE_CHECKS = (value_per_image, gradient_reaches_texts, images_are_independent, view_order_is_free, precision)


def check_objective(objective: Objective) -> None:
    """Run all of `OBJECTIVE_CHECKS`; raise AssertionError with every rule that ``objective`` breaks."""
    run_checks(objective, OBJECTIVE_CHECKS)


def _close(one: Tensor, other: Tensor, rule: str, rtol: float = 1e-7, atol: float = 1e-7) -> None:
    require(one.shape == other.shape and torch.allclose(one, other, rtol=rtol, atol=atol), rule)


def _changed(out: Outputs, change: Callable[[Tensor], Tensor]) -> Outputs:
    parts = (out.image_features, out.text_features, out.logits, out.reference_logits)
    return Outputs(*map(change, parts))
