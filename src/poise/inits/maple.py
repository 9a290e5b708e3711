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

from poise.errors import BadCheckpoint, InvalidOption
from poise.forward import ClassTexts
from poise.inits.coop import FewShot, Report
from poise.pictures import PromptedViews, image_tower
from poise.prompts import start_prompt, tokenise
from poise.prompts.store import Facts, StoredPrompt
from poise.types import DualEncoder, Prompt

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


@dataclass(frozen=True)
class Coupled:
    """All that MaPLe fits or tunes; B = 1 serves all images alike."""

    context: Tensor  # [B, M, E]
    deep: Tensor  # [B, J, M, E]
    weight: Tensor  # [B, 1 + J, W, E]
    bias: Tensor  # [B, 1 + J, W]

    @classmethod
    def of(cls, stored: StoredPrompt, encoder: DualEncoder) -> Coupled:
        """From a file, after checking that depth and widths are the model's."""
        missing = [name for name in ("deep", "weight", "bias") if name not in stored.tensors]
        if missing:
            raise BadCheckpoint(f"The prompt has no {', '.join(missing)}.", hint="It is not a MaPLe prompt.")
        tower, layers = image_tower(encoder), stored.tensors["weight"].shape[0]
        if layers > tower.depth or stored.tensors["deep"].shape[0] != layers - 1:
            raise BadCheckpoint(
                f"The prompt has {layers} projections and {stored.tensors['deep'].shape[0]} deep prompts; "
                f"the image tower has {tower.depth} layers.",
                hint="Give one projection more than deep prompts, and at most one for each layer.",
            )
        if stored.tensors["weight"].shape[1] != tower.width:
            raise BadCheckpoint(
                f"The prompt projects to width {stored.tensors['weight'].shape[1]}, the image tower has {tower.width}.",
                hint="Fit the prompt on this model.",
            )
        dtype = torch.promote_types(encoder.dtype, torch.float32)
        names = ("context", "deep", "weight", "bias")
        return cls(**{name: stored.tensors[name][None].to(encoder.device, dtype) for name in names})

    def __len__(self) -> int:
        return int(self.context.shape[0])

    def parts(self) -> dict[str, Tensor]:
        """The tensors by name."""
        return {"context": self.context, "deep": self.deep, "weight": self.weight, "bias": self.bias}

    def map(self, change: Callable[[Tensor], Tensor]) -> Coupled:
        """The same with ``change`` applied to each tensor."""
        return Coupled(**{name: change(part) for name, part in self.parts().items()})

    def text(self) -> Prompt:
        """The text tower's share."""
        return Prompt(self.context, text_layers=self.deep if self.deep.shape[1] else None)

    def image_layers(self) -> Tensor:
        """The image tower's prompts [B, 1 + J, M, W]."""
        sources = torch.cat([self.context[:, None], self.deep], 1)  # [B, 1 + J, M, E]
        return sources @ self.weight.mT + self.bias[:, :, None]

    def prompt(self) -> Prompt:
        """Both towers' prompts."""
        return Prompt(self.context, self.text().text_layers, self.image_layers())

    def pull(self, text: Prompt, image: Tensor) -> Coupled:
        """Gradient of these tensors, given those of the text prompts and of the image prompts [B, 1 + J, M, W]."""
        count = len(image)
        leaf = self.map(lambda part: part.detach().expand(count, *part.shape[1:]).clone().requires_grad_())
        with torch.enable_grad():
            layers = leaf.image_layers()
        names = leaf.parts()
        slopes = torch.autograd.grad(layers, list(names.values()), image.to(layers.dtype), materialize_grads=True)
        gradient = dict(zip(names, slopes, strict=True))
        gradient["context"] = gradient["context"] + text.context
        if text.text_layers is not None:
            gradient["deep"] = gradient["deep"] + text.text_layers
        return Coupled(**gradient)


def fresh(encoder: DualEncoder, labels: Sequence[str], *, tokens: int, depth: int, seed: int) -> Coupled:
    """MaPLe before it is fitted: words as context, random deep prompts, and two random projections.

    One is the context's; the deep prompts begin with copies of the other.
    """
    tower = image_tower(encoder)
    if not 1 <= depth <= tower.depth:
        raise InvalidOption(
            f"depth is {depth}.", hint=f"The image tower has {tower.depth} layers: give 1..{tower.depth}."
        )
    classes = tokenise(encoder, labels, TEMPLATE, context="before", tokens=tokens, repeats=True)
    context = start_prompt(encoder, classes).context
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
    slope, image_slope = torch.autograd.grad(loss, [leaf, image_leaf])
    which = torch.stack([torch.zeros(len(pictures), dtype=torch.long), torch.arange(len(pictures))], 1)
    image = views.pullback(one, layers, which, image_slope, None)
    return float(loss.detach()), coupled.pull(texts.pullback(coupled.text(), slope), image)
