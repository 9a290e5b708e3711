"""What the stages hand to each other: frozen dataclasses and the protocols they meet.

Axis letters, used in every shape comment of the project:
B images, V views of an image, C classes, D joint width, M tunable context tokens, E token width, L tokens of a text.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Protocol, runtime_checkable

import torch
from torch import Tensor


@dataclass(frozen=True)
class ImageSpec:
    """How a model wants its images."""

    size: int
    mean: tuple[float, float, float]
    std: tuple[float, float, float]
    interpolation: str = "bicubic"  # of the plain view
    resize: str = "shortest"  # "shortest": shorter side to size, then centre crop; "squash": both sides to size
    crop_offset: str = "round"  # of an odd margin's half in the centre crop: "round" (half to even), or "floor"
    crop_interpolation: str = "bilinear"  # of crops: bilinear for tuning, bicubic where CoOp trains


@dataclass(frozen=True, eq=False)
class ClassTokens:
    """One label set under one template, tokenised for one text tower. All tensors are on the CPU.

    Row c is: start token, context before the name, the name, context after it, fixed tail, end token, padding.
    An object equals itself alone, so that encoders can keep for it, in a weak dictionary, how its rows are laid out.
    """

    labels: tuple[str, ...]
    template: str
    ids: Tensor  # [C, L] long; L is the longest row (or the tower's fixed length where it demands one)
    lengths: Tensor  # [C] long: tokens of each row, start and end token included, padding not
    slots: Tensor  # [C, M] long: the positions that the tunable context vectors take
    shared: int  # leading positions that are the same in all rows: start token and context before the name
    fixed_length: bool = False  # True where the tower reads a fixed number of tokens, padding included (SigLIP)

    def __len__(self) -> int:
        return len(self.labels)

    def rows(self, start: int, stop: int) -> ClassTokens:
        """The classes start..stop-1, with the padding that they don't need cut off."""
        lengths = self.lengths[start:stop]
        width = self.ids.shape[1] if self.fixed_length else int(lengths.max())
        return replace(
            self,
            labels=self.labels[start:stop],
            ids=self.ids[start:stop, :width],
            lengths=lengths,
            slots=self.slots[start:stop],
        )


@dataclass(frozen=True)
class Prompt:
    """The tunable vectors, and nothing else. One prompt per image; B = 1 serves all images alike."""

    context: Tensor  # [B, M, E], or [B, C, M, E] where every class has its own context (CoOp's CSC)
    text_layers: Tensor | None = None  # [B, J, M, E]: deep prompts of the text tower's layers 1..J (MaPLe)
    image_layers: Tensor | None = None  # [B, 1 + J, M, W]: prompts of the image tower's layers 0..J (MaPLe)

    def __len__(self) -> int:
        return int(self.context.shape[0])

    def parts(self) -> dict[str, Tensor]:
        """The tensors that are there, by name."""
        named = {"context": self.context, "text_layers": self.text_layers, "image_layers": self.image_layers}
        return {name: tensor for name, tensor in named.items() if tensor is not None}

    def map(self, change: Callable[[Tensor], Tensor]) -> Prompt:
        """A prompt with ``change`` applied to each tensor."""
        return Prompt(**{name: change(tensor) for name, tensor in self.parts().items()})


