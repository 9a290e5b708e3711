"""The published loop, written plainly: one image, one prompt, all tokens, torch's own AdamW, float64."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from poise.types import DualEncoder, Outputs


def tune_one(
    encoder: DualEncoder,
    encode_texts: Callable[[Tensor], Tensor],
    start: Tensor,
    image_features: Tensor,
    objective: Callable[[Outputs], Tensor],
    *,
    steps: int,
    lr: float = 5e-3,
    weight_decay: float = 0.01,
) -> tuple[Tensor, list[float], Tensor]:
    """Tuned context [M, E], loss per step, and the plain view's probabilities [C].

    ``encode_texts`` maps a context [M, E] to unit text features [C, D]; ``image_features`` is [V, D].
    """
    context = start.clone().requires_grad_()
    optimiser = torch.optim.AdamW([context], lr=lr, weight_decay=weight_decay)

    def logits(texts: Tensor) -> Tensor:
        return encoder.scale * image_features @ texts.T + encoder.bias

    reference = logits(encode_texts(start)).detach()
    losses = []
    for _ in range(steps):
        texts = encode_texts(context)
        out = Outputs(image_features[None], texts[None], logits(texts)[None], reference[None])
        loss = objective(out).sum()
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        losses.append(loss.item())
    with torch.no_grad():
        return context.detach(), losses, logits(encode_texts(context))[0].softmax(-1)
