"""The encoder class of all backbones."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from poise.backbones import fingerprint
from poise.backbones.loaders.checkpoint import library_errors
from poise.backbones.placement import FLOAT8, OPENVINO, dtype_name
from poise.backbones.vision.class_token import ClassTokenTower
from poise.errors import InvalidCheckpointError, InvalidOptionError
from poise.threads import map_parallel
from poise.types import ClassTokens, ImageSpec, Prompt, PromptedImageTower

ImageForward = Callable[[Tensor], Tensor]  # [N, 3, S, S] -> [N, D]
Map = Callable[[Tensor], Tensor]
Tokenizer = Callable[[Sequence[str]], list[list[int]]]

_CHUNK = {"cuda": 512, "mps": 128, "cpu": 2}  # images per forward pass: limits memory, and on a CPU fits its cache
NOT_TRACEABLE = "what it computes depends on the aspect ratio of the image"
_OPENVINO_CHUNK = 4096  # it divides them among its threads itself


def wide(dtype: torch.dtype) -> torch.dtype:
    """Return the dtype for logits, norms and losses: float32, or float64 if the model runs in float64."""
    return torch.promote_types(dtype, torch.float32)


def freeze(model: nn.Module, device: torch.device, dtype: torch.dtype) -> None:
    """Move the model to ``device`` and ``dtype``, in evaluation mode and without gradients of its weights."""
    model.eval().requires_grad_(False).to(device=device, dtype=dtype)


class TextForward(Protocol):
    """Forward pass of a text tower with soft prompts."""

    def __call__(self, classes: ClassTokens, prompt: Prompt) -> Tensor:
        """Return unnormalised features [B, C, D], differentiable with respect to the prompt."""

    def pullback_at(self, classes: ClassTokens, prompt: Prompt, unit: Map) -> Map | None:
        """Return a map from cotangents [B, C, D] of ``unit(features)`` to gradients [B, M, E]; None to use autograd."""


@dataclass(frozen=True)
class TextSide:
    """The text tower of an encoder."""

    token_ids: Tokenizer
    table: nn.Embedding
    forward: TextForward
    context_length: int
    fixed_length: bool
    pad_id: int
    vocabulary: Callable[[], bytes]  # the tokenizer's words, merges and rules, for the fingerprint
    cleaning: str = ""  # of texts, before the tokenizer reads them: "canonicalize", "lower", "whitespace"


@dataclass(frozen=True)
class ImageSide:
    """The image tower of an encoder."""

    spec: ImageSpec
    forward: ImageForward
    prompted: PromptedImageTower | None = None


@dataclass(frozen=True)
class Weights:
    """What a model's fingerprint is computed from, besides its tokenizer and preprocessing."""

    tensors: Callable[[], Mapping[str, Tensor]]  # parameters and buffers by name, as in the checkpoint
    structure: str  # settings that the tensors don't show
    exact: str = ""  # hash of the tensors as they were before they were rounded to half precision; "" if they were not

    @classmethod
    def of(cls, model: nn.Module, dtype: torch.dtype) -> Weights:
        """Return the weights of a module that will be cast to ``dtype``."""
        return cls.before_cast(model.state_dict, fingerprint.structure(model), dtype)

    @classmethod
    def before_cast(cls, tensors: Callable[[], Mapping[str, Tensor]], structure: str, dtype: torch.dtype) -> Weights:
        """Return weights that will be cast to ``dtype``; those that will be rounded are hashed now."""
        return cls(tensors, structure, fingerprint.hash_weights(tensors()) if dtype.itemsize < 4 else "")


@dataclass(frozen=True)
class OwnPipeline:
    """How the library of a model computes features itself, from texts and images: the reference of `check_model`."""

    library: str  # with its version
    towers: tuple[str, str]  # names of what computes images and texts
    texts: Callable[[Sequence[str]], Tensor]  # -> [C, D]
    images: Callable[[Sequence[Any]], Tensor]  # PIL images -> [N, D]


