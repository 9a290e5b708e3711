"""MaPLe's prompts of both towers, those of the image tower projected from those of the text tower."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from poise.encoding.prompted_views import image_tower
from poise.errors import InvalidCheckpointError
from poise.prompts.files import StoredPrompt
from poise.types import DualEncoder, Prompt


@dataclass(frozen=True)
class Coupled:
    """The tensors that MaPLe fits or tunes, per image, or B = 1 for all images."""

    context: Tensor  # [B, M, E]
    deep: Tensor  # [B, J, M, E]
    weight: Tensor  # [B, 1 + J, W, E]
    bias: Tensor  # [B, 1 + J, W]

    @classmethod
    def of(cls, stored: StoredPrompt, encoder: DualEncoder) -> Coupled:
        """Make it from a file, after checking that depth and widths fit the model."""
        missing = [name for name in ("deep", "weight", "bias") if name not in stored.tensors]
        if missing:
            raise InvalidCheckpointError(f"The prompt has no {', '.join(missing)}.", hint="It is not a MaPLe prompt.")
        tower, layers = image_tower(encoder), stored.tensors["weight"].shape[0]
        if layers > tower.depth or stored.tensors["deep"].shape[0] != layers - 1:
            raise InvalidCheckpointError(
                f"The prompt has {layers} projections and {stored.tensors['deep'].shape[0]} deep prompts; "
                f"the image tower has {tower.depth} layers.",
                hint="Give one projection more than deep prompts, and at most one per layer.",
            )
        if stored.tensors["weight"].shape[1] != tower.width:
            raise InvalidCheckpointError(
                f"The prompt projects to width {stored.tensors['weight'].shape[1]}, the image tower has {tower.width}.",
                hint="Fit the prompt on this model.",
            )
        dtype = torch.promote_types(encoder.dtype, torch.float32)
        names = ("context", "deep", "weight", "bias")
        return cls(**{name: stored.tensors[name][None].to(encoder.device, dtype) for name in names})

    def __len__(self) -> int:
        return int(self.context.shape[0])

    def parts(self) -> dict[str, Tensor]:
        """Return the tensors by name."""
        return {"context": self.context, "deep": self.deep, "weight": self.weight, "bias": self.bias}

    def map(self, change: Callable[[Tensor], Tensor]) -> Coupled:
        """Return the same with ``change`` applied to each tensor."""
        return Coupled(**{name: change(part) for name, part in self.parts().items()})

    def text(self) -> Prompt:
        """Return the prompts of the text tower."""
        return Prompt(self.context, text_layers=self.deep if self.deep.shape[1] else None)

    def image_layers(self) -> Tensor:
        """Return the prompts [B, 1 + J, M, W] of the image tower."""
        sources = torch.cat([self.context[:, None], self.deep], 1)  # [B, 1 + J, M, E]
        return sources @ self.weight.mT + self.bias[:, :, None]

    def prompt(self) -> Prompt:
        """Return the prompts of both towers."""
        return Prompt(self.context, self.text().text_layers, self.image_layers())

    def pull(self, text: Prompt, image: Tensor) -> Coupled:
        """Return the gradient of these tensors, given those of the text prompts and image prompts [B, 1 + J, M, W]."""
        count = len(image)
        leaf = self.map(lambda part: part.detach().expand(count, *part.shape[1:]).clone().requires_grad_())
        with torch.enable_grad():
            layers = leaf.image_layers()
        parts = leaf.parts()
        gradients = torch.autograd.grad(layers, list(parts.values()), image.to(layers.dtype), materialize_grads=True)
        gradient = dict(zip(parts, gradients, strict=True))
        gradient["context"] = gradient["context"] + text.context
        if text.text_layers is not None:
            gradient["deep"] = gradient["deep"] + text.text_layers
        return Coupled(**gradient)
