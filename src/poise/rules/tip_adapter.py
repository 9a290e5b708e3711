"""Tip-Adapter: logits corrected by a cache of a few labelled images per class, without training (Zhang et al., 2022).

    answer = z + α Σ_i exp(-β (1 - f·key_i)) onehot(y_i),   key_i = unit(mean of the features of the image's crops)

α belongs to a logit scale of 100, as in TDA. The published code chooses α and β on a validation split, and for one
variant on the test set. Here `poise fit tip-adapter` chooses them on the few labelled images alone: each one is
classified by the keys of all others, and the pair of a grid with the lowest negative log-likelihood is stored with the
keys. The grid is wider than the published ones, which end at 10 and 12: where features of images are less alike than
CLIP's, α must be larger. With one image per class there is no other key of the class, so the published start values are
stored.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path

import torch
from safetensors import SafetensorError
from torch import Tensor
from torch.nn.functional import cross_entropy, normalize, one_hot

from poise.encoding.class_texts import ClassTexts
from poise.errors import InvalidCheckpointError, InvalidOptionError, reason_of
from poise.files import hash_names, read_tensors, save_tensors
from poise.rules.rule import LogitHead, Rule, RuleAnswer, rules
from poise.rules.tda import SCALE
from poise.types import Outputs

_FORMAT = "poise-cache/1"
START = (1.17, 1.0)  # published α and β before the search (ImageNet)
ALPHAS = tuple(round(0.1 * 10 ** (step / 10), 4) for step in range(41))  # 0.1 to 1000
BETAS = tuple(round(0.1 * 10 ** (step / 8), 4) for step in range(25))  # 0.1 to 100
_QUERIES = 2048  # images that the choice is made on, at most


@dataclass(frozen=True)
class LabelledCache:
    """The keys of labelled images, and what they were made for."""

    keys: Tensor  # [N, D] of unit length
    targets: Tensor  # [N]: the classes
    model: str
    labels_hash: str
    alpha: float
    beta: float


@rules.add("tip-adapter")
@dataclass(frozen=True)
class LabelledCacheAdapter(Rule):
    """Logits corrected by the labelled images that look like this one.

    Args:
        file: what `poise fit tip-adapter` wrote.
        alpha: weight of the cache, for a logit scale of 100; None for the one in the file.
        beta: sharpness of the cache; None for the one in the file.
    """

    file: str = ""
    alpha: float | None = None
    beta: float | None = None

    labelled = True

    @property
    def reads_views(self) -> bool:
        """The plain view is enough."""
        return False

    def __post_init__(self) -> None:
        for name in ("alpha", "beta"):
            value = getattr(self, name)
            if value is not None and not 0 <= value < torch.inf:
                raise InvalidOptionError(f"{name} is {value!r}.", hint="It must be 0 or above.")

    def check(self, model: str, labels: Sequence[str]) -> None:
        """Refuse a file that was made for another model or other labels."""
        _check("model", self.cache.model, model)
        _check("labels (hash)", self.cache.labels_hash, hash_names(labels))

    @cached_property
    def cache(self) -> LabelledCache:
        """The file's content."""
        if not self.file:
            raise InvalidOptionError(
                "tip-adapter has no file of labelled images.",
                hint="Make one with `poise fit tip-adapter`, and give the option file=FILE.",
            )
        return load_cache(self.file)

    def __call__(self, out: Outputs, head: LogitHead) -> RuleAnswer:
        """Return the logits [B, C] of the plain views."""
        logits, cache = out.logits[:, 0], self.cache
        alpha = cache.alpha if self.alpha is None else self.alpha
        beta = cache.beta if self.beta is None else self.beta
        votes = one_hot(cache.targets, logits.shape[-1]).to(logits)
        affinity = _affinity(out.image_features[:, 0].to(logits.dtype), cache.keys.to(logits), beta)
        return RuleAnswer(logits + alpha * head.scale / SCALE * (affinity @ votes))


