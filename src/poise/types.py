"""The types that stages exchange: frozen dataclasses and protocols.

Axis letters, used in every shape comment of the project:
B images, V views per image, C classes, D joint width, M tunable context tokens, E token width, L tokens of a text.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Generic, Protocol, TypeVar, runtime_checkable

import torch
from torch import Tensor

A = TypeVar("A")  # an array: a tensor, or one of NumPy


@dataclass(frozen=True)
class PatchGrid:
    """The input of a model that reads images in their own aspect ratio, as patches (`poise.views.patches`)."""

    patch: int  # side of a patch in pixels
    most: int  # patches of an image

    @property
    def side(self) -> int:
        """The side of the largest square image in pixels."""
        return math.isqrt(self.most) * self.patch

    @property
    def size(self) -> int:
        """The side of a view, which has room for one patch more than an image has."""
        return self.side + self.patch


@dataclass(frozen=True)
class ImageSpec:
    """The input images that a model expects."""

    size: int
    mean: tuple[float, float, float]
    std: tuple[float, float, float]
    interpolation: str = "bicubic"  # filter for the plain view
    resize: str = "shortest"  # "shortest": shorter side to size, then centre crop; "squash": both sides to size
    crop_offset: str = "round"  # half of an odd margin in the centre crop: "round" (to even) or "floor"
    crop_interpolation: str = "bilinear"  # filter for crops: bilinear for tuning, bicubic for fitting CoOp
    grid: PatchGrid | None = None  # of a model without a fixed aspect ratio: the plain view keeps it, crops are square

    @property
    def crop_size(self) -> int:
        """The side of a crop."""
        return self.size if self.grid is None else self.grid.side


@dataclass(frozen=True, eq=False)
class ClassTokens:
    """One label set under one template, tokenised for one text tower. All tensors are on the CPU.

    Row c is: start token, context before the name, the name, context after it, fixed tail, end token, padding.
    Objects are compared by identity, so that encoders can store the layout of the rows in a weak dictionary.
    """

    labels: tuple[str, ...]
    template: str
    ids: Tensor  # [C, L] long; L is the longest row, or the length that the tower requires
    lengths: Tensor  # [C] long: tokens per row with start and end token, without padding
    slots: Tensor  # [C, M] long: the positions of the tunable context vectors
    shared: int  # leading positions that are the same in all rows: start token and context before the name
    fixed_length: bool = False  # whether the tower reads a fixed number of tokens, padding included (SigLIP)

    def __len__(self) -> int:
        return len(self.labels)

    def rows(self, start: int, stop: int) -> ClassTokens:
        """Return the classes start..stop-1, without padding that they don't need."""
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
    """The tunable vectors. One prompt per image, or B = 1 for all images."""

    context: Tensor  # [B, M, E], or [B, C, M, E] with one context per class (CoOp's CSC)
    text_layers: Tensor | None = None  # [B, J, M, E]: deep prompts of the text tower's layers 1..J (MaPLe)
    image_layers: Tensor | None = None  # [B, 1 + J, M, W]: prompts of the image tower's layers 0..J (MaPLe)

    def __len__(self) -> int:
        return int(self.context.shape[0])

    def parts(self) -> dict[str, Tensor]:
        """Return the tensors that are not None, by name."""
        named = {"context": self.context, "text_layers": self.text_layers, "image_layers": self.image_layers}
        return {name: tensor for name, tensor in named.items() if tensor is not None}

    def map(self, change: Callable[[Tensor], Tensor]) -> Prompt:
        """Return a prompt with ``change`` applied to each tensor."""
        return Prompt(**{name: change(tensor) for name, tensor in self.parts().items()})


@runtime_checkable
class DualEncoder(Protocol):
    """A frozen CLIP-like model. Features have unit length; logits include the model's scale and bias."""

    name: str
    image: ImageSpec
    context_length: int  # maximum tokens per text, start and end token included
    fixed_length: bool  # whether texts must be padded to context_length, because the tower reads padding (SigLIP)
    pad_id: int
    activation: str  # of the training loss: "softmax" (CLIP) or "sigmoid" (SigLIP)
    device: torch.device
    dtype: torch.dtype  # of weights and activations; logits, softmax and losses are float32 or wider

    @property
    def scale(self) -> float:
        """The factor from cosine to logit, read from the model."""

    @property
    def bias(self) -> float:
        """The constant added to each logit (SigLIP); 0 for CLIP."""

    def token_ids(self, texts: Sequence[str]) -> list[list[int]]:
        """Return the token ids of each text with start and end tokens, neither padded nor truncated."""

    def embed(self, ids: Tensor) -> Tensor:
        """Return the token vectors [..., E] of ids [...], without positions."""

    def encode_images(self, views: Tensor) -> Tensor:
        """Return unit features [B, V, D] of normalised views [B, V, 3, H, W], without a gradient."""

    def encode_classes(self, classes: ClassTokens, prompt: Prompt) -> Tensor:
        """Return unit text features [B, C, D] with the prompt's vectors in the classes' slots; differentiable."""

    def logits(self, image_features: Tensor, text_features: Tensor) -> Tensor:
        """Return scale * cosine + bias in float32 or wider: [B, V, D] x [B or 1, C, D] -> [B, V, C]."""


