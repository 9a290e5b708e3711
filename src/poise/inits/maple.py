"""MaPLe: prompts in several layers of both towers (Khattak et al., 2023).

The context replaces the first M words of "a photo of a", deep text prompts replace it at the input of text layers 1..J,
and linear maps of the context and the deep text prompts give the prompts of image layers 0..J.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from poise.backbones.encoder import wide
from poise.encoding.class_texts import ClassTexts
from poise.encoding.coupled import Coupled
from poise.encoding.prompted_views import PromptedViews, image_tower
from poise.errors import InvalidOptionError
from poise.inits.few_shot import FewShot, Report, Tensors, train, uniform
from poise.prompts import init_prompt, tokenise
from poise.prompts.files import Facts, StoredPrompt
from poise.types import DualEncoder

TEMPLATE = "a photo of a {}."
RECIPE = FewShot(epochs=5, batch_size=4, lr=3.5e-3)
_FRESH_SD = 0.02  # standard deviation of the initial deep prompts


@dataclass(frozen=True)
class Published:
    """A published training recipe of MaPLe."""

    recipe: FewShot
    depth: int


RECIPES = {
    "few-shot": Published(RECIPE, 9),  # for the classes of the training images
    "transfer": Published(FewShot(epochs=2, batch_size=4, lr=2.6e-3), 3),  # from ImageNet to other datasets
}


def fresh(encoder: DualEncoder, labels: Sequence[str], *, tokens: int, depth: int, seed: int) -> Coupled:
    """Return initial prompts: words as context, random deep prompts, one random projection for all of them."""
    tower = image_tower(encoder)
    if not 1 <= depth <= tower.depth:
        raise InvalidOptionError(
            f"depth is {depth}.", hint=f"The image tower has {tower.depth} layers: use 1..{tower.depth}."
        )
    classes = tokenise(encoder, labels, TEMPLATE, context="before", tokens=tokens, repeats=True)
    context = init_prompt(encoder, classes).context.to(wide(encoder.dtype))
    generator, width = torch.Generator().manual_seed(seed), context.shape[-1]
    deep = torch.randn(1, depth - 1, tokens, width, generator=generator, dtype=torch.float64).to(context) * _FRESH_SD
    weights = uniform(generator, context, width, 1, 2, tower.width, width)
    biases = uniform(generator, context, width, 1, 2, tower.width)
    layers = [0] + [1] * (depth - 1)
    return Coupled(context, deep, weights[:, layers], biases[:, layers])


def fit(
    encoder: DualEncoder,
    labels: Sequence[str],
    images: Callable[[int, Tensor], Tensor],
    targets: Tensor,
    *,
    tokens: int = 2,
    depth: int = RECIPES["few-shot"].depth,
    recipe: FewShot = RECIPE,
    report: Report = lambda epoch, loss: None,
) -> StoredPrompt:
    """Fit prompts of both towers; ``images`` maps an epoch and rows of ``targets`` [N] to crops [n, 3, S, S]."""
    coupled = fresh(encoder, labels, tokens=tokens, depth=depth, seed=recipe.seed)
    classes = tokenise(encoder, labels, TEMPLATE, context="before", tokens=tokens, repeats=True)
    texts, views = ClassTexts(encoder, classes, coupled.text()), PromptedViews(encoder)

    def step(tensors: Tensors, epoch: int, rows: Tensor) -> tuple[float, Tensors]:
        loss, gradient = loss_and_gradient(texts, views, Coupled(**tensors), images(epoch, rows), targets[rows])
        return loss, gradient.parts()

    tensors = train(coupled.parts(), len(targets), recipe, step, report)
    facts = Facts.of(encoder, kind="maple", template=TEMPLATE, context="before", tokens=tokens)
    return StoredPrompt({name: part[0] for name, part in tensors.items()}, facts)


def loss_and_gradient(
    texts: ClassTexts, views: PromptedViews, coupled: Coupled, images: Tensor, targets: Tensor
) -> tuple[float, Coupled]:
    """Return the mean cross-entropy of images [n, 3, S, S] with classes [n], and its gradient."""
    layers, batch = coupled.image_layers(), images[None]  # n views of one image, since all share the prompt
    features, _ = views.features(batch, layers)
    leaf, image_leaf = texts.features(coupled.text()).requires_grad_(), features.requires_grad_()
    loss = torch.nn.functional.cross_entropy(
        texts.encoder.logits(image_leaf[None], leaf)[0], targets.to(image_leaf.device)
    )
    text_gradient, image_gradient = torch.autograd.grad(loss, [leaf, image_leaf])
    indices = torch.stack([torch.zeros(len(images), dtype=torch.long), torch.arange(len(images))], 1)
    prompts = views.pullback(batch, layers, indices, image_gradient, None)
    return float(loss.detach()), coupled.pull(texts.pullback(coupled.text(), text_gradient), prompts)
