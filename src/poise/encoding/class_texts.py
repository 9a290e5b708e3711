"""Text features of the classes, and their pullbacks to the prompt, in chunks of classes that bound the memory.

Objectives are differentiated with respect to the features; a pullback carries that cotangent on to the prompt. With
this cut, one chunk of classes at a time can be computed again for its gradient, and images that share the init share
its text features and the graph behind them.

Classes whose texts are equal are encoded once and have exactly equal features and logits, so that no rounding decides
between them. With class-specific contexts, classes of one text differ, and each is encoded.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import replace
from functools import cached_property, partial, reduce
from typing import TypeVar

import torch
from torch import Tensor

from poise.types import ClassTokens, DualEncoder, FastTextPullback, Prompt

_log = logging.getLogger(__name__)
T = TypeVar("T")
_Pull = tuple[Callable[[Tensor], Prompt], int]  # cotangents [B, c, D] -> gradients; how many times TOKENS_PER_PASS fit

# Tokens per pass through the text tower. With its graph, CLIP's tower of 12 layers takes about 0.2 MB per token in half
# precision, so that a pass is bounded to a few GiB.
TOKENS_PER_PASS = 16_384
_GRAPHLESS = 8  # times as many tokens per pass without a graph: about 20 KB per token


class ClassTexts:
    """The texts of one label set on one encoder: unit features [B, C, D] for any prompt, and pullbacks to it.

    ``init`` [1, ...] is the prompt that tuning starts from; ``tokens_per_pass`` 0 means TOKENS_PER_PASS.
    """

    def __init__(self, encoder: DualEncoder, classes: ClassTokens, init: Prompt, *, tokens_per_pass: int = 0) -> None:
        self.encoder = encoder
        self.classes = classes
        self.init = init.map(lambda tensor: tensor.detach())
        self._fast_encoder = encoder if isinstance(encoder, FastTextPullback) else None
        self._tokens = tokens_per_pass or TOKENS_PER_PASS
        self._encoded, self._copies = (classes, None) if init.context.ndim == 4 else self._without_copies()
        # Tokens per class beyond the shared prefix, on average: classes are packed by length.
        self._class_tokens = max(1, math.ceil(classes.lengths.double().mean().item()) - classes.shared)
        self._pieces: dict[tuple[int, int], ClassTokens] = {}
        self._init_features: Tensor | None = None
        self._init_pull: _Pull | None = None

    def _without_copies(self) -> tuple[ClassTokens, tuple[Tensor, Tensor] | None]:
        """The classes of distinct texts, and where some classes have one text, two indices [C] for each class.

        They are the number of its text among the distinct ones, and the first class that has this text.
        """
        classes, device = self.classes, self.encoder.device
        keys = torch.cat([classes.ids, classes.lengths[:, None], classes.slots], 1).tolist()
        rows, where = distinct([tuple(key) for key in keys])
        if len(rows) == len(classes):
            return classes, None
        labels = tuple(classes.labels[row] for row in rows)
        ids, lengths, slots = classes.ids[rows], classes.lengths[rows], classes.slots[rows]
        copies = torch.tensor(where, device=device), torch.tensor(rows, device=device)[where]
        return replace(classes, labels=labels, ids=ids, lengths=lengths, slots=slots), copies

    def features(self, prompt: Prompt) -> Tensor:
        """Unit features [B, C, D] in float32 or wider, without a graph."""
        return self._expanded(self._shrinking(lambda: self._features(prompt)))

    def init_features(self) -> Tensor:
        """Unit features [1, C, D] under the init, computed once."""
        if self._init_features is None:
            self._init_features = self.features(self.init)
        return self._init_features

    @cached_property
    def init_rms(self) -> float:
        """The root mean square of the init's context, for learning rates relative to it."""
        return context_rms(self.init.context)

    @property
    def scale(self) -> float:
        """The model's factor from cosine to logit."""
        return self.encoder.scale

    def logits(self, image_features: Tensor, text_features: Tensor) -> Tensor:
        """Logits [B, V, C] of views [B, V, D] for features [B or 1, C, D]; classes of one text have equal logits."""
        logits = self.encoder.logits(image_features, text_features)
        return logits if self._copies is None else logits.index_select(-1, self._copies[1])

    def pullback(self, prompt: Prompt, cotangent: Tensor) -> Prompt:
        """Gradients [B, ...] of sum(features · cotangent) for B prompts and cotangents [B, C, D]."""
        return self._scaled(cotangent, lambda unit: self._separate_pullback(prompt, unit))

    def pullback_to_init(self, cotangent: Tensor) -> Prompt:
        """The same where all B images are at the init: one graph serves them all, with B products."""
        return self._scaled(cotangent, self._shared_pullback)

    def with_pullback(self, prompt: Prompt) -> tuple[Tensor, Callable[[Tensor], Prompt]]:
        """`features` and `pullback` of B prompts, for a single use: one pass serves both where it can."""
        if self.encoder.device.type == "cuda" or len(list(self.chunks(len(prompt)))) > 1:
            return self.features(prompt), lambda cotangent: self.pullback(prompt, cotangent)
        leaf, features = self._graph(prompt, 0, len(self._encoded))
        return self._expanded(features.detach()), lambda rows: _gradient(leaf, features, self._summed(rows))

    def _expanded(self, features: Tensor) -> Tensor:
        """Features of all classes from those of the distinct texts."""
        return features if self._copies is None else features.index_select(1, self._copies[0])

    def _summed(self, cotangent: Tensor) -> Tensor:
        """Cotangents of the distinct texts from those of all classes."""
        if self._copies is None:
            return cotangent
        total = cotangent.new_zeros(len(cotangent), len(self._encoded), cotangent.shape[2])
        return total.index_add_(1, self._copies[0], cotangent)

    def _scaled(self, cotangent: Tensor, pullback: Callable[[Tensor], Prompt]) -> Prompt:
        # A vector-Jacobian product is linear, so each image's cotangent is brought to size 1 first: half precision
        # neither overflows nor underflows, and no loss scale has to be guessed.
        cotangent = self._summed(cotangent)
        size = cotangent.abs().amax((1, 2), keepdim=True)
        size = torch.where((size > 0) & size.isfinite(), size, torch.ones_like(size))
        gradient = self._shrinking(lambda: pullback(cotangent / size))
        return gradient.map(lambda part: part * size.reshape(-1, *[1] * (part.ndim - 1)))

    def chunks(self, images: int, *, graph: bool = True) -> Iterator[tuple[int, int]]:
        """Yield the first and the last class of each part that is encoded at once; ``graph``: for gradients."""
        count = len(self._encoded)
        tokens = self._tokens if graph else self._tokens * _GRAPHLESS
        step = max(1, tokens // (images * self._class_tokens))
        return ((first, min(first + step, count)) for first in range(0, count, step))

    def _piece(self, first: int, last: int) -> ClassTokens:
        """The classes first..last-1; stored, because encoders remember the layout of a `ClassTokens` object."""
        if (first, last) not in self._pieces:
            whole = (first, last) == (0, len(self._encoded))
            self._pieces[first, last] = self._encoded if whole else self._encoded.rows(first, last)
        return self._pieces[first, last]

    @torch.no_grad()
    def _features(self, prompt: Prompt) -> Tensor:
        return torch.cat(
            [
                _wide(self.encoder.encode_classes(self._piece(first, last), _rows(prompt, first, last)))
                for first, last in self.chunks(len(prompt), graph=False)
            ],
            dim=1,
        )

    def _shared_pullback(self, cotangent: Tensor) -> Prompt:
        """All images' products with the one Jacobian at the init."""
        spans = list(self.chunks(1))
        gradients = []
        for first, last in spans:
            pull, multiple = self._init_pull or self._pull(self.init, first, last, shared=True)
            if len(spans) == 1:
                self._init_pull = pull, multiple
            group = max(1, self._tokens * multiple // ((last - first) * self._class_tokens))
            gradients.append(joined([pull(part) for part in cotangent[:, first:last].split(group)]))
        return _total(gradients)

    def _separate_pullback(self, prompt: Prompt, cotangent: Tensor) -> Prompt:
        """B products with the Jacobians at B prompts, one chunk of classes at a time."""
        spans = self.chunks(len(prompt))
        return _total([self._pull(prompt, first, last)[0](cotangent[:, first:last]) for first, last in spans])

    def _pull(self, prompt: Prompt, first: int, last: int, *, shared: bool = False) -> _Pull:
        """The products for the classes first..last-1: the encoder's faster way, or autograd's graph."""
        if self._fast_encoder is not None:
            fast = self._fast_encoder.pullback_at(self._piece(first, last), _rows(prompt, first, last))
            if fast is not None:
                return (lambda cotangent: Prompt(fast(cotangent))), _GRAPHLESS
        return partial(_gradient, *self._graph(prompt, first, last), shared=shared), 1

    def _graph(self, prompt: Prompt, first: int, last: int) -> tuple[Prompt, Tensor]:
        leaf = _rows(prompt, first, last).map(lambda tensor: tensor.detach().clone().requires_grad_())
        with torch.enable_grad():
            return leaf, _wide(self.encoder.encode_classes(self._piece(first, last), leaf))

    def _shrinking(self, compute: Callable[[], T]) -> T:
        """Run; if the device runs out of memory, halve the tokens per pass and run again."""
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
                _log.warning("out of memory: trying again with at most %d text tokens per pass", self._tokens)


def distinct(keys: Sequence[Hashable]) -> tuple[list[int], list[int]]:
    """Return (rows, where): the first of each group of equal keys, and which of ``rows`` each key equals.

    >>> distinct(["a", "b", "a"])
    ([0, 1], [0, 1, 0])
    """
    first: dict[Hashable, int] = {}
    for row, key in enumerate(keys):
        first.setdefault(key, row)
    numbers = {key: number for number, key in enumerate(first)}
    return list(first.values()), [numbers[key] for key in keys]


def context_rms(context: Tensor) -> float:
    """The root mean square of all entries, computed on the CPU, so that it doesn't depend on the device."""
    return float(context.detach().cpu().double().square().mean().sqrt())


def joined(prompts: Sequence[Prompt]) -> Prompt:
    """Several prompts [n, ...] as one batch."""
    parts = [prompt.parts() for prompt in prompts]
    return Prompt(**{name: torch.cat([part[name] for part in parts]) for name in parts[0]})


def _gradient(leaf: Prompt, features: Tensor, cotangent: Tensor, *, shared: bool = False) -> Prompt:
    """Gradients for cotangents [B, c, D] of features [B, c, D], or of features [1, c, D] that B images share."""
    parts = leaf.parts()
    if features.device.type == "cpu" and (len(cotangent) == 1 or not shared):
        # The gradient of a sum is the same. Given cotangents, torch imports its symbolic shapes for the first image,
        # which takes as long as the image.
        with torch.enable_grad():
            total = (features * cotangent.to(features.dtype)).sum()
        return Prompt(
            **dict(zip(parts, torch.autograd.grad(total, list(parts.values()), retain_graph=shared), strict=True))
        )
    cotangent = (cotangent[:, None] if shared else cotangent).to(features.dtype)
    gradients = torch.autograd.grad(
        features, list(parts.values()), cotangent, retain_graph=shared, is_grads_batched=shared
    )
    return Prompt(**{n: part.squeeze(1) if shared else part for n, part in zip(parts, gradients, strict=True)})


def _wide(features: Tensor) -> Tensor:
    return features if features.dtype == torch.float64 else features.float()


def _rows(prompt: Prompt, first: int, last: int) -> Prompt:
    """The prompt of the classes first..last-1: all of it, or their contexts where these are class-specific."""
    if prompt.context.ndim == 3:
        return prompt
    return replace(prompt, context=prompt.context[:, first:last])


def _total(chunks: Sequence[Prompt]) -> Prompt:
    """The gradient of all chunks of classes: class-specific contexts side by side, all others summed."""
    parts = {name: [chunk.parts()[name] for chunk in chunks] for name in chunks[0].parts()}
    if chunks[0].context.ndim == 4:
        parts["context"] = [torch.cat(parts["context"], 1)]
    return Prompt(**{name: reduce(torch.add, pieces) for name, pieces in parts.items()})
