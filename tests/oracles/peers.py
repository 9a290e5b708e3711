"""Other papers' methods as plain loops over one image in float64, from their formulas."""

from __future__ import annotations

import math

import torch
from torch import Tensor


def entropy(logits: Tensor) -> float:
    probs = logits.softmax(-1)
    return -sum(float(p) * math.log(p) for p in probs if p > 0)


def mta(views: Tensor, texts: Tensor, scale: float, lambda_y: float = 0.2, lambda_q: float = 4.0) -> Tensor:
    """The logits [C] of the robust mean of views [V, D]."""
    count = len(views)
    probs = (scale * views @ texts.T).softmax(-1)
    affinity = probs @ probs.T
    near = int(0.3 * (count - 1))
    width = torch.stack(
        [
            max(
                0.5
                * torch.stack([(view - other).square().sum() for at, other in enumerate(views) if at != row])
                .sort()
                .values[:near]
                .mean(),
                torch.tensor(1e-12, dtype=views.dtype),
            )
            for row, view in enumerate(views)
        ]
    )

    def kernel(mode: Tensor) -> Tensor:
        return torch.stack(
            [(-(view - mode).square().sum() / (2 * h)).exp() for view, h in zip(views, width, strict=True)]
        )

    weights, mode = torch.full((count,), 1 / count, dtype=views.dtype), views[0]
    for _ in range(5):
        density = kernel(mode)
        for _ in range(5):
            before, weights = weights, ((density + lambda_q * affinity @ weights) / lambda_y).softmax(-1)
            if (weights - before).norm() < 1e-6:
                break
        for _ in range(5):
            mean = ((kernel(mode) * weights)[:, None] * views).sum(0)
            before, mode = mode, mean / mean.norm()
            if (mode - before).norm() < 1e-6:
                break
    return scale * texts @ mode


def zero(logits: Tensor, share: float = 0.3) -> Tensor:
    """The votes [C] of the confident ones among views' logits [V, C]."""
    order = sorted(range(len(logits)), key=lambda view: entropy(logits[view]))
    kept = max(1, int(len(logits) * share))
    votes = torch.zeros_like(logits[0])
    for view in order[:kept]:
        largest = logits[view] == logits[view].max()
        votes[largest] += 1 / int(largest.sum())
    tied = (votes == votes.max()).nonzero()[:, 0].tolist()
    if len(tied) < 2:
        return votes
    winner = tied[0]
    for view in order[kept:]:
        if int(logits[view].argmax()) in tied:
            winner = int(logits[view].argmax())
            break
    else:
        if order[kept:]:
            first = logits[order[kept]]
            winner = max(tied, key=lambda label: (float(first[label]), -label))
    votes[winner] += 1
    return votes


def tps(views: Tensor, texts: Tensor, scale: float, *, share: float = 0.1, steps: int = 1, lr: float = 5e-3) -> Tensor:
    """The logits [V, C] under texts shifted by torch's AdamW, with autograd."""
    shift = torch.zeros_like(texts, requires_grad=True)
    optimiser = torch.optim.AdamW([shift], lr=lr, weight_decay=0.01)

    def logits() -> Tensor:
        moved = texts / texts.norm(dim=-1, keepdim=True) + shift
        return scale * views @ (moved / moved.norm(dim=-1, keepdim=True)).T

    for _ in range(steps):
        now = logits()
        chosen = sorted(range(len(views)), key=lambda view: entropy(now[view].detach()))
        mean = now[chosen[: max(1, int(len(views) * share))]].softmax(-1).mean(0)
        optimiser.zero_grad()
        (-(mean * mean.log()).sum()).backward()
        optimiser.step()
    return logits().detach()


def matching_loss(tuned: Tensor, confidences: Tensor, temperature: float) -> float:
    """What CoTS minimises, for views' logits [K, C] and zero-shot confidences [K]."""
    return float(((tuned / temperature).softmax(-1).amax(-1) - confidences).square().mean())
