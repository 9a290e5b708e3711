"""Conformance checks for what others add: an objective or a backbone that passes them works everywhere in poise.

Each check raises AssertionError with what was expected. They use nothing but the public protocols.
"""

from __future__ import annotations

import torch
from torch import Tensor

from poise.types import Objective, Outputs


def example_outputs(images: int = 3, views: int = 8, classes: int = 5, width: int = 6, seed: int = 0) -> Outputs:
    """Random outputs in float64 whose logits follow from their features, with gradient to the text features."""
    generator = torch.Generator().manual_seed(seed)

    def unit(*shape: int) -> Tensor:
        return torch.nn.functional.normalize(torch.randn(*shape, dtype=torch.float64, generator=generator), dim=-1)

    image_features, texts = unit(images, views, width), unit(images, classes, width).requires_grad_()
    reference = 10 * image_features @ unit(1, classes, width).mT
    return Outputs(image_features, texts, 10 * image_features @ texts.mT, reference)


def check_objective(objective: Objective) -> None:
    """Shape, finiteness, gradient flow, independence of images, view order, and float32 against float64."""
    out = example_outputs()
    value = objective(out)
    assert value.shape == (3,), f"an objective returns one number per image, [B]; got {tuple(value.shape)}"
    assert value.isfinite().all(), "the value is not finite"
    (slope,) = torch.autograd.grad(value.sum(), out.text_features, retain_graph=True)
    assert slope.isfinite().all(), "the gradient is not finite"
    assert slope.abs().sum() > 0, "no gradient reaches the text features"
    (alone,) = torch.autograd.grad(value[0], out.text_features, retain_graph=True)
    assert alone[1:].abs().sum() == 0, "one image's value depends on another image"

    single = objective(_changed(out, lambda tensor: tensor[:1]))
    torch.testing.assert_close(single, value[:1], msg="a batch of one gives another value than the same image among three")
    order = torch.tensor([0, *reversed(range(1, out.logits.shape[1]))])
    shuffled = objective(
        Outputs(
            out.image_features[:, order], out.text_features, out.logits[:, order], out.reference_logits[:, order]
        )  # fmt: skip
    )
    torch.testing.assert_close(shuffled, value, msg="the value depends on the order of the views after view 0")
    narrow = objective(_changed(out, lambda tensor: tensor.float()))
    torch.testing.assert_close(narrow.double(), value, rtol=1e-3, atol=1e-4, msg="float32 and float64 disagree")


def _changed(out: Outputs, change: object) -> Outputs:
    assert callable(change)
    return Outputs(
        change(out.image_features), change(out.text_features), change(out.logits), change(out.reference_logits)
    )  # fmt: skip
