"""CoCoOp: a context that follows the image (Zhou et al., 2022, conditional prompt learning).

A small network turns an image's feature into one vector, which is added to every context vector:
context(x) = context + W₂ relu(W₁ f(x) + b₁) + b₂, with a hidden layer of D / 16. As a start for tuning, the context is
made once, from the plain view, and then tuned like any other.

Published protocol and its quirk: inference normalises the feature before the network, but the code that makes the
start for test-time tuning gives the network raw features. Encoders here return unit features, so the default is the
normalised form, which is what the network was fitted on; ``feature_norm`` (about 10 for CLIP's ViT-B/16) multiplies
the feature to reproduce the quirk.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from poise.encoding.class_texts import ClassTexts
from poise.inits.coop import FewShot, Report, Shape, begin, check_shots
from poise.prompts.conditional import NETWORK, Conditional
from poise.prompts.files import StoredPrompt
from poise.types import DualEncoder, Prompt

_REDUCTION = 16
RECIPE = FewShot(epochs=10, batch_size=1)  # as published: one image at a time, because each has its own context


def fit(
    encoder: DualEncoder,
    labels: Sequence[str],
    features: Tensor,
    targets: Tensor,
    *,
    words: str = "a photo of a",
    recipe: FewShot = RECIPE,
    report: Report = lambda epoch, loss: None,
) -> StoredPrompt:
    """Fit context and network to unit features [N, K, D] of labelled images; epoch e reads crop e modulo K."""
    check_shots(features, targets, len(labels))
    features, targets = features.to(encoder.device), targets.to(encoder.device)
    classes, context, facts = begin(encoder, labels, Shape(words=words), recipe.seed)
    model = _fresh(context, features.shape[-1], recipe.seed)
    texts = ClassTexts(encoder, classes, Prompt(context[None]))
    parameters = {name: getattr(model, name).requires_grad_() for name in ("context", *NETWORK)}
    optimiser = torch.optim.SGD(
        list(parameters.values()), recipe.lr, momentum=recipe.momentum, weight_decay=recipe.weight_decay
    )
    for epoch in range(recipe.epochs):
        optimiser.param_groups[0]["lr"] = recipe.rate(epoch)
        losses = []
        for rows in recipe.batches(len(features), epoch):
            optimiser.zero_grad()
            losses.append(backward(texts, model, features[rows, epoch % features.shape[1]], targets[rows]))
            optimiser.step()
        report(epoch, math.fsum(losses) / len(losses))
    tensors = {name: tensor.detach() for name, tensor in parameters.items()}
    return StoredPrompt(tensors, replace(facts, kind="cocoop"))


def backward(texts: ClassTexts, model: Conditional, features: Tensor, targets: Tensor) -> float:
    """Mean cross-entropy of images [n, D]; leaves its gradient in the model's parameters."""
    prompt = model.prompt(features)  # [n, M, E], with a graph to the network
    fixed = prompt.map(lambda part: part.detach())
    leaf = texts.features(fixed).requires_grad_()  # [n, C, D]
    logits = texts.encoder.logits(features[:, None], leaf)[:, 0]
    loss = torch.nn.functional.cross_entropy(logits, targets)
    (cotangent,) = torch.autograd.grad(loss, leaf)
    prompt.context.backward(texts.pullback(fixed, cotangent).context.to(prompt.context.dtype))
    return float(loss.detach())


def _fresh(context: Tensor, width: int, seed: int) -> Conditional:
    """Linear layers with torch's own uniform beginning, from a generator of its own."""
    generator, hidden = torch.Generator().manual_seed(seed), max(1, width // _REDUCTION)

    def uniform(*shape: int, inputs: int) -> Tensor:
        return (torch.rand(*shape, generator=generator, dtype=torch.float64).to(context) * 2 - 1) / inputs**0.5

    return Conditional(
        context.clone(),
        uniform(hidden, width, inputs=width),
        uniform(hidden, inputs=width),
        uniform(context.shape[-1], hidden, inputs=hidden),
        uniform(context.shape[-1], inputs=hidden),
    )