@runtime_checkable
class DualEncoder(Protocol):
    """A frozen CLIP-like model. Features have unit length; logits carry the model's own scale and bias."""

    name: str
    image: ImageSpec
    context_length: int  # tokens that one text may have, start and end token included
    fixed_length: bool  # the text tower reads padding too, so texts are always padded to context_length (SigLIP)
    pad_id: int
    activation: str  # what the model was trained under: "softmax" (CLIP) or "sigmoid" (SigLIP)
    device: torch.device
    dtype: torch.dtype  # of weights and activations; logits, softmax and losses are float32 or wider

    @property
    def scale(self) -> float:
        """The factor from cosine to logit, read from the model."""

    @property
    def bias(self) -> float:
        """What is added to each logit (SigLIP); 0 for CLIP."""

    def token_ids(self, texts: Sequence[str]) -> list[list[int]]:
        """Token ids of each text with start and end tokens, neither padded nor truncated."""

    def embed(self, ids: Tensor) -> Tensor:
        """Token vectors [..., E] of ids [...], positions not added."""

    def encode_images(self, views: Tensor) -> Tensor:
        """Unit features [B, V, D] of normalised views [B, V, 3, H, W], without a gradient."""

    def encode_classes(self, classes: ClassTokens, prompt: Prompt) -> Tensor:
        """Unit text features [B, C, D] with the prompt's vectors in the classes' slots; differentiable."""

    def logits(self, image_features: Tensor, text_features: Tensor) -> Tensor:
        """[B, V, D] x [B or 1, C, D] -> [B, V, C] in float32 or wider: scale * cosine + bias."""


@runtime_checkable
class FastTextPullback(Protocol):
    """An encoder that may have a faster way than autograd from text features back to the context."""

    def pullback_at(self, classes: ClassTokens, prompt: Prompt) -> Callable[[Tensor], Tensor] | None:
        """Gradients [B, M, E] of the context for cotangents [B, C, D] of the text features: of one prompt, or B.

        None where autograd is to do it: on this device, in this dtype, or for such a prompt.
        """


@runtime_checkable
class PromptedImageTower(Protocol):
    """An image tower that takes prompts in its first layers."""

    depth: int  # layers that may have prompts
    width: int  # of a prompt's vectors

    def with_tokens(self, images: Tensor, layers: Tensor, count: int) -> tuple[Tensor, Tensor]:
        """Features [N, D], not normalised, of images [N, 3, S, S] under prompts [N, 1 + J, M, W]; differentiable.

        And the states [N, count, T, W] of all tokens at the input of blocks 0..count-1.
        """


@runtime_checkable
class ImagePrompts(Protocol):
    """An encoder whose image tower may take prompts."""

    @property
    def prompted_tower(self) -> PromptedImageTower | None:
        """The tower; None where this model's takes none."""


@dataclass(frozen=True)
class Outputs:
    """All that one forward pass knows; objectives read this and nothing else."""

    image_features: Tensor  # [B, V, D]; view 0 is the plain image
    text_features: Tensor  # [B, C, D]
    logits: Tensor  # [B, V, C]
    reference_logits: Tensor  # [B, V, C] under the init, no gradient: view selection reads these
    ranking: Tensor | None = None  # [B, V]: chosen lowest first, where something else than their entropy decides
    tokens: Tensor | None = None  # [B, V, J, T, W]: the states that the image tower's first J layers read (MaPLe)


class Objective(ABC):
    """A loss per image; lower is better."""

    text_only: ClassVar[bool] = False
    """Whether it reads the text features alone: at an init that images share, its gradient is then computed once."""

    @property
    def token_layers(self) -> int:
        """How many layers' token states it reads; those of an image tower under prompts."""
        return 0

    @abstractmethod
    def __call__(self, out: Outputs) -> Tensor:
        """The loss of each image [B]: row b depends on image b alone."""


@dataclass(frozen=True)
class Adapted:
    """One method's answer for B images, on the encoder's device, in float32 or wider."""

    logits: Tensor  # [B, C] of the plain view under the tuned prompt
    probs: Tensor  # [B, C] their softmax: the prediction
    init_probs: Tensor  # [B, C] of the plain view under the init
    target_probs: Tensor  # [B, C] p_aug under the tuned prompt
    confidences: Tensor  # [B, V] of each view under the init
    temperatures: Tensor  # [B, V] the temperature that each view's logits are divided by in the target (1 without CATS)
    selected: Tensor  # [B, K] the views that entered the target
    losses: Tensor  # [B, steps]
    fallback: Tensor  # [B] bool: something was not finite, so the init answered
    prompt: Prompt  # the tuned prompts
    text_features: Tensor  # [B, C, D] under the tuned prompts
