"""MaPLe: prompts in both towers, in several layers, those of the image tower projected from those of the text tower.

(Khattak et al., 2023.) The context is the first M words of "a photo of a"; deep text prompts take its place at the
input of text layers 1..J; a linear map of each, and of the context, gives the prompts of image layers 0..J.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from poise.encoding.class_texts import ClassTexts
from poise.encoding.coupled import Coupled
from poise.encoding.prompted_views import PromptedViews, image_tower
from poise.errors import InvalidOptionError
from poise.inits.coop import FewShot, Report
from poise.prompts import init_prompt, tokenise
from poise.prompts.files import Facts, StoredPrompt
from poise.types import DualEncoder

TEMPLATE = "a photo of a {}."
RECIPE = FewShot(epochs=5, batch_size=4, lr=3.5e-3)
_FRESH_SD = 0.02  # of deep prompts before they are fitted


@dataclass(frozen=True)
class Published:
    """A published way to train MaPLe."""

    recipe: FewShot
    depth: int


RECIPES = {
    "few-shot": Published(RECIPE, 9),  # for the classes it is trained on
    "transfer": Published(FewShot(epochs=2, batch_size=4, lr=2.6e-3), 3),  # on ImageNet, for other datasets
}


def fresh(encoder: DualEncoder, labels: Sequence[str], *, tokens: int, depth: int, seed: int) -> Coupled:
    """MaPLe before it is fitted: words as context, random deep prompts, and two random projections.

    One is the context's; the deep prompts begin with copies of the other.
    """
    tower = image_tower(encoder)
    if not 1 <= depth <= tower.depth:
        raise InvalidOptionError(
            f"depth is {depth}.", hint=f"The image tower has {tower.depth} layers: give 1..{tower.depth}."
        )
    classes = tokenise(encoder, labels, TEMPLATE, context="before", tokens=tokens, repeats=True)
    context = init_prompt(encoder, classes).context
    context = context.to(torch.promote_types(context.dtype, torch.float32))
    generator, width = torch.Generator().manual_seed(seed), context.shape[-1]

    def draw(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64).to(context)

    def uniform(*shape: int) -> Tensor:
        return (torch.rand(*shape, generator=generator, dtype=torch.float64).to(context) * 2 - 1) / math.sqrt(width)

    deep = draw(1, depth - 1, tokens, width) * _FRESH_SD
    weights = uniform(1, 2, tower.width, width)
    biases = uniform(1, 2, tower.width)
    of_layer = [0] + [1] * (depth - 1)
    return Coupled(context, deep, weights[:, of_layer], biases[:, of_layer])


def fit(
    encoder: DualEncoder,
    labels: Sequence[str],
    pictures: Callable[[int, Tensor], Tensor],
    targets: Tensor,
    *,
    tokens: int = 2,
    depth: int = RECIPES["few-shot"].depth,
    recipe: FewShot = RECIPE,
    report: Report = lambda epoch, loss: None,
) -> StoredPrompt:
    """Fit coupled prompts; ``pictures(epoch, rows)`` gives the normalised crops [n, 3, S, S] of some images."""
    coupled = fresh(encoder, labels, tokens=tokens, depth=depth, seed=recipe.seed)
    classes = tokenise(encoder, labels, TEMPLATE, context="before", tokens=tokens, repeats=True)
    texts, views = ClassTexts(encoder, classes, coupled.text()), PromptedViews(encoder)
    parameters = {name: part.clone().requires_grad_() for name, part in coupled.parts().items()}
    optimiser = torch.optim.SGD(
        list(parameters.values()), recipe.lr, momentum=recipe.momentum, weight_decay=recipe.weight_decay
    )
    for epoch in range(recipe.epochs):
        optimiser.param_groups[0]["lr"] = recipe.rate(epoch)
        losses = []
        for rows in recipe.batches(len(targets), epoch):
            now = Coupled(**{name: part.detach() for name, part in parameters.items()})
            loss, gradient = loss_and_gradient(texts, views, now, pictures(epoch, rows), targets[rows])
            for name, part in gradient.parts().items():
                parameters[name].grad = part.to(parameters[name].dtype)
            optimiser.step()
            losses.append(loss)
        report(epoch, math.fsum(losses) / len(losses))
    facts = Facts(kind="maple", model=encoder.name, template=TEMPLATE, context="before", tokens=tokens)
    return StoredPrompt({name: part.detach()[0] for name, part in parameters.items()}, facts)


def loss_and_gradient(
    texts: ClassTexts, views: PromptedViews, coupled: Coupled, pictures: Tensor, targets: Tensor
) -> tuple[float, Coupled]:
    """Cross-entropy of pictures [n, 3, S, S] with classes [n], and its gradient."""
    layers, one = coupled.image_layers(), pictures[None]  # as n views of one image: they share the prompt
    features, _ = views.features(one, layers)
    leaf, image_leaf = texts.features(coupled.text()).requires_grad_(), features.requires_grad_()
    loss = torch.nn.functional.cross_entropy(
        texts.encoder.logits(image_leaf[None], leaf)[0], targets.to(image_leaf.device)
    )
    cotangent, image_cotangent = torch.autograd.grad(loss, [leaf, image_leaf])
    which = torch.stack([torch.zeros(len(pictures), dtype=torch.long), torch.arange(len(pictures))], 1)
    image = views.pullback(one, layers, which, image_cotangent, None)
    return float(loss.detach()), coupled.pull(texts.pullback(coupled.text(), cotangent), image)
