"""AdamW on a batch of prompts equals torch's, prompt by prompt."""

from __future__ import annotations

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
