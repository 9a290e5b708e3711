"""Features of views under image prompts, and pullbacks to the prompts in chunks of views that are computed again.

The counterpart of `ClassTexts` for image features that depend on the prompt (MaPLe). A chunk's graph exists only while
its gradient is computed, so memory depends on the chunk and not on the number of views.
"""

from __future__ import annotations

import torch
from torch import Tensor

from poise.errors import InvalidOptionError
from poise.types import DualEncoder, ImagePrompts, PromptedImageTower

VIEWS_PER_PASS = 16  # with a graph; a ViT-B/16 takes about 0.15 GB per view in single precision


class PromptedViews:
    """Unit features [B, V, D] of views under image prompts [B or 1, 1 + J, M, W].

    The token states at the input of the first ``tokens_of`` blocks are also returned.
    """

    def __init__(self, encoder: DualEncoder, *, tokens_of: int = 0, views_per_pass: int = 0) -> None:
        self.encoder = encoder
        self.tokens_of = tokens_of
        self._views_per_pass = views_per_pass or VIEWS_PER_PASS
        self._tower = image_tower(encoder)

    @torch.no_grad()
    def features(self, views: Tensor, layers: Tensor, which: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Return features [n, D] and token states [n, J, T, W] of (image, view) pairs [n, 2]; of all by default."""
        which = pairs(torch.ones(views.shape[:2], dtype=torch.bool)) if which is None else which
        chunks = [self._run(views, layers, rows) for rows in which.split(self._views_per_pass)]
        return torch.cat([features for features, _ in chunks]), torch.cat([tokens for _, tokens in chunks])

    def pullback(
        self, views: Tensor, layers: Tensor, which: Tensor, cotangent: Tensor, token_cotangent: Tensor | None
    ) -> Tensor:
        """Return the gradient [B, 1 + J, M, W] for cotangents [n, D] (and [n, J, T, W]) of the chosen pairs."""
        # As in ClassTexts: the product is linear, so each image's cotangents are brought to size 1 for half precision.
        size = _largest(which[:, 0], views.shape[0], cotangent, token_cotangent)  # [B]
        total = layers.new_zeros(views.shape[0], *layers.shape[1:])
        for at in range(0, len(which), self._views_per_pass):
            rows = which[at : at + self._views_per_pass]
            leaf = layers.detach().expand(views.shape[0], *layers.shape[1:]).clone().requires_grad_()
            with torch.enable_grad():
                features, tokens = self._run(views, leaf, rows)
                scale = size[rows[:, 0]]
                outputs, cotangents = [features], [cotangent[at : at + self._views_per_pass] / scale[:, None]]
                if token_cotangent is not None:
                    outputs.append(tokens)
                    cotangents.append(token_cotangent[at : at + self._views_per_pass] / scale[:, None, None, None])
                (gradient,) = torch.autograd.grad(outputs, leaf, cotangents)
            total = total + gradient
        return total * size[:, None, None, None]

    def _run(self, views: Tensor, layers: Tensor, rows: Tensor) -> tuple[Tensor, Tensor]:
        image, view = rows.unbind(1)
        pixels = views[image, view].to(self.encoder.device, self.encoder.dtype)
        prompt = (image if layers.shape[0] > 1 else torch.zeros_like(image)).to(layers.device)
        features, tokens = self._tower.with_tokens(pixels, layers[prompt].to(self.encoder.dtype), self.tokens_of)
        wide = torch.promote_types(features.dtype, torch.float32)
        return torch.nn.functional.normalize(features.to(wide), dim=-1), tokens.to(wide)


def _largest(image: Tensor, images: int, cotangent: Tensor, token_cotangent: Tensor | None) -> Tensor:
    """Return the largest absolute cotangent of each image [B]; 1 if there is none, or if it is not finite."""
    largest = cotangent.abs().amax(1)
    if token_cotangent is not None and token_cotangent.numel():
        largest = torch.maximum(largest, token_cotangent.abs().flatten(1).amax(1))
    size = largest.new_zeros(images).scatter_reduce(0, image.to(largest.device), largest, "amax")
    return torch.where((size > 0) & size.isfinite(), size, torch.ones_like(size))


def pairs(mask: Tensor) -> Tensor:
    """Return the (image, view) pairs [n, 2] where a mask [B, V] is set, on the CPU."""
    return mask.nonzero().cpu()


def image_tower(encoder: DualEncoder) -> PromptedImageTower:
    """Return the encoder's image tower, or raise an error if it takes no prompts."""
    tower = encoder.prompted_tower if isinstance(encoder, ImagePrompts) else None
    if tower is None:
        raise InvalidOptionError(
            f"The image tower of {encoder.name} takes no prompts.",
            hint="Use a model with open_clip's ViT image tower.",
        )
    return tower
