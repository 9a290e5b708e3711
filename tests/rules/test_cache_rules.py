"""TDA, BoostAdapter, DMN and OnZeta: streams conform, options are checked, and weights have the unit of the logits."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.nn.functional import normalize

from poise.data.catalog import datasets, row
from poise.errors import InvalidOptionError
from poise.rules import CosineHead, StreamRule, rules
from poise.testing import STREAM_RULE_CHECKS, parametrize_checks
from poise.testing.stream_rules import MakeRule

STREAMS = {
    "tda": {},
    "tda pooled": {"pooled": True},
    "boostadapter": {"delta": 1},
    "boostadapter published": {"variant": "as-published"},
    "dmn": {"memory": 2},
    "onzeta": {"length": 4},
}


def make(name: str, **more: object) -> StreamRule:
    rule = rules.get(name.split()[0])(**{**STREAMS.get(name, {}), **more})
    assert isinstance(rule, StreamRule)
    return rule


def example(images: int = 30, views: int = 20) -> tuple[Tensor, Tensor]:
    """Views [B, V, D] and texts [C, D] with CLIP's geometry, so that some predictions are unsure."""
    generator = torch.Generator().manual_seed(4)
    texts = normalize(torch.randn(5, 16, dtype=torch.float64, generator=generator) + 3, dim=-1)
    noise = torch.randn(images, views, 16, dtype=torch.float64, generator=generator)
    return normalize(texts[torch.arange(images) % 5][:, None] + 0.3 * noise, dim=-1), texts


@parametrize_checks(STREAM_RULE_CHECKS, {name: lambda name=name: make(name) for name in STREAMS})
def test_stream_rules_conform(make: MakeRule, check: Callable[[MakeRule], None]) -> None:
    check(make)


@pytest.mark.parametrize("name", ["tda", "boostadapter"])
def test_weights_have_the_unit_of_the_logits(name: str) -> None:
    """The same probabilities at one scale, the same corrections in cosines at all."""
    views, texts = example(images=6)
    corrections = []
    for scale in (50.0, 100.0):
        head = CosineHead(scale=scale)
        out = head.outputs(views, texts[None])
        corrections.append((make(name, negative=0)(out, head).logits - out.logits[:, 0]) / scale)
    torch.testing.assert_close(*corrections, atol=1e-12, rtol=0)


@pytest.mark.parametrize("name", ["tda", "boostadapter"])
@pytest.mark.parametrize("scale", [50.0, 100.0])
def test_the_weight_of_the_negative_cache_has_the_unit_of_the_logits(name: str, scale: float) -> None:
    """An image of medium entropy is in the negative cache before it is answered, with the classes of 3 % and more."""
    probs = torch.tensor([0.7, 0.25, 0.04, 0.005, 0.005], dtype=torch.float64)
    cosines = probs.log() / scale
    image = torch.cat([cosines, (1 - cosines.square().sum()).sqrt()[None]])  # its last entry gives it unit length
    head = CosineHead(scale=scale)
    out = head.outputs(image[None, None], torch.eye(6, dtype=torch.float64)[None, :5])
    corrected = make(name, alpha=0.0)(out, head).logits[0] - out.logits[0, 0]
    expected = -0.117 * scale / 100 * torch.tensor([1.0, 1.0, 1.0, 0.0, 0.0], dtype=torch.float64)
    torch.testing.assert_close(corrected, expected, atol=1e-12, rtol=0)


def test_a_second_image_is_drawn_to_the_first_ones_class() -> None:
    texts = torch.eye(2, dtype=torch.float64)
    views = normalize(torch.tensor([[[2.0, 1.0]], [[1.0, 1.1]]], dtype=torch.float64), dim=-1)
    head = CosineHead(scale=100.0)
    out = head.outputs(views, texts[None])
    logits = make("tda", alpha=3.0, beta=2.0, negative=0)(out, head).logits
    cosine = float(views[0, 0] @ views[1, 0])
    added = torch.tensor([3.0 * math.exp(-2.0 * (1 - cosine)), 3.0], dtype=torch.float64)
    torch.testing.assert_close(logits[1], out.logits[1, 0] + added, atol=1e-9, rtol=0)


def test_few_views_give_no_boost() -> None:
    head, (views, texts) = CosineHead(scale=30.0), example(views=9)
    out = head.outputs(views, texts[None])
    assert torch.equal(make("boostadapter", delta=2)(out, head).logits, make("tda")(out, head).logits)


def test_dmn_answers_with_probabilities() -> None:
    head, (views, texts) = CosineHead(scale=30.0), example()
    probs = make("dmn", weight=4.0)(head.outputs(views, texts[None]), head).logits.exp()
    torch.testing.assert_close(probs.sum(-1), torch.ones(len(probs), dtype=torch.float64), atol=1e-12, rtol=0)


def test_one_view_is_enough_for_dmn() -> None:
    """The published code averages over int(0.1) = 0 views here, and stores NaN."""
    head, (views, texts) = CosineHead(scale=30.0), example(views=1)
    assert make("dmn")(head.outputs(views, texts[None]), head).logits.exp().isfinite().all()


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("tda", {"alpha": -1.0}),
        ("tda", {"beta": math.nan}),
        ("tda", {"values": "best"}),
        ("tda", {"positive": -1}),
        ("boostadapter", {"delta": -1}),
        ("boostadapter", {"variant": "fixed"}),
        ("dmn", {"weight": -1.0}),
        ("dmn", {"memory": 0}),
        ("dmn", {"selection": 0.0}),
        ("onzeta", {"length": 0}),
        ("onzeta", {"proxies": 1.5}),
        ("onzeta", {"balance": -0.1}),
        ("onzeta", {"values": "mine"}),
    ],
)
def test_bad_options_are_refused(name: str, options: dict[str, object]) -> None:
    with pytest.raises(InvalidOptionError, match=next(iter(options))):
        make(name, **options)


def test_published_values_are_known_for_each_dataset() -> None:
    assert make("tda").published("dtd") == {}
    for dataset in datasets:
        values = make("boostadapter", values="published").published(dataset)
        assert values["pooled"] == row(dataset).shift
        make("boostadapter", **values)
    assert make("tda", values="published").published("imagenet-sketch") == {
        "alpha": 2.363,
        "beta": 7.45,
        "pooled": True,
    }
    with pytest.raises(InvalidOptionError, match="No values are published for 'mine'"):
        make("tda", values="published").published("mine")
