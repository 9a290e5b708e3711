"""Slow, plain float64 versions of the objectives: one image at a time, loops over views and classes."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from poise.types import Outputs


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


def distance_to_centroid(features: Tensor) -> Tensor:
    """C-TPT's dispersion of one image's texts [C, D]."""
    centroid = sum(features) / len(features)
    return sum((feature - centroid).norm() for feature in features) / len(features)


def of_method(name: str, selection: float = 0.1) -> Callable[[Outputs], Tensor]:
    """A named method's loss [B], written out from its publication with the published weights."""
    temperatures = (0.1, 10.0) if name.endswith("+cats") else (None, None)

    def loss(out: Outputs) -> Tensor:
        return torch.stack([_of_image(name, out, image) for image in range(len(out.logits))])

    def _of_image(name: str, out: Outputs, image: int) -> Tensor:
        logits, texts = out.logits[image], out.text_features[image]
        views = chosen_views(out.reference_logits[image], selection)
        if out.ranking is not None:  # DynaPrompt: by entropy averaged over several prompts
            order = sorted(range(len(logits)), key=lambda view: float(out.ranking[image, view]))
            views = order[: len(views)]
        p_aug = target(logits, views, *temperatures)
        if name.startswith("kld"):
            return kl(p_aug, softmax(logits[0]))
        more = {
            "c-tpt": lambda: -50 * distance_to_centroid(texts),
            "o-tpt": lambda: 18 * householder_orthogonality(texts),
        }
        return entropy(p_aug) + (more[name]() if name in more else 0)

    return loss
