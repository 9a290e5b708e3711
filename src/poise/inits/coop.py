"""CoOp: a context fitted to a few labelled images per class (Zhou et al., 2022).

The image tower is frozen, so every crop is encoded once, before the first step; an epoch reads one crop of each image.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from poise.encoding.class_texts import ClassTexts
from poise.errors import InvalidOptionError
from poise.inits.few_shot import FewShot, Report, Tensors, check_shots, train
from poise.prompts import init_prompt, tokenise
from poise.prompts.files import Facts, StoredPrompt
from poise.storage import hash_names
from poise.types import ClassTokens, DualEncoder, Prompt

POSITIONS = {"end": "before", "middle": "around", "front": "after"}  # of the class name -> where the context stands


def published_epochs(shots: int, dataset: str = "") -> int:
    """How long CoOp was trained with that many images per class (0: all); on ImageNet always 50 epochs.

    >>> [published_epochs(shots) for shots in (1, 2, 4, 8, 16)]
    [50, 100, 100, 200, 200]
    """
    if dataset == "imagenet" or shots == 1:
        return 50
    return 100 if 0 < shots < 8 else 200


@dataclass(frozen=True, kw_only=True)
class Shape:
    """What the context looks like before it is fitted."""

    tokens: int = 16
    position: str = "end"  # of the class name in the sentence: end, middle, front
    class_specific: bool = False
    words: str = ""  # begin at these words' vectors ("a photo of a", or "a photo of a {} at night"); "" = at random
    sd: float = 0.02  # of the random beginning


def placeholder_template(tokens: int, position: str = "end") -> str:
    """A sentence whose context is ``tokens`` placeholders; only their places matter.

    >>> placeholder_template(5, "middle")
    'X X {} X X X.'
    """
    if tokens < 1:
        raise InvalidOptionError(f"tokens is {tokens}.", hint="A context has 1 token or more.")
    context_option(position, tokens)
    before = {"end": tokens, "middle": tokens // 2, "front": 0}[position]
    return " ".join(["X"] * before + ["{}"] + ["X"] * (tokens - before)) + "."


def context_option(position: str, tokens: int) -> str:
    """`tokenise`'s option for a position of the class name."""
    if position not in POSITIONS:
        raise InvalidOptionError(f"position={position!r} is not accepted.", hint=f"Accepted: {', '.join(POSITIONS)}.")
    alone = position == "middle" and tokens == 1  # half of one token is none, so it stands behind the name
    return "after" if alone else POSITIONS[position]


def begin(encoder: DualEncoder, labels: Sequence[str], shape: Shape, seed: int) -> tuple[ClassTokens, Tensor, Facts]:
    """The labels' tokens, the first context [M, E] or [C, M, E] in float32 or wider, and the facts to store."""
    template = shape.words or placeholder_template(shape.tokens, shape.position)
    if shape.words and "{" not in template:
        template = f"{template.strip()} {{}}."
    option = "auto" if shape.words else context_option(shape.position, shape.tokens)
    classes = tokenise(encoder, labels, template, context=option, repeats=True)  # ImageNet has two names twice
    context = init_prompt(encoder, classes).context[0]
    context = context.to(torch.promote_types(context.dtype, torch.float32))
    if shape.class_specific:
        context = context.repeat(len(classes), 1, 1)
    if not shape.words:
        generator = torch.Generator().manual_seed(seed)
        context = torch.randn(context.shape, generator=generator, dtype=torch.float64).to(context) * shape.sd
    facts = Facts(kind="coop", model=encoder.name, template=template, context=option)
    return classes, context, replace(facts, labels_hash=hash_names(labels) if shape.class_specific else "")


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
    """Fit a context to labelled images.

    Args:
        encoder: whose text tower reads the context.
        labels: the class names.
        features: unit features [N, K, D] of K crops of each image; epoch e reads crop e modulo K.
        targets: the images' classes [N].
        shape: length, place and beginning of the context.
        recipe: how it is trained.
        report: called after each epoch with its mean loss.
    """
    shape, recipe = shape or Shape(), recipe or FewShot()
    check_shots(features, targets, len(labels))
    features, targets = features.to(encoder.device), targets.to(encoder.device)
    classes, context, facts = begin(encoder, labels, shape, recipe.seed)
    texts = ClassTexts(encoder, classes, Prompt(context[None]))

    def step(now: Tensors, epoch: int, rows: Tensor) -> tuple[float, Tensors]:
        seen = features[rows, epoch % features.shape[1]]  # [n, D]
        loss, gradient = loss_and_gradient(texts, now["context"], seen, targets[rows])
        return float(loss), {"context": gradient}

    return StoredPrompt(train({"context": context}, len(features), recipe, step, report), facts)


def loss_and_gradient(texts: ClassTexts, context: Tensor, features: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """Cross-entropy of images [n, D] with classes [n] under one context, and its gradient there.

    The text tower's graph is made per chunk of classes and dropped, so memory doesn't grow with their number.
    """
    found, pullback = texts.with_pullback(Prompt(context[None]))
    leaf = found.requires_grad_()  # [1, C, D]
    loss = torch.nn.functional.cross_entropy(texts.encoder.logits(features[None], leaf)[0], targets)
    (cotangent,) = torch.autograd.grad(loss, leaf)
    return loss.detach(), pullback(cotangent).context[0].to(context.dtype)
