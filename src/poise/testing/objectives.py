"""Checks of an objective: one finite value per image, with a gradient, independent of the other images."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from poise.testing.conformance import require, run_checks
from poise.types import Objective, Outputs


def example_outputs(images: int = 3, views: int = 8, classes: int = 5, width: int = 6, seed: int = 0) -> Outputs:
    """Return random outputs in float64 with logits of their features; the text features require a gradient.

    Args:
        images: B.
        views: V, per image.
        classes: C.
        width: D, of the features.
        seed: of the random numbers.
    """
    generator = torch.Generator().manual_seed(seed)

    def unit(*shape: int) -> Tensor:
        return torch.nn.functional.normalize(torch.randn(*shape, dtype=torch.float64, generator=generator), dim=-1)

    image_features, texts = unit(images, views, width), unit(images, classes, width).requires_grad_()
    reference = 10 * image_features @ unit(1, classes, width).mT
    return Outputs(image_features, texts, 10 * image_features @ texts.mT, reference)


def base_class(objective: Objective) -> None:
    """The objective derives from the class that tuning reads attributes of."""
    require(isinstance(objective, Objective), "an objective must derive from poise.types.Objective")


def value_per_image(objective: Objective) -> None:
    """The objective returns one finite value per image."""
    value = objective(example_outputs())
    require(value.shape == (3,), f"an objective returns one number per image, [B]; got {tuple(value.shape)}")
    require(bool(value.isfinite().all()), "the value is not finite")


def gradient_reaches_texts(objective: Objective) -> None:
    """The text features have a finite gradient."""
    out = example_outputs()
    (gradient,) = torch.autograd.grad(objective(out).sum(), out.text_features)
    require(bool(gradient.isfinite().all()), "the gradient is not finite")
    require(bool(gradient.abs().sum() > 0), "no gradient reaches the text features")


def images_are_independent(objective: Objective) -> None:
    """The value and gradient of an image do not depend on the other images."""
    out = example_outputs()
    value = objective(out)
    (alone,) = torch.autograd.grad(value[0], out.text_features)
    require(bool(alone[1:].abs().sum() == 0), "one image's value depends on another image")
    single = objective(_map(lambda tensor: tensor[:1], out))
    _close(single, value[:1], "the value of an image depends on the batch size")


def view_order_is_free(objective: Objective) -> None:
    """The order of the views after the plain one does not matter."""
    out = example_outputs()
    order = torch.tensor([0, *reversed(range(1, out.logits.shape[1]))])
    shuffled = replace(
        out, **{name: getattr(out, name)[:, order] for name in ("image_features", "logits", "reference_logits")}
    )
    _close(objective(shuffled), objective(out), "the value depends on the order of the views after view 0")


def precision(objective: Objective) -> None:
    """The values in float32 and float64 agree."""
    out = example_outputs()
    narrow = objective(_map(Tensor.float, out)).double()
    _close(narrow, objective(out), "float32 and float64 disagree", rtol=1e-3, atol=1e-4)


OBJECTIVE_CHECKS = (
    base_class,
    value_per_image,
    gradient_reaches_texts,
    images_are_independent,
    view_order_is_free,
    precision,
)


def check_objective(objective: Objective) -> None:
    """Run `OBJECTIVE_CHECKS` on an objective; raise AssertionError with all failures."""
    run_checks(objective, OBJECTIVE_CHECKS)


def _close(one: Tensor, other: Tensor, rule: str, rtol: float = 1e-7, atol: float = 1e-7) -> None:
    require(one.shape == other.shape and torch.allclose(one, other, rtol=rtol, atol=atol), rule)


def _map(change: Callable[[Tensor], Tensor], out: Outputs) -> Outputs:
    return Outputs(*map(change, (out.image_features, out.text_features, out.logits, out.reference_logits)))
