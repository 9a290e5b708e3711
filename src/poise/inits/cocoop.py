"""CoCoOp: a context that follows the image (Zhou et al., 2022, conditional prompt learning).

A small network turns an image's feature into one vector, which is added to every context vector:
context(x) = context + W₂ relu(W₁ f(x) + b₁) + b₂, with a hidden layer of D / 16. As an init for tuning, the context is
made once, from the plain view, and then tuned like any other.

Published protocol and its quirk: inference normalises the feature before the network, but the code that makes the
init for test-time tuning gives the network raw features. Encoders here return unit features, so the default is the
normalised form, which is what the network was fitted on; ``feature_norm`` (about 10 for CLIP's ViT-B/16) multiplies
the feature to reproduce the quirk.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from poise.encoding.class_texts import ClassTexts
from poise.inits.coop import Shape, begin
from poise.inits.few_shot import FewShot, Report, Tensors, check_shots, train
from poise.prompts.conditional import PARTS, Conditional
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
    texts = ClassTexts(encoder, classes, Prompt(context[None]))
    fresh = fresh_network(context, features.shape[-1], recipe.seed)

    def step(now: Tensors, epoch: int, rows: Tensor) -> tuple[float, Tensors]:
        return loss_and_gradient(texts, now, features[rows, epoch % features.shape[1]], targets[rows])

    tensors = train(fresh, len(features), recipe, step, report)
    return StoredPrompt(tensors, replace(facts, kind="cocoop"))


def loss_and_gradient(texts: ClassTexts, now: Tensors, features: Tensor, targets: Tensor) -> tuple[float, Tensors]:
    """Mean cross-entropy of images [n, D] with classes [n], and its gradient for the context and the network."""
    leaves = {name: tensor.detach().clone().requires_grad_() for name, tensor in now.items()}
    prompt = Conditional(*(leaves[name] for name in PARTS)).prompt(features)  # [n, M, E], with a graph to the network
    fixed = prompt.map(lambda part: part.detach())
    leaf = texts.features(fixed).requires_grad_()  # [n, C, D]
    loss = torch.nn.functional.cross_entropy(texts.encoder.logits(features[:, None], leaf)[:, 0], targets)
    (cotangent,) = torch.autograd.grad(loss, leaf)
    moved = texts.pullback(fixed, cotangent).context.to(prompt.context.dtype)
    gradients = torch.autograd.grad(prompt.context, list(leaves.values()), moved)
    return float(loss.detach()), dict(zip(leaves, gradients, strict=True))


def fresh_network(context: Tensor, width: int, seed: int) -> Tensors:
    """The context and linear layers with torch's usual uniform initialisation, from a generator of its own."""
    generator, hidden = torch.Generator().manual_seed(seed), max(1, width // _REDUCTION)

    def uniform(*shape: int, inputs: int) -> Tensor:
        return (torch.rand(*shape, generator=generator, dtype=torch.float64).to(context) * 2 - 1) / inputs**0.5

    network = (
        uniform(hidden, width, inputs=width),
        uniform(hidden, inputs=width),
        uniform(context.shape[-1], hidden, inputs=hidden),
        uniform(context.shape[-1], inputs=hidden),
    )
    return dict(zip(PARTS, (context, *network), strict=True))
