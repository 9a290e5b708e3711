"""BoostAdapter: TDA whose positive cache is filled up with the image's own confident views (Zhang et al., 2024).

For the answer to an image, each of its most confident 10 % of views is put under its own predicted class into a copy of
the positive cache, whose classes have room for ``delta`` more; the copy votes and is forgotten. Below 10 views there is
no such view, and the answer is TDA's.

There are two variants. "described": a class of the negative cache keeps its surest images, as in TDA. "as-published":
there the oldest image leaves, as in the released code.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from poise.errors import InvalidOptionError
from poise.objectives import view_entropy
from poise.rules.feature_cache import FeatureCache
from poise.rules.rule import rules
from poise.rules.tda import CacheAdapter, Seen

VARIANTS = ("described", "as-published")
_FRACTION = 0.1  # of the views


# By dataset; 0 for the others.
_PUBLISHED = {
    "aircraft": 2,
    "caltech101": 2,
    "cars": 3,
    "food101": 3,
    "sun397": 1,
    "imagenet-a": 3,
    "imagenet-v2": 1,
    "imagenet-r": 3,
    "imagenet-sketch": 1,
}


@rules.add("boostadapter")
@dataclass(frozen=True)
class BoostedCacheAdapter(CacheAdapter):
    """TDA with an image's own confident views among the voters.

    Args:
        delta: room for views in each class of the positive cache, beside the images'.
        variant: "described" or "as-published".
    """

    delta: int = 0
    variant: str = "described"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.delta < 0:
            raise InvalidOptionError(f"delta is {self.delta!r}.", hint="It must be 0 or above.")
        if self.variant not in VARIANTS:
            raise InvalidOptionError(
                f"variant={self.variant!r} is not accepted.", hint=f"Accepted: {', '.join(VARIANTS)}."
            )

    @property
    def reads_views(self) -> bool:
        """The confident views vote."""
        return True

    def published(self, dataset: str) -> Mapping[str, Any]:
        """Return the values published for a dataset, if they are wanted."""
        values = super().published(dataset)
        return {**values, "delta": _PUBLISHED.get(dataset, 0)} if values else {}

    def _put_negative(self, cache: FeatureCache, image: Seen, *, drop_oldest: bool = False) -> FeatureCache:
        return super()._put_negative(cache, image, drop_oldest=drop_oldest or self.variant == "as-published")

    def _voters(self, positive: FeatureCache, views: Tensor, logits: Tensor) -> FeatureCache:
        entropy = view_entropy(logits)
        for view in entropy.argsort(stable=True)[: int(_FRACTION * len(views))]:
            positive = positive.put(
                int(logits[view].argmax()), views[view], entropy[view], capacity=self.positive + self.delta
            )
        return positive
