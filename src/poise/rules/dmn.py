"""DMN-ZS: class prototypes that a memory of earlier images makes for each image (Zhang et al., 2024).

The image is put into the memory under the class that the mean q of its confident views' predictions names, with the
entropy of q; each class keeps its surest images. Class k's prototype for the plain view v is
unit(Σ_j exp(-5.5 (1 - m_j·v)) m_j) over the class's memory and its text t_k. The answer mixes two predictions of v:

    (softmax(s v·t) + w softmax(s v·prototypes)) / (1 + w)

The published code leaves out the division and chooses w on the labels of the test images; here w is fixed. Views are
confident by -Σ p log(p + 1e-6), as published: for saturated predictions that differs from the entropy.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import normalize

from poise.errors import InvalidOptionError
from poise.objectives import Target
from poise.rules.feature_cache import FeatureCache
from poise.rules.rule import Gives, LogitHead, RuleAnswer, State, StreamRule, rules
from poise.types import Outputs


@rules.add("dmn")
@dataclass(frozen=True)
class MemoryNetwork(StreamRule):
    """Probabilities under the class texts and under prototypes of earlier images.

    Args:
        weight: w, the weight of the prototypes' prediction; that of the texts has weight 1.
        memory: images per class.
        sharpness: how fast the influence of an image falls with its distance.
        selection: fraction of views that name the class; at least one view does.
    """

    weight: float = 1.0
    memory: int = 50
    sharpness: float = 5.5
    selection: float = 0.1

    gives = Gives.PROBABILITIES

    def __post_init__(self) -> None:
        for name, least in {"weight": 0, "memory": 1, "sharpness": 0}.items():
            value = getattr(self, name)
            if not least <= value < math.inf:
                raise InvalidOptionError(f"{name} is {value!r}.", hint=f"It must be {least} or above.")
        Target(selection=self.selection)  # checks it

    def start(self, text_features: Tensor) -> State:
        """Return an empty memory."""
        return FeatureCache.empty(text_features).named("memory")

    def answer(self, state: State, out: Outputs, head: LogitHead) -> tuple[State, RuleAnswer]:
        """Return the memory after B images, and the logarithms of the answers [B, C]."""
        cache, answers = FeatureCache.of(state, "memory"), []
        texts = out.text_features.expand(len(out.logits), -1, -1)
        for views, logits, text in zip(out.image_features, out.logits, texts, strict=True):
            cache = self._remember(cache, views[0], logits)
            prototypes = self._prototypes(cache, views[0].to(logits.dtype), text.to(logits.dtype))
            dynamic = head.logits(views[None, :1].to(logits.dtype), prototypes[None])[0, 0].softmax(-1)
            answers.append((logits[0].softmax(-1) + self.weight * dynamic) / (1 + self.weight))
        return cache.named("memory"), RuleAnswer(torch.stack(answers).log())

    def _remember(self, cache: FeatureCache, plain: Tensor, logits: Tensor) -> FeatureCache:
        probs = logits.softmax(-1)
        unsure = -(probs * (probs + 1e-6).log()).sum(-1)
        mean = probs[Target(selection=self.selection).lowest(unsure[None])[0]].mean(0)
        entropy = -(mean * (mean + 1e-8).log()).sum()
        return cache.put(int(mean.argmax()), plain, entropy, capacity=self.memory)

    def _prototypes(self, cache: FeatureCache, plain: Tensor, text: Tensor) -> Tensor:
        """The prototypes [C, D] for a plain view [D], with texts [C, D]."""
        weights = cache.affinity(plain, self.sharpness)
        own = (-self.sharpness * (1 - text @ plain)).exp()
        return normalize(cache.per_class(weights[:, None] * cache.features) + own[:, None] * text, dim=-1)