def make_cache(texts: ClassTexts, features: Tensor, targets: Tensor) -> LabelledCache:
    """Make the cache of a few labelled images.

    Args:
        texts: the class texts, whose initial prompt the weights are chosen for.
        features: unit features [N, V, D] of N images; view 0 is the plain one, and the others make the key. With one
            view, it makes the key itself.
        targets: the classes [N].
    """
    features, targets = features.to(texts.encoder.device), targets.to(texts.encoder.device)
    logits = texts.logits(features[:, :1], texts.init_features())[:, 0]
    views = features.to(logits.dtype)
    keys = cache_keys(views[:, 1:] if views.shape[1] > 1 else views)
    alpha, beta = choose_weights(keys, targets, views[:, 0], logits, texts.encoder.scale)
    return LabelledCache(keys, targets, texts.encoder.name, hash_names(texts.classes.labels), alpha, beta)


def cache_keys(features: Tensor) -> Tensor:
    """Return the keys [N, D] of features [N, K, D] of each image's crops."""
    return normalize(features.mean(1), dim=-1)


def choose_weights(keys: Tensor, targets: Tensor, plain: Tensor, logits: Tensor, scale: float) -> tuple[float, float]:
    """Return α and β: each image is classified by the keys of the others, and the likelihood decides.

    Args:
        keys: [N, D] of the labelled images.
        targets: [N], their classes.
        plain: [N, D], the features of their plain views.
        logits: [N, C] of these.
        scale: the model's logit scale.
    """
    if int(targets.bincount().max()) < 2:
        return START
    rows = torch.randperm(len(keys), generator=torch.Generator().manual_seed(0))[:_QUERIES].to(keys.device)
    votes = one_hot(targets, logits.shape[-1]).to(logits)
    best, chosen = torch.inf, START
    for beta in BETAS:
        affinity = _affinity(plain[rows], keys, beta)
        affinity[torch.arange(len(rows)), rows] = 0  # an image doesn't vote on itself
        added = scale / SCALE * (affinity @ votes)
        for alpha in ALPHAS:
            loss = float(cross_entropy(logits[rows] + alpha * added, targets[rows]))
            if loss < best:
                best, chosen = loss, (alpha, beta)
    return chosen


def save_cache(path: str | Path, cache: LabelledCache) -> None:
    """Write a cache to a file, which appears complete or not at all."""
    facts = {name: value for name, value in asdict(cache).items() if not isinstance(value, Tensor)}
    tensors = {"keys": cache.keys.to(torch.promote_types(cache.keys.dtype, torch.float32)), "targets": cache.targets}
    save_tensors(path, tensors, {"format": _FORMAT, "facts": json.dumps(facts)})


def load_cache(path: str | Path) -> LabelledCache:
    """Read what `save_cache` wrote."""
    try:
        tensors, metadata = read_tensors(path)
        if metadata.get("format") != _FORMAT:
            raise ValueError(f"its format is {metadata.get('format')!r}, not {_FORMAT!r}")
        facts = json.loads(metadata["facts"])
        names = str(facts["model"]), str(facts["labels_hash"])
        cache = LabelledCache(tensors["keys"], tensors["targets"], *names, float(facts["alpha"]), float(facts["beta"]))
        if cache.keys.ndim != 2 or cache.targets.shape != cache.keys.shape[:1] or not cache.keys.isfinite().all():
            raise ValueError("keys and targets don't fit each other, or are not finite")
    except (OSError, SafetensorError, ValueError, KeyError, TypeError) as problem:
        raise InvalidCheckpointError(
            f"'{path}' is not a readable cache of labelled images: {reason_of(problem)}.",
            hint="Make one with `poise fit tip-adapter`.",
        ) from None
    return cache


def _affinity(features: Tensor, keys: Tensor, sharpness: float) -> Tensor:
    return (-sharpness * (1 - features @ keys.mT)).exp()


def _check(fact: str, stored: object, needed: object) -> None:
    if stored != needed:
        raise InvalidCheckpointError(
            f"The cache's {fact} is {stored!r}, but {needed!r} is needed.",
            hint="Make a cache for this model and these labels with `poise fit tip-adapter`.",
        )