class Encoder:
    """A frozen CLIP-like model that implements `poise.types.DualEncoder`.

    Args:
        name: Name of the model.
        image: Image tower.
        text: Text tower.
        weights: All weights of both towers, for the fingerprint.
        scale: Factor from cosine to logit.
        bias: Constant added to each logit (SigLIP).
        activation: "softmax" (CLIP) or "sigmoid" (SigLIP).
        chunk: Number of images per forward pass; None chooses it by device.
    """

    def __init__(
        self,
        name: str,
        image: ImageSide,
        text: TextSide,
        weights: Weights,
        *,
        scale: float,
        bias: float = 0.0,
        activation: str = "softmax",
        chunk: int | None = None,
    ) -> None:
        self.name = name
        self.image = image.spec
        self.context_length = text.context_length
        self.fixed_length = text.fixed_length
        self.pad_id = text.pad_id
        self.text_cleaning = text.cleaning
        self.prompted_tower = image.prompted
        self.scale, self.bias, self.activation = scale, bias, activation
        self.device = text.table.weight.device
        self.dtype = text.table.weight.dtype
        self.device_name, self.dtype_name = str(self.device), dtype_name(self.dtype)  # those of the image tower
        self.chunk = chunk or _CHUNK.get(self.device.type, 64)
        self._image, self.text, self._weights = image, text, weights
        self.own: OwnPipeline | None = None

    def count(self) -> tuple[int, int]:
        """Return the number of weights, and the bytes that they take."""
        tensors = list(self._weights.tensors().values())
        return sum(tensor.numel() for tensor in tensors), sum(tensor.nbytes for tensor in tensors)

    def __repr__(self) -> str:
        return f"<Encoder {self.name} on {self.device_name} in {self.dtype_name}>"

    def use_float8(self) -> None:
        """Compute the large matrix products of the image tower in float8.

        Raises:
            InvalidOptionError: The image tower has no such form.
        """
        tower = self._image.forward
        if not isinstance(tower, ClassTokenTower) or not tower.can_use_float8():
            raise InvalidOptionError(
                f"The image tower of {self.name} can't run in float8.",
                hint="open_clip's ViTs that pool the class token can. Use dtype float16.",
            )
        self._image, self.dtype_name = replace(self._image, forward=tower.in_float8()), FLOAT8
        # Answers differ by more than rounding, so that a calibration or a run in float16 is one of another model.
        self._weights = replace(self._weights, structure=f"{self._weights.structure} float8")

    def use_openvino(self, precision: str = "float32") -> None:
        """Compute the image tower in OpenVINO, in float32 or in bfloat16.

        Raises:
            InvalidOptionError: The tower can't be converted, or this CPU has no instructions for bfloat16.
            MissingDependencyError: openvino, onnx or onnxscript is not installed.
        """
        from poise.backbones.vision.openvino_tower import OpenVinoTower

        if not self.traceable:
            raise InvalidOptionError(f"OpenVINO can't compute {self.name}: {NOT_TRACEABLE}.", hint="Use device='cpu'.")
        tower = OpenVinoTower(self._image.forward, self.image.size, precision, self.name)
        self._image = replace(self._image, forward=tower, prompted=None)
        self.prompted_tower = None  # image prompts would be computed in torch
        self.device_name, self.dtype_name = OPENVINO, precision
        self.chunk = _OPENVINO_CHUNK
        if precision != "float32":
            self._weights = replace(self._weights, structure=f"{self._weights.structure} {precision}")

    def fingerprint(self) -> str:
        """Return a hash of the weights, preprocessing, tokenizer, scale and bias (`poise.backbones.fingerprint`)."""
        return self._fingerprint

    @cached_property
    def weights_sha256(self) -> str:
        """A hash of the weights alone, as they are in the checkpoint."""
        return self._weights.exact or fingerprint.hash_weights(self._weights.tensors())

    @property
    def quick_gelu(self) -> bool:
        """Whether the towers compute QuickGELU, which OpenAI's weights were trained with, instead of GELU."""
        return "QuickGELU" in self._weights.structure

    def earlier_fingerprint(self) -> str:
        """Return the hash that earlier versions stored."""
        return self._earlier_fingerprint

    @cached_property
    def _fingerprint(self) -> str:
        # In bfloat16, answers differ by more than rounding, as in float8 and with OpenVINO's bfloat16.
        structure = f"{self._weights.structure}{' bfloat16' * (self.dtype == torch.bfloat16)}"
        return fingerprint.compute(self, self.weights_sha256, self.text.vocabulary(), structure)

    @cached_property
    def _earlier_fingerprint(self) -> str:
        return fingerprint.compute_earlier(self, self._weights.tensors(), self._weights.structure)

    def token_ids(self, texts: Sequence[str]) -> list[list[int]]:
        """Return the token ids of each text with start and end tokens, neither padded nor truncated."""
        with library_errors(self.name, "The tokenizer can't read this text."):
            rows = self.text.token_ids(texts)
        largest, known = max((max(row, default=0) for row in rows), default=0), self.text.table.num_embeddings
        if largest >= known:
            raise InvalidCheckpointError(
                f"The tokenizer of {self.name} gives the token {largest}; its text tower has {known} tokens.",
                hint="The tokenizer and the weights must come from the same model.",
            )
        return rows

    def embed(self, ids: Tensor) -> Tensor:
        """Return the embeddings [..., E] of ids [...] without positions."""
        vectors: Tensor = self.text.table(ids.to(self.device))
        return vectors

    @torch.no_grad()
    def encode_images(self, views: Tensor) -> Tensor:
        """Return unit features [B, V, D] of normalised views [B, V, 3, H, W], in float32 or wider."""
        if views.dim() != 5 or tuple(views.shape[2:]) != (3, self.image.size, self.image.size):
            raise InvalidOptionError(
                f"Images of shape {list(views.shape)} were given.",
                hint=f"Accepted: [images, views, 3, {self.image.size}, {self.image.size}].",
            )
        parts = views.flatten(0, 1).split(self.chunk)

        def run(part: Tensor) -> Tensor:
            return self._image.forward(part.to(self.device, self.dtype))

        each = map_parallel(run, parts) if self.device.type == "cpu" else [run(part) for part in parts]
        features = torch.cat(each)
        return _unit(features).unflatten(0, views.shape[:2])

    @property
    def in_torch(self) -> bool:
        """Whether torch computes the image tower, so that it can be traced."""
        return self.device_name != OPENVINO

    @property
    def traceable(self) -> bool:
        """Whether the image tower computes the same for every image, so that it can be exported."""
        return self.in_torch and self.image.grid is None

    def trace(self, views: Tensor) -> Tensor:
        """Return what `encode_images` returns, in one pass through the tower, so that it can be exported."""
        return _unit(self._image.forward(views.flatten(0, 1))).unflatten(0, views.shape[:2])

    def encode_classes(self, classes: ClassTokens, prompt: Prompt) -> Tensor:
        """Return unit text features [B, C, D] in float32 or wider, differentiable with respect to the prompt."""
        slots, width = classes.slots.shape[1], self.text.table.weight.shape[1]
        if prompt.context.shape[-2:] != (slots, width):
            raise InvalidOptionError(
                f"A prompt of {list(prompt.context.shape[-2:])} (tokens, width) was given.",
                hint=f"The template and model need {[slots, width]}.",
            )
        return _unit(self.text.forward(classes, prompt))

    def pullback_at(self, classes: ClassTokens, prompt: Prompt) -> Map | None:
        """Return a map from cotangents [B, C, D] of the text features to gradients [B, M, E]; None to use autograd."""
        return self.text.forward.pullback_at(classes, prompt, _unit)

    def logits(self, image_features: Tensor, text_features: Tensor) -> Tensor:
        """Return scale * cosine + bias in float32 or wider, [B, V, D] x [B or 1, C, D] -> [B, V, C]."""
        image_features = image_features.to(wide(image_features.dtype))
        text_features = text_features.to(image_features.dtype)
        return self.scale * (image_features @ text_features.transpose(-1, -2)) + self.bias


def _unit(features: Tensor) -> Tensor:
    return nn.functional.normalize(features.to(wide(features.dtype)), dim=-1)
