"""TPS: a shift of the class texts' features, tuned for each image (Sui et al., 2025).

With unit texts T and a shift δ [C, D], 0 at first: t = unit(T + δ), and AdamW steps minimise the entropy of the mean
prediction of the views of least entropy, which are chosen again in each step. The gradient stops at the text features,
so no text tower is needed: with G_c = s Σ_n ∂H/∂z_nc v_n, the gradient of δ_c is (G_c - (G_c · t_c) t_c) / |T_c + δ_c|.
Published: one step with lr 5e-3 on ImageNet and its shifts; a later comparison has 1e-3 on fine-grained datasets.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from poise.adamw import AdamW
from poise.objectives import Target, view_entropy
from poise.rules.rule import Gives, LogitHead, Rule, RuleAnswer, rules
from poise.types import Outputs

_KEPT = Target(selection=0.1)


@dataclass(frozen=True)
class Shift:
    """The shift [B, C, D] of the texts, or [B, 1, D] if all classes share one; also its gradient."""

    values: Tensor

    def parts(self) -> dict[str, Tensor]:
        """Return what AdamW steps."""
        return {"values": self.values}


@rules.add("tps")
@dataclass(frozen=True)
class TextShift(Rule):
    """The logits of all views under shifted texts.

    Args:
        target: chooses the views of the loss.
        steps: AdamW's steps.
        lr: their size.
        weight_decay: AdamW's, of the shift.
        shared: whether all classes are shifted alike.
    """

    gives: ClassVar[Gives] = Gives.ALL_VIEWS

    target: Target = _KEPT
    steps: int = 1
    lr: float = 5e-3
    weight_decay: float = 0.01
    shared: bool = False

    def __call__(self, out: Outputs, head: LogitHead) -> RuleAnswer:
        """Return the logits [B, V, C] and the shifted texts [B, C, D]."""
        images = out.image_features.to(out.logits.dtype)
        texts = torch.nn.functional.normalize(out.text_features.to(out.logits.dtype), dim=-1)
        rows, classes, width = len(images), *texts.shape[1:]
        shift = Shift(images.new_zeros(rows, 1 if self.shared else classes, width))
        optimiser, logits, moved = AdamW(lr=self.lr, weight_decay=self.weight_decay), out.logits, texts
        for _ in range(self.steps):
            gradient = self._gradient(images, texts, shift.values, logits, head.scale)
            shift, optimiser = optimiser.step(shift, Shift(gradient))
            moved = torch.nn.functional.normalize(texts + shift.values, dim=-1)
            logits = head.logits(images, moved)
        return RuleAnswer(logits, moved.expand(rows, -1, -1))

    def _gradient(self, images: Tensor, texts: Tensor, shift: Tensor, logits: Tensor, scale: float) -> Tensor:
        """The gradient of the shift, at the logits [B, V, C] under it."""
        index = self.target.lowest(view_entropy(logits))[..., None]  # [B, K, 1]
        views = images.gather(1, index.expand(-1, -1, images.shape[-1]))  # [B, K, D]
        cotangent = entropy_cotangent(logits.gather(1, index.expand(-1, -1, logits.shape[-1])))  # [B, K, C]
        length = (texts + shift).norm(dim=-1, keepdim=True)
        moved = (texts + shift) / length
        pull = scale * (cotangent.mT @ views)  # [B, C, D]
        gradient = (pull - (pull * moved).sum(-1, keepdim=True) * moved) / length
        return gradient.sum(1, keepdim=True) if self.shared else gradient


def entropy_cotangent(logits: Tensor) -> Tensor:
    """Return the gradient [B, K, C] of the entropy of K views' mean prediction with respect to their logits."""
    log_probs = logits.log_softmax(-1)
    log_mean = log_probs.logsumexp(1, keepdim=True) - math.log(logits.shape[1])
    log_mean = log_mean.clamp(min=torch.finfo(log_mean.dtype).min)  # so that 0 · log 0 is 0 and never NaN
    probs = log_probs.exp()
    return -probs * (log_mean - (probs * log_mean).sum(-1, keepdim=True)) / logits.shape[1]
