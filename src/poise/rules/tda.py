"""TDA: logits corrected by two caches of earlier images (Karmanov et al., 2024).

With an image's feature f, logits z, predicted class c and entropy H in nats: f is put into the positive cache under c.
If 0.2 < H / log2 C < 0.5, it is also put into the negative cache, with the classes whose probability p is between 0.03
and 1. (The logarithms' bases differ as published.) Each class keeps its surest images. Then

    answer = z + α Σ_positive exp(-β (1 - f·f')) onehot(c') - 0.117 Σ_negative exp(-(1 - f·f')) 1[0.03 < p' < 1]

As published, an image is in the cache before it is answered, so α is added to its own predicted class: the answers are
over-confident by construction. The published weights belong to a logit scale of 100; for another scale s they are
multiplied by s / 100, so that the predicted classes don't depend on the unit of the logits.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from poise.errors import InvalidOptionError
from poise.objectives import select_views, view_entropy
from poise.rules.feature_cache import FeatureCache
from poise.rules.rule import LogitHead, RuleAnswer, State, StreamRule, rules
from poise.types import Outputs

SCALE = 100.0  # the logit scale that published weights belong to
_WEIGHT, _SHARPNESS, _WINDOW, _MARKED = 0.117, 1.0, (0.2, 0.5), (0.03, 1.0)  # of the negative cache
_FRACTION = 0.1  # of the views, if they are pooled


# By dataset: α and β. How they were chosen is not published.
_PUBLISHED = {
    "aircraft": (2.0, 2.0),
    "caltech101": (5.0, 5.0),
    "cars": (1.0, 7.0),
    "dtd": (2.0, 3.0),
    "eurosat": (4.0, 8.0),
    "flowers102": (1.0, 5.0),
    "food101": (1.0, 1.0),
    "pets": (2.0, 7.0),
    "sun397": (2.0, 3.0),
    "ucf101": (3.0, 8.0),
    "imagenet": (2.0, 5.0),
    "imagenet-a": (2.0, 5.0),
    "imagenet-v2": (1.0, 8.0),
    "imagenet-r": (1.0, 8.0),
    "imagenet-sketch": (2.363, 7.45),
}
_POOLED = ("imagenet-a", "imagenet-v2", "imagenet-r", "imagenet-sketch")


@dataclass(frozen=True)
class Seen:
    """One image as the caches see it."""

    feature: Tensor  # [D]; the mean of some views is not of unit length
    logits: Tensor  # [C]
    probs: Tensor  # [C]
    entropy: Tensor  # of the probabilities
    label: int

    @classmethod
    def of(cls, views: Tensor, logits: Tensor) -> Seen:
        """Make it of views [K, D] with logits [K, C], by their means."""
        probs = logits.softmax(-1).mean(0)
        # The entropy of one view follows from its logits exactly, also where probabilities vanish.
        entropy = view_entropy(logits[0]) if len(logits) == 1 else -torch.special.xlogy(probs, probs).sum()
        mean = logits.mean(0)
        return cls(views.mean(0).to(logits.dtype), mean, probs, entropy, int(mean.argmax()))


@rules.add("tda")
@dataclass(frozen=True)
class CacheAdapter(StreamRule):
    """Logits corrected by what earlier images looked like.

    Args:
        alpha: weight of the positive cache, for a logit scale of 100.
        beta: sharpness of the positive cache.
        positive: images per class in the positive cache; 0 leaves it out.
        negative: images per class in the negative cache; 0 leaves it out.
        pooled: an image is the mean of its most confident 10 % of views, as published for ImageNet's shifts, instead of
            its plain view.
        values: "fixed", or "published" for the values of the above that were published for each dataset, where they
            are not given. The fixed ones are those published for ImageNet.
    """

    alpha: float = 2.0
    beta: float = 5.0
    positive: int = 3
    negative: int = 2
    pooled: bool = False
    values: str = "fixed"

    def __post_init__(self) -> None:
        if self.values not in ("fixed", "published"):
            raise InvalidOptionError(f"values={self.values!r} is not accepted.", hint="Accepted: fixed, published.")
        for name in ("alpha", "beta", "positive", "negative"):
            value = getattr(self, name)
            if not 0 <= value < math.inf:
                raise InvalidOptionError(f"{name} is {value!r}.", hint="It must be 0 or above.")

    @property
    def reads_views(self) -> bool:
        """Other views matter if they are pooled."""
        return self.pooled

    def published(self, dataset: str) -> Mapping[str, Any]:
        """Return the values published for a dataset, if they are wanted."""
        if self.values == "fixed":
            return {}
        if dataset not in _PUBLISHED:
            raise InvalidOptionError(
                f"No values are published for '{dataset}'.", hint=f"Use values=fixed, or: {', '.join(_PUBLISHED)}."
            )
        alpha, beta = _PUBLISHED[dataset]
        return {"alpha": alpha, "beta": beta, "pooled": dataset in _POOLED}

    def start(self, text_features: Tensor) -> State:
        """Return two empty caches."""
        positive = FeatureCache.empty(text_features)
        return {**positive.named("positive"), **FeatureCache.empty(text_features, len(text_features)).named("negative")}

    def answer(self, state: State, out: Outputs, head: LogitHead) -> tuple[State, RuleAnswer]:
        """Return the caches after B images, and the answers [B, C]."""
        answers = []
        for views, logits in zip(out.image_features, out.logits, strict=True):
            state, answer = self._next(state, views, logits, head.scale / SCALE)
            answers.append(answer)
        return state, RuleAnswer(torch.stack(answers))

    def _next(self, state: State, views: Tensor, logits: Tensor, unit: float) -> tuple[State, Tensor]:
        image = self._seen(views, logits)
        positive, negative = FeatureCache.of(state, "positive"), FeatureCache.of(state, "negative")
        if self.positive:
            positive = positive.put(image.label, image.feature, image.entropy, capacity=self.positive)
        relative = float(image.entropy) / math.log2(len(image.probs)) if len(image.probs) > 1 else 0.0
        if self.negative and _WINDOW[0] < relative < _WINDOW[1]:
            negative = self._put_negative(negative, image)
        voters = self._voters(positive, views, logits)
        answer = image.logits + unit * self.alpha * voters.per_class(voters.affinity(image.feature, self.beta))
        answer = answer - unit * _WEIGHT * negative.affinity(image.feature, _SHARPNESS) @ negative.marks.to(answer)
        return {**positive.named("positive"), **negative.named("negative")}, answer

    def _seen(self, views: Tensor, logits: Tensor) -> Seen:
        chosen = select_views(logits[None], _FRACTION)[0] if self.pooled else [0]
        return Seen.of(views[chosen], logits[chosen])

    def _put_negative(self, cache: FeatureCache, image: Seen, *, drop_oldest: bool = False) -> FeatureCache:
        marks = (image.probs > _MARKED[0]) & (image.probs < _MARKED[1])
        return cache.put(
            image.label, image.feature, image.entropy, capacity=self.negative, marks=marks, drop_oldest=drop_oldest
        )

    def _voters(self, positive: FeatureCache, views: Tensor, logits: Tensor) -> FeatureCache:
        """The cache that votes on an image with views [V, D] and logits [V, C]."""
        return positive