@runtime_checkable
class FastTextPullback(Protocol):
    """An encoder that may compute gradients of the context faster than autograd."""

    def pullback_at(self, classes: ClassTokens, prompt: Prompt) -> Callable[[Tensor], Tensor] | None:
        """Return a function from cotangents [B, C, D] of the text features to gradients [B, M, E] of the context.

        The prompt has one row for all images, or B. None where autograd should be used: on this device, in this dtype,
        or for such a prompt.
        """


@runtime_checkable
class PromptedImageTower(Protocol):
    """An image tower that accepts prompts in its first layers."""

    depth: int  # number of layers that may have prompts
    width: int  # width W of a prompt's vectors

    def with_tokens(self, images: Tensor, layers: Tensor, count: int) -> tuple[Tensor, Tensor]:
        """Return features [N, D] and token states [N, count, T, W] of images [N, 3, S, S]; differentiable.

        Features are not normalised; token states are the inputs of blocks 0..count-1. ``layers`` are the prompts
        [N, 1 + J, M, W].
        """


@runtime_checkable
class ImagePrompts(Protocol):
    """An encoder whose image tower may accept prompts."""

    @property
    def prompted_tower(self) -> PromptedImageTower | None:
        """The tower; None if it accepts no prompts."""


@runtime_checkable
class Fingerprinted(Protocol):
    """An encoder that can say which model it is, beyond its name.

    Runs and prompt files record the fingerprint of such an encoder and refuse another one. An encoder without it works,
    but nothing is recorded, and what was recorded with another encoder can't be used with it.
    """

    def fingerprint(self) -> str:
        """Return a short hash of all that the features depend on: weights, preprocessing, tokenizer, scale, bias."""


@runtime_checkable
class EarlierFingerprint(Protocol):
    """An encoder that also computes the fingerprint that earlier versions of poise stored, in 16 digits."""

    def earlier_fingerprint(self) -> str:
        """Return the fingerprint of version 1."""


EARLIER_DIGITS = 16


def fingerprint_of(encoder: DualEncoder, like: str = "") -> str:
    """Return an encoder's fingerprint, in the version of a stored one to be compared with it; "" if it has none."""
    if len(like) == EARLIER_DIGITS and isinstance(encoder, EarlierFingerprint):
        return encoder.earlier_fingerprint()
    return encoder.fingerprint() if isinstance(encoder, Fingerprinted) else ""


@dataclass(frozen=True)
class Outputs:
    """The results of one forward pass: what objectives, rules and post-hoc steps read."""

    image_features: Tensor  #: [B, V, D]; view 0 is the plain image
    text_features: Tensor  #: [B, C, D]
    logits: Tensor  #: [B, V, C]
    reference_logits: Tensor  #: [B, V, C] under the init, without a gradient
    ranking: Tensor | None = None  #: [B, V]: views with the lowest are chosen, instead of by entropy
    tokens: Tensor | None = None  #: [B, V, J, T, W]: inputs of the image tower's first J layers (MaPLe)


class Objective(ABC):
    """A loss per image; lower is better."""

    text_only: ClassVar[bool] = False
    """Whether it depends on the text features alone: at a shared init, its gradient is then computed once."""

    @property
    def token_layers(self) -> int:
        """The number of image layers whose token states it reads; only image towers with prompts have them."""
        return 0

    @abstractmethod
    def __call__(self, out: Outputs) -> Tensor:
        """Return the loss of each image [B]; row b depends on image b alone."""


@dataclass(frozen=True)
class Answer(Generic[A]):
    """One method's answers for B images: tensors on the encoder's device, in float32 or wider.

    Read back to the host (`poise.inference.answers`), it is the answer for one image: NumPy arrays without the axis B,
    in float64, and what is known about the image.
    """

    logits: A  # [B, C] of the plain view under the tuned prompt
    probs: A  # [B, C] their softmax: the prediction
    init_probs: A  # [B, C] of the plain view under the init
    target_probs: A  # [B, C] p_aug under the tuned prompt
    confidences: A  # [B, V] top probability of each view under the init
    temperatures: A  # [B, V] of each view's logits in the target (1 without CATS)
    view_labels: A  # [B, V] the most probable class of each view under the tuned prompt
    selected: A  # [B, K] the views in the target
    losses: A  # [B, steps]
    fallback: A  # [B] whether something was not finite, so that the init answered
    text_features: A | None = None  # [B, C, D] under the tuned prompts; on the host if requested
    prompt: Prompt | None = None  # the tuned prompts [B, ...]; on the device only

    # On the host only:
    dispersion: float = math.nan  # mean distance of the tuned text features to their centroid (ATFD)
    init_dispersion: float = math.nan  # the same under the initial prompt
    source: str = ""  # of the image
    notes: tuple[str, ...] = ()  # changes beyond decoding when the image was read
    key: str = ""  # hash of the pixels
    look: str = ""  # hash that copies in another size or encoding nearly share (`poise.images.look`)
