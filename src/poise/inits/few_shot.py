"""Training of a prompt on a few labelled images per class, as used by CoOp, CoCoOp and MaPLe."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from poise.errors import InvalidOptionError

Tensors = dict[str, Tensor]
Report = Callable[[int, float], None]  # epoch, mean loss
LossAndGradient = Callable[[Tensors, int, Tensor], tuple[float, Mapping[str, Tensor]]]


@dataclass(frozen=True, kw_only=True)
class FewShot:
    """The published training recipe: SGD with one warm-up epoch at a small constant rate, then cosine decay."""

    epochs: int = 50
    batch_size: int = 32
    lr: float = 2e-3
    warmup_epochs: int = 1
    warmup_lr: float = 1e-5
    momentum: float = 0.9
    weight_decay: float = 5e-4
    seed: int = 1

    def rate(self, epoch: int) -> float:
        """Return the learning rate of an epoch: cosine decay with T_max = epochs, started after the warm-up.

        >>> [round(FewShot(epochs=4).rate(epoch), 6) for epoch in range(4)]
        [1e-05, 0.002, 0.001707, 0.001]
        """
        if epoch < self.warmup_epochs:
            return self.warmup_lr
        return self.lr * (1 + math.cos(math.pi * (epoch - self.warmup_epochs) / self.epochs)) / 2

    def batches(self, count: int, epoch: int) -> list[Tensor]:
        """Return the rows of each batch in the epoch's random order; an incomplete last batch is dropped."""
        order = torch.randperm(count, generator=torch.Generator().manual_seed(self.seed * 100_003 + epoch))
        complete = [rows for rows in order.split(self.batch_size) if len(rows) == self.batch_size]
        return complete or [order]


def train(
    parameters: Mapping[str, Tensor],
    count: int,
    recipe: FewShot,
    loss_and_gradient: LossAndGradient,
    report: Report = lambda epoch, loss: None,
) -> Tensors:
    """Train named tensors with SGD on ``count`` images and return them; ``report`` is called after each epoch."""
    current = {name: tensor.clone() for name, tensor in parameters.items()}
    tensors = list(current.values())
    optimiser = torch.optim.SGD(tensors, recipe.lr, momentum=recipe.momentum, weight_decay=recipe.weight_decay)
    for epoch in range(recipe.epochs):
        optimiser.param_groups[0]["lr"] = recipe.rate(epoch)
        losses = []
        for rows in recipe.batches(count, epoch):
            loss, gradient = loss_and_gradient(current, epoch, rows)
            for name, tensor in current.items():
                tensor.grad = gradient[name].to(tensor.dtype)
            optimiser.step()
            losses.append(loss)
        report(epoch, math.fsum(losses) / len(losses))
    return {name: tensor.detach() for name, tensor in current.items()}


def check_shots(features: Tensor, targets: Tensor, classes: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Check features [N, K, D] and targets [N] of labelled images, and return them on ``device``."""
    if features.ndim != 3 or targets.shape != features.shape[:1] or not len(targets):
        raise InvalidOptionError(
            f"The features have shape {list(features.shape)}, the targets {list(targets.shape)}.",
            hint="Accepted: features [images, crops, width] and targets [images].",
        )
    if int(targets.min()) < 0 or int(targets.max()) >= classes:
        raise InvalidOptionError(
            f"The targets range from {int(targets.min())} to {int(targets.max())}.",
            hint=f"There are {classes} labels: give 0..{classes - 1}.",
        )
    return features.to(device), targets.to(device)


def uniform(generator: torch.Generator, like: Tensor, inputs: int, *shape: int) -> Tensor:
    """Draw initial weights or biases of a linear layer as torch does by default, with the dtype of ``like``."""
    return (torch.rand(*shape, generator=generator, dtype=torch.float64).to(like) * 2 - 1) / inputs**0.5
