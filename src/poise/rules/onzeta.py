"""OnZeta: a prior of the classes and class proxies among images, learned along a stream (Qian and Hu, 2024).

With an image's plain view f, texts t, logit scale s, and i images before it:

    q = softmax(s f·t) exp(ρ), made to sum to 1;        ρ ← max(0, ρ - 20 / √(i+1) (q - a / C))
    u = softmax(s/4 f·w);                               w ← unit(w - 0.5 / √(i+1) s/4 (u - q) f)
    answer = β u + (1 - β) q,   β = β0 √((i+1) / n)

ρ begins at 0 and raises classes that were predicted less often than a share a of the uniform one; the proxies w begin
at the texts. n is the length of the stream, which must be known beforehand; after n images, β stays at β0. The
published temperatures 0.01 and 0.04 are s = 100 and s/4.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import normalize

from poise.errors import InvalidOptionError
from poise.rules.rule import Gives, LogitHead, RuleAnswer, State, StreamRule, rules
from poise.types import Outputs

_PRIOR_RATE, _PROXY_RATE, _SOFTER = 20.0, 0.5, 4.0
_IMAGENET = ("imagenet", "imagenet-a", "imagenet-v2", "imagenet-r", "imagenet-sketch")


@rules.add("onzeta")
@dataclass(frozen=True)
class OnlineProxies(StreamRule):
    """Probabilities under the class texts with a learned prior, mixed with those under learned proxies.

    Args:
        length: n, the number of images after which the proxies have their whole weight.
        proxies: β0, the largest weight of the proxies' prediction.
        balance: a, the least share of each class in the predictions, relative to 1 / C; 0 leaves the prior out.
        values: "fixed", or "published" for the ``proxies`` and ``balance`` that were published for each dataset, where
            they are not given.
    """

    length: int = 1000
    proxies: float = 0.4
    balance: float = 1.0
    values: str = "fixed"

    gives = Gives.PROBABILITIES

    def __post_init__(self) -> None:
        if self.values not in ("fixed", "published"):
            raise InvalidOptionError(f"values={self.values!r} is not accepted.", hint="Accepted: fixed, published.")
        for name, least, most in (("length", 1, math.inf), ("proxies", 0, 1), ("balance", 0, 1)):
            value = getattr(self, name)
            if not least <= value <= most or value == math.inf:
                raise InvalidOptionError(f"{name} is {value!r}.", hint=f"It must be from {least} to {most}.")

    @property
    def reads_views(self) -> bool:
        """The plain view alone is read."""
        return False

    def published(self, dataset: str) -> Mapping[str, Any]:
        """Return the values published for a dataset, if they are wanted."""
        if self.values == "fixed":
            return {}
        return {"proxies": 0.8 if dataset in _IMAGENET else 0.4, "balance": 0.0 if dataset == "caltech101" else 1.0}

    def start(self, text_features: Tensor) -> State:
        """Return no prior, and the texts as proxies."""
        wide = text_features.to(torch.promote_types(text_features.dtype, torch.float32))
        prior = wide.new_zeros(len(wide))
        return {"proxies": wide.clone(), "prior": prior, "seen": wide.new_zeros((), dtype=torch.int64)}

    def answer(self, state: State, out: Outputs, head: LogitHead) -> tuple[State, RuleAnswer]:
        """Return prior and proxies after B images, and the logarithms of the answers [B, C]."""
        proxies, prior, seen = state["proxies"], state["prior"], int(state["seen"])
        answers = []
        for views, logits in zip(out.image_features, out.logits, strict=True):
            feature, number = views[0].to(proxies.dtype), seen + 1
            by_text = (logits[0].to(proxies.dtype) + prior).softmax(-1)
            by_proxy = (head.scale / _SOFTER * (proxies @ feature)).softmax(-1)
            weight = self.proxies * math.sqrt(min(1.0, number / self.length))
            answers.append(weight * by_proxy + (1 - weight) * by_text)
            step = 1 / math.sqrt(number)
            prior = (prior - _PRIOR_RATE * step * (by_text - self.balance / len(prior))).clamp_min(0)
            moved = _PROXY_RATE * step * head.scale / _SOFTER * (by_proxy - by_text)
            proxies = normalize(proxies - moved[:, None] * feature, dim=-1)
            seen = number
        after = {"proxies": proxies, "prior": prior, "seen": torch.full_like(state["seen"], seen)}
        return after, RuleAnswer(torch.stack(answers).log())
