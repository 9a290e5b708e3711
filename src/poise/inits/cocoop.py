"""CoCoOp: a context that depends on the image (Zhou et al., 2022, conditional prompt learning).

A small network maps an image's feature to one vector, which is added to every context vector:
context(x) = context + W₂ relu(W₁ f(x) + b₁) + b₂, with a hidden layer of D / 16 units. As an init, the context is
computed once per image, from the plain view, and then tuned like any other.

In the published code, training and inference normalise the feature before the network, but the init for test-time
tuning uses raw features. Here the network reads unit features, as in its training; a ``feature_norm`` of about 10 (for
CLIP's ViT-B/16) reproduces the published init.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from poise.encoding.class_texts import ClassTexts
from poise.inits.coop import Shape, initial_context
from poise.inits.few_shot import FewShot, Report, Tensors, check_shots, train, uniform
from poise.prompts.conditional import PARTS, Conditional
from poise.prompts.files import StoredPrompt
from poise.types import DualEncoder, Prompt

_REDUCTION = 16
RECIPE = FewShot(epochs=10, batch_size=1)  # as published: one image per batch, because contexts differ


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
    """Fit a context and its network to labelled images, given as in `poise.inits.coop.fit`."""
    features, targets = check_shots(features, targets, len(labels), encoder.device)
    classes, context, facts = initial_context(encoder, labels, Shape(words=words), recipe.seed)
    texts = ClassTexts(encoder, classes, Prompt(context[None]))

    def step(tensors: Tensors, epoch: int, rows: Tensor) -> tuple[float, Tensors]:
        return loss_and_gradient(texts, tensors, features[rows, epoch % features.shape[1]], targets[rows])

    tensors = train(fresh_network(context, features.shape[-1], recipe.seed), len(features), recipe, step, report)
    return StoredPrompt(tensors, replace(facts, kind="cocoop"))


def loss_and_gradient(texts: ClassTexts, tensors: Tensors, features: Tensor, targets: Tensor) -> tuple[float, Tensors]:
    """Return the mean cross-entropy of images [n, D] with classes [n], and the gradients of context and network."""
    leaves = {name: tensor.detach().clone().requires_grad_() for name, tensor in tensors.items()}
    prompt = Conditional(*(leaves[name] for name in PARTS)).prompt(features)  # [n, M, E], with a graph to the network
    fixed = prompt.map(lambda part: part.detach())
    leaf = texts.features(fixed).requires_grad_()  # [n, C, D]
    loss = torch.nn.functional.cross_entropy(texts.encoder.logits(features[:, None], leaf)[:, 0], targets)
    (cotangent,) = torch.autograd.grad(loss, leaf)
    context_gradient = texts.pullback(fixed, cotangent).context.to(prompt.context.dtype)
    gradients = torch.autograd.grad(prompt.context, list(leaves.values()), context_gradient)
    return float(loss.detach()), dict(zip(leaves, gradients, strict=True))


def fresh_network(context: Tensor, width: int, seed: int) -> Tensors:
    """Return the context and an initialised network for features of ``width``."""
    generator, hidden, embedding = torch.Generator().manual_seed(seed), max(1, width // _REDUCTION), context.shape[-1]
    shapes = [(width, hidden, width), (width, hidden), (hidden, embedding, hidden), (hidden, embedding)]  # inputs first
    return dict(zip(PARTS, (context, *(uniform(generator, context, *shape) for shape in shapes)), strict=True))
