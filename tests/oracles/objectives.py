"""Slow, plain float64 versions of the objectives: one image at a time, loops over views and classes."""

from __future__ import annotations

import torch
from torch import Tensor


def softmax(logits: Tensor) -> Tensor:
    weights = (logits - logits.max()).exp()
    return weights / weights.sum()


def entropy(probs: Tensor) -> Tensor:
    return -sum(p * p.log() for p in probs if p > 0)


def chosen_views(logits: Tensor, fraction: float) -> list[int]:
    """Views [V, C] of one image, lowest entropy first."""
    entropies = [float(entropy(softmax(view))) for view in logits]
    order = sorted(range(len(entropies)), key=lambda view: entropies[view])
    return order[: max(1, int(len(order) * fraction))]


def target(logits: Tensor, views: list[int], t_min: float | None = None, t_max: float | None = None) -> Tensor:
    """p_aug [C]; with temperatures if t_min is given."""
    total = torch.zeros(logits.shape[-1], dtype=logits.dtype)
    for view in views:
        temperature = 1.0
        if t_min is not None:
            alpha = softmax(logits[view]).max()
            temperature = t_max - (t_max - t_min) * alpha
        total = total + softmax(logits[view] / temperature)
    return total / len(views)


def kl(target_probs: Tensor, probs: Tensor) -> Tensor:
    return sum(t * (t.log() - p.log()) for t, p in zip(target_probs, probs, strict=True) if t > 0)


def householder_orthogonality(features: Tensor) -> Tensor:
    """O-TPT as described: reflect each row of the cosine matrix onto an axis, measure its distance to that axis.

    The reflection H_i = I - 2 u uᵀ with u ∝ row_i - ‖row_i‖ e_i maps row_i to ‖row_i‖ e_i, which lies at distance
    |‖row_i‖ - 1| from e_i.
    """
    cosines = features @ features.T
    count = len(cosines)
    eye = torch.eye(count, dtype=features.dtype)
    distances = []
    for i in range(count):
        u = cosines[i] - cosines[i].norm() * eye[i]
        reflection = eye - 2 * torch.outer(u, u) / (u @ u)
        distances.append((reflection @ cosines[i] - eye[i]).norm())
    return torch.stack(distances).mean()
