"""Features and their pullbacks: how the class texts follow the prompt, in class chunks of bounded memory.

Objectives are differentiated with respect to the features; a pullback carries that cotangent on to the prompt.
This cut is what makes the rest simple: memory is bounded by recomputing one class chunk at a time, and images that
share their initial prompt share its text features and the graph behind them.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TypeVar

import torch
from torch import Tensor

from poise.types import ClassTokens, DualEncoder, FastTextPullback, Prompt

_log = logging.getLogger(__name__)
T = TypeVar("T")

# Tokens that the text tower sees in one pass. With a graph kept, CLIP's 12 layers hold about 0.2 MB a token in half
# precision, so this bounds a pass to a few GiB.
TOKENS_PER_PASS = 16_384
_GRAPHLESS = 8  # times as many where no graph is kept: about 20 KB a token


@dataclass(frozen=True)
class _Pull:
    """Cotangents [B, c, D] of some classes' features -> each part's gradients [B, ...] at the shared init."""

    products: Callable[[Tensor], dict[str, Tensor]]
    share: int  # how many times TOKENS_PER_PASS tokens may go through it together

    def __call__(self, cotangent: Tensor) -> dict[str, Tensor]:
        return self.products(cotangent)


class ClassTexts:
    """The texts of one label set on one encoder: unit features [B, C, D] for any prompt, and pullbacks to it."""

    def __init__(
        self,
        encoder: DualEncoder,
        classes: ClassTokens,
        init: Prompt,
        *,
        tokens_per_pass: int = 0,
    ) -> None:
        self.encoder = encoder
        self.classes = classes
        self.init = init.map(lambda tensor: tensor.detach())
        self._fast_encoder = encoder if isinstance(encoder, FastTextPullback) else None
        self._tokens = tokens_per_pass or TOKENS_PER_PASS
        # Tokens of one class beyond the shared prefix, on average: classes are packed by length.
        self._own_tokens = max(1, math.ceil(classes.lengths.double().mean().item()) - classes.shared)
        self._pieces: dict[tuple[int, int], ClassTokens] = {}
        self._init_features: Tensor | None = None
        self._init_pull: _Pull | None = None

    def features(self, prompt: Prompt) -> Tensor:
        """[B, C, D] in float32 or wider, without a graph."""
        return self._shrinking(lambda: self._features(prompt))

    def init_features(self) -> Tensor:
        """[1, C, D] under the init, computed once."""
        if self._init_features is None:
            self._init_features = self.features(self.init)
        return self._init_features

    def pullback(self, prompt: Prompt, cotangent: Tensor) -> Prompt:
        """Gradients [B, ...] of sum(features · cotangent) for B prompts and cotangents [B, C, D]."""
        return self._scaled(cotangent, lambda unit: self._own_pullback(prompt, unit))

    def pullback_to_init(self, cotangent: Tensor) -> Prompt:
        """The same where all B images are at the init: one graph serves them all, with B products."""
        return self._scaled(cotangent, self._shared_pullback)

    def _scaled(self, cotangent: Tensor, pullback: Callable[[Tensor], Prompt]) -> Prompt:
        # A vector-Jacobian product is linear, so each image's cotangent is brought to size 1 first: half precision
        # neither overflows nor underflows, and no loss scale has to be guessed.
        size = cotangent.abs().amax((1, 2), keepdim=True)
        size = torch.where((size > 0) & size.isfinite(), size, torch.ones_like(size))
        gradient = self._shrinking(lambda: pullback(cotangent / size))
        return gradient.map(lambda part: part * size.reshape(-1, *[1] * (part.ndim - 1)))

    def with_pullback(self, prompt: Prompt) -> tuple[Tensor, Callable[[Tensor], Prompt]]:
        """`features` of each image's own prompt, and its `pullback`, for one use: one pass serves both where it can."""
        if self.encoder.device.type == "cuda" or len(list(self._chunks(len(prompt)))) > 1:
            return self.features(prompt), lambda cotangent: self.pullback(prompt, cotangent)
        leaf, features = self._graph(prompt, 0, len(self.classes))
        return features.detach(), lambda cotangent: _gradient(leaf, features, cotangent)

    def _chunks(self, images: int, *, graph: bool = True) -> Iterator[tuple[int, int]]:
        count = len(self.classes)
        tokens = self._tokens if graph else self._tokens * _GRAPHLESS
        step = max(1, tokens // (images * self._own_tokens))
        return ((first, min(first + step, count)) for first in range(0, count, step))

    def _piece(self, first: int, last: int) -> ClassTokens:
        """The classes first..last-1; kept, because encoders remember how an object of classes is laid out."""
        if (first, last) not in self._pieces:
            whole = (first, last) == (0, len(self.classes))
            self._pieces[first, last] = self.classes if whole else self.classes.rows(first, last)
        return self._pieces[first, last]

    @torch.no_grad()
    def _features(self, prompt: Prompt) -> Tensor:
        return torch.cat([
            _wide(self.encoder.encode_classes(self._piece(first, last), _rows(prompt, first, last)))
            for first, last in self._chunks(len(prompt), graph=False)
        ], dim=1)  # fmt: skip

    def _shared_pullback(self, cotangent: Tensor) -> Prompt:
        """All images' products with the one Jacobian at the init."""
        spans = list(self._chunks(1))
        total: Prompt | None = None
        for first, last in spans:
            pull = self._init_pull if len(spans) == 1 and self._init_pull is not None else self._pull(first, last)
            if len(spans) == 1:
                self._init_pull = pull
            own, tokens = cotangent[:, first:last], self._tokens * pull.share
            group = max(1, tokens // ((last - first) * self._own_tokens))
            pulled = [pull(own[at : at + group]) for at in range(0, len(own), group)]
            gradient = Prompt(**{name: torch.cat([part[name] for part in pulled]) for name in pulled[0]})
            total = _placed(gradient, total, self.init, first, last)
        assert total is not None
        return total

    def _pull(self, first: int, last: int) -> _Pull:
        """The products for the classes first..last-1: the encoder's own way, or through autograd's graph."""
        fast = self._fast(self.init, first, last)
        if fast is not None:
            return _Pull(lambda cotangent: {"context": fast(cotangent)}, share=_GRAPHLESS)
        leaf, features = self._graph(self.init, first, last)
        return _Pull(lambda cotangent: self._products(leaf, features, cotangent), share=1)

    def _fast(self, prompt: Prompt, first: int, last: int) -> Callable[[Tensor], Tensor] | None:
        """The encoder's own way from cotangents to gradients of the context, if it has one."""
        if self._fast_encoder is None:
            return None
        return self._fast_encoder.pullback_at(self._piece(first, last), _rows(prompt, first, last))

    @staticmethod
    def _products(leaf: Prompt, features: Tensor, cotangent: Tensor) -> dict[str, Tensor]:
        parts = leaf.parts()
        gradients = torch.autograd.grad(
            features, list(parts.values()), cotangent[:, None].to(features.dtype), retain_graph=True,
            is_grads_batched=True,
        )  # fmt: skip
        return {name: gradient.squeeze(1) for name, gradient in zip(parts, gradients, strict=True)}

    def _own_pullback(self, prompt: Prompt, cotangent: Tensor) -> Prompt:
        """Each image's own prompt: the graph of one class chunk at a time."""
        total: Prompt | None = None
        for first, last in self._chunks(len(prompt)):
            fast, own = self._fast(prompt, first, last), cotangent[:, first:last]
            gradient = Prompt(fast(own)) if fast else _gradient(*self._graph(prompt, first, last), own)
            total = _placed(gradient, total, prompt, first, last)
        assert total is not None
        return total

    def _graph(self, prompt: Prompt, first: int, last: int) -> tuple[Prompt, Tensor]:
        leaf = _rows(prompt, first, last).map(lambda tensor: tensor.detach().clone().requires_grad_())
        with torch.enable_grad():
            return leaf, _wide(self.encoder.encode_classes(self._piece(first, last), leaf))

    def _shrinking(self, compute: Callable[[], T]) -> T:
        """Run; where the device's memory doesn't suffice, halve the pass and run again."""
        while True:
            try:
                return compute()
            except torch.OutOfMemoryError:
                if self._tokens <= 1:
                    raise
                self._tokens //= 2
                self._init_pull = None
                if self.encoder.device.type == "cuda":
                    torch.cuda.empty_cache()
                _log.warning("out of memory: going on with at most %d text tokens at a time", self._tokens)


def _gradient(leaf: Prompt, features: Tensor, cotangent: Tensor) -> Prompt:
    parts = leaf.parts()
    gradients = torch.autograd.grad(features, list(parts.values()), cotangent.to(features.dtype))
    return Prompt(**dict(zip(parts, gradients, strict=True)))


def _wide(features: Tensor) -> Tensor:
    return features if features.dtype == torch.float64 else features.float()


def _rows(prompt: Prompt, first: int, last: int) -> Prompt:
    """The prompt that classes first..last-1 see: all of it, or their own contexts."""
    if prompt.context.ndim == 3:
        return prompt
    return Prompt(**{**prompt.parts(), "context": prompt.context[:, first:last]})


def _placed(gradient: Prompt, total: Prompt | None, like: Prompt, first: int, last: int) -> Prompt:
    """Add one chunk's gradient to the total; class-specific contexts land in their own rows."""
    parts = gradient.parts()
    if like.context.ndim == 4:
        rows, own = like.context.shape[1], parts["context"]
        full = own.new_zeros(own.shape[0], rows, *own.shape[2:])
        full[:, first:last] = own
        parts["context"] = full
    if total is not None:
        parts = {name: part + total.parts()[name] for name, part in parts.items()}
    return Prompt(**parts)
