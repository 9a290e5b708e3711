"""AdamW on a batch of prompts equals torch's, prompt by prompt."""

from __future__ import annotations

import pytest
import torch

from poise.tuning import AdamW
from poise.types import Prompt


def test_equals_torch_over_five_steps() -> None:
    torch.manual_seed(0)
    start = torch.randn(3, 4, 8, dtype=torch.float64)
    gradients = [torch.randn_like(start) for _ in range(5)]
    prompt, optimiser = Prompt(start.clone()), AdamW(lr=5e-3, weight_decay=0.01)
    for gradient in gradients:
        prompt, optimiser = optimiser.step(prompt, Prompt(gradient))
    for row in range(3):
        parameter = start[row].clone().requires_grad_()
        reference = torch.optim.AdamW([parameter], lr=5e-3, weight_decay=0.01)
        for gradient in gradients:
            parameter.grad = gradient[row].clone()
            reference.step()
        torch.testing.assert_close(prompt.context[row], parameter.detach(), atol=1e-15, rtol=1e-14)


def test_a_shared_start_fans_out() -> None:
    start = torch.randn(1, 2, 3, dtype=torch.float64)
    gradient = torch.randn(4, 2, 3, dtype=torch.float64)
    together, _ = AdamW().step(Prompt(start), Prompt(gradient))
    for row in range(4):
        alone, _ = AdamW().step(Prompt(start), Prompt(gradient[row : row + 1]))
        assert torch.equal(together.context[row], alone.context[0])


def test_first_step_is_nearly_the_sign_of_the_gradient() -> None:
    gradient = torch.randn(1, 4, 8, dtype=torch.float64)
    moved, _ = AdamW(weight_decay=0.0).step(Prompt(torch.zeros_like(gradient)), Prompt(gradient))
    torch.testing.assert_close(moved.context, -5e-3 * gradient.sign(), atol=1e-6, rtol=0)


@pytest.mark.parametrize("size", [1.0, 1e-8, 0.0])  # the second is as large as epsilon
def test_the_defaults_are_torchs_but_for_the_learning_rate(size: float) -> None:
    start = torch.linspace(-1, 1, 8, dtype=torch.float64)[None]
    gradients = [size * torch.linspace(1, -2, 8, dtype=torch.float64)[None].roll(step) for step in range(4)]
    parameter = start.clone().requires_grad_()
    reference = torch.optim.AdamW([parameter], lr=5e-3)
    prompt, optimiser = Prompt(start), AdamW()
    for gradient in gradients:
        prompt, optimiser = optimiser.step(prompt, Prompt(gradient))
        parameter.grad = gradient.clone()
        reference.step()
        torch.testing.assert_close(prompt.context, parameter.detach(), atol=1e-14, rtol=0)


def test_every_part_has_its_own_state_and_all_settings_count() -> None:
    parts = {"context": torch.randn(2, 3, 4).double(), "text_layers": torch.randn(2, 1, 3, 4).double()}
    settings = {"lr": 0.1, "weight_decay": 0.3, "betas": (0.5, 0.8), "eps": 0.01}
    prompt, optimiser = Prompt(**parts), AdamW(**settings)
    leaves = {name: part.clone().requires_grad_() for name, part in parts.items()}
    reference = torch.optim.AdamW(list(leaves.values()), **settings)
    for step in range(1, 4):
        gradient = {name: torch.randn_like(part) for name, part in parts.items()}
        prompt, optimiser = optimiser.step(prompt, Prompt(**gradient))
        for name, leaf in leaves.items():
            leaf.grad = gradient[name]
        reference.step()
        assert optimiser.count == step
        for name, leaf in leaves.items():
            torch.testing.assert_close(prompt.parts()[name], leaf.detach(), atol=1e-13, rtol=0)
            torch.testing.assert_close(optimiser.mean[name], reference.state[leaf]["exp_avg"], atol=1e-14, rtol=0)
            torch.testing.assert_close(optimiser.square[name], reference.state[leaf]["exp_avg_sq"], atol=1e-14, rtol=0)
