"""Fitting a prompt to a few labelled images per class: the recipe and the loop that CoOp, CoCoOp and MaPLe share."""

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
    """The published training recipe: SGD, one epoch at a small constant rate, then a cosine."""

    epochs: int = 50
    batch_size: int = 32
    lr: float = 2e-3
    warmup_epochs: int = 1
    warmup_lr: float = 1e-5
    momentum: float = 0.9
    weight_decay: float = 5e-4
    seed: int = 1

    def rate(self, epoch: int) -> float:
        """The learning rate of an epoch. The cosine is as long as all epochs and begins after the warm-up.

        >>> [round(FewShot(epochs=4).rate(epoch), 6) for epoch in range(4)]
        [1e-05, 0.002, 0.001707, 0.001]
        """
        if epoch < self.warmup_epochs:
            return self.warmup_lr
        return self.lr * (1 + math.cos(math.pi * (epoch - self.warmup_epochs) / self.epochs)) / 2

    def batches(self, count: int, epoch: int) -> list[Tensor]:
        """The rows of each batch, in an order of its own for each epoch; the last, smaller batch is dropped."""
        order = torch.randperm(count, generator=torch.Generator().manual_seed(self.seed * 100_003 + epoch))
        whole = [rows for rows in order.split(self.batch_size) if len(rows) == self.batch_size]
        return whole or [order]


def train(
    parameters: Mapping[str, Tensor],
    count: int,
    recipe: FewShot,
    loss_and_gradient: LossAndGradient,
    report: Report = lambda epoch, loss: None,
) -> Tensors:
    """Fit named tensors by SGD.

    Args:
        parameters: where they begin.
        count: the number of training images.
        recipe: epochs, batches and learning rates.
        loss_and_gradient: maps the tensors, the epoch and a batch's rows to the batch's loss and the gradient of each
            tensor.
        report: called after each epoch with its mean loss.
    """
    now = {name: tensor.clone() for name, tensor in parameters.items()}
    optimiser = torch.optim.SGD(
        list(now.values()), recipe.lr, momentum=recipe.momentum, weight_decay=recipe.weight_decay
    )
    for epoch in range(recipe.epochs):
        optimiser.param_groups[0]["lr"] = recipe.rate(epoch)
        losses = []
        for rows in recipe.batches(count, epoch):
            loss, gradient = loss_and_gradient(now, epoch, rows)
            for name, tensor in now.items():
                tensor.grad = gradient[name].to(tensor.dtype)
            optimiser.step()
            losses.append(loss)
        report(epoch, math.fsum(losses) / len(losses))
    return {name: tensor.detach() for name, tensor in now.items()}


def check_shots(features: Tensor, targets: Tensor, classes: int) -> None:
    """Refuse features and classes that do not belong together."""
    if features.ndim != 3 or targets.shape != features.shape[:1] or not len(targets):
        raise InvalidOptionError(
            f"Features of shape {list(features.shape)} came with classes of shape {list(targets.shape)}.",
            hint="Give features [images, crops, width] and one class for each image.",
        )
    if int(targets.min()) < 0 or int(targets.max()) >= classes:
        raise InvalidOptionError(
            f"The images' classes go from {int(targets.min())} to {int(targets.max())}.",
            hint=f"There are {classes} labels: give 0..{classes - 1}.",
        )
