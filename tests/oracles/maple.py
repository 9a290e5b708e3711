"""MaPLe by hand: one view and one sentence at a time, all of them in one graph, torch's own optimisers."""

from __future__ import annotations

from collections.abc import Callable

import torch
from open_clip.model import CLIP
from torch import Tensor

from poise.types import ClassTokens, Outputs, Prompt
from tests.oracles.text import text_features

NAMES = ("context", "deep", "weight", "bias")


def image_layers(values: dict[str, Tensor]) -> list[Tensor]:
    sources = [values["context"], *values["deep"]]
    return [source @ w.T + b for source, w, b in zip(sources, values["weight"], values["bias"], strict=True)]


def encode_view(model: CLIP, view: Tensor, layers: list[Tensor]) -> tuple[Tensor, list[Tensor]]:
    """Unit feature [D] of one view and the token states [T, W] that each block reads."""
    visual = model.visual
    patches = visual.conv1(view[None])[0].flatten(1).T
    tokens = torch.cat([visual.class_embedding[None], patches]) + visual.positional_embedding
    x = visual.ln_pre(torch.cat([tokens, layers[0]]))[None]
    states = []
    for depth, block in enumerate(visual.transformer.resblocks):
        if 1 <= depth < len(layers):
            x = torch.cat([x[:, : len(tokens)], layers[depth][None]], 1)
        states.append(x[0])
        x = block(x)
    feature = visual.ln_post(x[0, 0]) @ visual.proj
    return feature / feature.norm(), states


def forward(
    model: CLIP, classes: ClassTokens, values: dict[str, Tensor], views: Tensor, scale: float, token_layers: int
):
    """Features [V, D], texts [C, D], logits [V, C], token states [V, token_layers, T, W] of one image."""
    layers = image_layers(values)
    encoded = [encode_view(model, view, layers) for view in views]
    features = torch.stack([feature for feature, _ in encoded])
    prompt = Prompt(values["context"][None], text_layers=values["deep"][None])
    texts = text_features(model, classes, prompt)[0]
    tokens = torch.stack([torch.stack(states[:token_layers]) for _, states in encoded]) if token_layers else None
    return features, texts, scale * features @ texts.T, tokens


def tune_one(
    model: CLIP,
    classes: ClassTokens,
    start: dict[str, Tensor],
    views: Tensor,
    scale: float,
    objective: Callable[[Outputs], Tensor],
    *,
    steps: int,
    lr: float,
    token_layers: int = 0,
) -> tuple[dict[str, Tensor], list[float], Tensor]:
    """Tuned tensors, loss per step, and the plain view's logits, for one image's views [V, 3, S, S]."""
    values = {name: start[name].clone().requires_grad_() for name in NAMES}
    optimiser = torch.optim.AdamW(list(values.values()), lr=lr, weight_decay=0.01)
    reference, losses = None, []
    for _ in range(steps):
        features, texts, logits, tokens = forward(model, classes, values, views, scale, token_layers)
        reference = logits.detach() if reference is None else reference
        held = None if tokens is None else tokens[None]
        loss = objective(Outputs(features[None], texts[None], logits[None], reference[None], tokens=held)).sum()
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        losses.append(loss.item())
    with torch.no_grad():
        logits = forward(model, classes, values, views, scale, 0)[2]
    return {name: value.detach() for name, value in values.items()}, losses, logits[0]


def alignment(tokens: Tensor, chosen: list[int], mean: Tensor, variance: Tensor) -> Tensor:
    """PromptAlign's term for one image's token states [V, J, T, W], layer by layer."""
    total = tokens.new_zeros(())
    for layer in range(tokens.shape[1]):
        states = [tokens[view, layer] for view in chosen]
        mu = sum(states) / len(states)
        var = sum((state - mu) ** 2 for state in states) / len(states)
        total = total + 0.5 * (mu - mean[layer]).abs().mean() + 0.5 * (var - variance[layer]).abs().mean()
    return total
