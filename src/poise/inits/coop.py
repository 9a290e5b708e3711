"""CoOp: a context fitted to a few labelled images per class (Zhou et al., 2022).

The image tower is frozen, so all crops are encoded before training; each epoch uses one crop per image.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from poise.backbones.encoder import wide
from poise.encoding.class_texts import ClassTexts
from poise.errors import InvalidOptionError
from poise.files import hash_names
from poise.inits.few_shot import FewShot, Report, Tensors, check_shots, train
from poise.prompts import init_prompt, tokenise
from poise.prompts.files import Facts, StoredPrompt
from poise.types import ClassTokens, DualEncoder, Prompt

POSITIONS = {"end": "before", "middle": "around", "front": "after"}  # position of the class name -> `tokenise`'s option


def published_epochs(shots: int, dataset: str = "") -> int:
    """Return the published number of epochs for a number of images per class (0: all); on ImageNet always 50.

    >>> [published_epochs(shots) for shots in (1, 2, 4, 8, 16)]
    [50, 100, 100, 200, 200]
    """
    if dataset == "imagenet" or shots == 1:
        return 50
    return 100 if 0 < shots < 8 else 200


@dataclass(frozen=True, kw_only=True)
class Shape:
    """Shape and initial value of the context."""

    tokens: int = 16
    position: str = "end"  # position of the class name: end, middle or front
    class_specific: bool = False
    words: str = ""  # initial words ("a photo of a", or "a photo of a {} at night"); "" for a random context
    sd: float = 0.02  # standard deviation of the random context


def placeholder_template(tokens: int, position: str = "end") -> str:
    """Return a template with ``tokens`` placeholder words, whose embeddings are never used.

    >>> placeholder_template(5, "middle")
    'X X {} X X X.'
    """
    if tokens < 1:
        raise InvalidOptionError(f"tokens is {tokens}.", hint="It must be at least 1.")
    context_option(position, tokens)
    before = {"end": tokens, "middle": tokens // 2, "front": 0}[position]
    return " ".join(["X"] * before + ["{}"] + ["X"] * (tokens - before)) + "."


def context_option(position: str, tokens: int) -> str:
    """Return the option ``context`` of `tokenise` for a position of the class name."""
    if position not in POSITIONS:
        raise InvalidOptionError(f"position={position!r} is not accepted.", hint=f"Accepted: {', '.join(POSITIONS)}.")
    single = position == "middle" and tokens == 1  # no token is left for the words before the name
    return "after" if single else POSITIONS[position]


def initial_context(
    encoder: DualEncoder, labels: Sequence[str], shape: Shape, seed: int
) -> tuple[ClassTokens, Tensor, Facts]:
    """Return the tokenised labels, the initial context [M, E] or [C, M, E] in float32 or wider, and its facts."""
    template = shape.words or placeholder_template(shape.tokens, shape.position)
    if shape.words and "{" not in template:
        template = f"{template.strip()} {{}}."
    option = "auto" if shape.words else context_option(shape.position, shape.tokens)
    classes = tokenise(encoder, labels, template, context=option, repeats=True)  # two of ImageNet's names occur twice
    context = init_prompt(encoder, classes).context[0].to(wide(encoder.dtype))
    if shape.class_specific:
        context = context.repeat(len(classes), 1, 1)
    if not shape.words:
        generator = torch.Generator().manual_seed(seed)
        context = torch.randn(context.shape, generator=generator, dtype=torch.float64).to(context) * shape.sd
    labels_hash = hash_names(labels) if shape.class_specific else ""
    facts = Facts.of(encoder, kind="coop", template=template, context=option, labels_hash=labels_hash)
    return classes, context, facts


def fit(
    encoder: DualEncoder,
    labels: Sequence[str],
    features: Tensor,
    targets: Tensor,
    *,
    shape: Shape | None = None,
    recipe: FewShot | None = None,
    report: Report = lambda epoch, loss: None,
) -> StoredPrompt:
    """Fit a context to labelled images, given the unit features [N, K, D] of K crops each and their classes [N]."""
    shape, recipe = shape or Shape(), recipe or FewShot()
    features, targets = check_shots(features, targets, len(labels), encoder.device)
    classes, context, facts = initial_context(encoder, labels, shape, recipe.seed)
    texts = ClassTexts(encoder, classes, Prompt(context[None]))

    def step(tensors: Tensors, epoch: int, rows: Tensor) -> tuple[float, Tensors]:
        crops = features[rows, epoch % features.shape[1]]  # [n, D]
        loss, gradient = loss_and_gradient(texts, tensors["context"], crops, targets[rows])
        return float(loss), {"context": gradient}

    return StoredPrompt(train({"context": context}, len(features), recipe, step, report), facts)


def loss_and_gradient(texts: ClassTexts, context: Tensor, features: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """Return the mean cross-entropy of images [n, D] with classes [n] under one context, and its gradient.

    The graph of the text tower is kept for one chunk of classes at a time, so memory doesn't grow with their number.
    """
    text_features, pullback = texts.with_pullback(Prompt(context[None]))
    leaf = text_features.requires_grad_()  # [1, C, D]
    loss = torch.nn.functional.cross_entropy(texts.encoder.logits(features[None], leaf)[0], targets)
    (cotangent,) = torch.autograd.grad(loss, leaf)
    return loss.detach(), pullback(cotangent).context[0].to(context.dtype)
