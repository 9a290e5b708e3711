"""Tiles against the plain text forward, and the packing itself."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from oracles.text import text_features

from poise.backbones import load_model
from poise.backbones.loaders.openclip import causal_tower
from poise.backbones.loaders.tiny import tiny_model
from poise.backbones.text.shared_prefix import SharedPrefix
from poise.backbones.text.tiles import _places, _width, make_tiles
from poise.prompts import init_prompt, tokenise
from poise.types import Prompt

LABELS = [
    "cat",
    "dog",
    "great white shark",
    "a very long name for a thing that has no name",
    *(f"no {i}" for i in range(40)),
]


@pytest.mark.parametrize("deep", [False, True])
def test_equal_to_the_plain_forward(deep: bool) -> None:
    encoder = load_model("tiny", device="cpu", dtype="float64")
    classes = tokenise(encoder, LABELS)
    generator = torch.Generator().manual_seed(0)
    noise = torch.randn(3, 4, 64, dtype=torch.float64, generator=generator)
    layers = torch.randn(3, 1, 4, 64, dtype=torch.float64, generator=generator) if deep else None
    prompt = Prompt(init_prompt(encoder, classes).context + 0.1 * noise, text_layers=layers)
    model = tiny_model().double().requires_grad_(False)
    with torch.no_grad():
        found = SharedPrefix(causal_tower(model), tiled=True)(classes, prompt)
        wanted = text_features(model, classes, prompt)
    torch.testing.assert_close(torch.nn.functional.normalize(found, dim=-1), wanted, atol=1e-12, rtol=0)


def test_a_prompt_without_tokens_still_has_features_for_each_image() -> None:
    encoder = load_model("tiny", device="cpu", dtype="float64")
    classes = tokenise(encoder, LABELS[:4], "{}.", context="none")
    prompt = init_prompt(encoder, classes).map(lambda part: part.expand(3, -1, -1))
    model = tiny_model().double().requires_grad_(False)
    with torch.no_grad():
        found = SharedPrefix(causal_tower(model), tiled=True)(classes, prompt)
        wanted = SharedPrefix(causal_tower(model), tiled=False)(classes, prompt)
    assert found.shape == (3, 4, 32)
    torch.testing.assert_close(found, wanted, atol=1e-12, rtol=0)


def test_gradients_equal_those_of_the_plain_forward() -> None:
    encoder = load_model("tiny", device="cpu", dtype="float64")
    classes = tokenise(encoder, LABELS[:12])
    start = init_prompt(encoder, classes).context.repeat(2, 1, 1).requires_grad_()
    model = tiny_model().double().requires_grad_(False)
    cotangent = torch.randn(2, 12, 32, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    tiled = SharedPrefix(causal_tower(model), tiled=True)
    found = torch.nn.functional.normalize(tiled(classes, Prompt(start)), dim=-1)
    (ours,) = torch.autograd.grad(found, start, cotangent)
    (plain,) = torch.autograd.grad(text_features(model, classes, Prompt(start)), start, cotangent)
    assert tiled._tiles
    torch.testing.assert_close(ours, plain, atol=1e-11, rtol=0)


def test_gradients_of_many_images_go_through_one_graph() -> None:
    encoder = load_model("tiny", device="cpu", dtype="float64")
    classes = tokenise(encoder, LABELS[:12])
    start = init_prompt(encoder, classes).context.clone().requires_grad_()
    model = tiny_model().double().requires_grad_(False)
    directions = torch.randn(5, 1, 12, 32, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    found = torch.nn.functional.normalize(SharedPrefix(causal_tower(model), tiled=True)(classes, Prompt(start)), dim=-1)
    (ours,) = torch.autograd.grad(found, start, directions, is_grads_batched=True)
    plain = text_features(model, classes, Prompt(start))
    for direction, gradient in zip(directions, ours, strict=True):
        (wanted,) = torch.autograd.grad(plain, start, direction, retain_graph=True)
        torch.testing.assert_close(gradient, wanted, atol=1e-11, rtol=0)


@settings(max_examples=50, deadline=None)
@given(st.lists(st.integers(1, 60), min_size=1, max_size=80), st.integers(1, 17))
def test_no_class_is_cut_or_overlaps_another(lengths: list[int], prefix: int) -> None:
    width = _width(lengths, prefix)
    places = _places(lengths, width)
    assert (width + prefix) % 8 == 0
    for length, place in zip(lengths, places, strict=True):
        assert place % width + length <= width
    taken = [at for length, place in zip(lengths, places, strict=True) for at in range(place, place + length)]
    assert len(set(taken)) == len(taken)


def test_padding_sees_the_prefix_and_so_stays_finite() -> None:
    encoder = load_model("tiny", device="cpu", dtype="float32")
    tiles = make_tiles(tokenise(encoder, LABELS), device=torch.device("cpu"), dtype=torch.float32)
    assert bool((tiles.mask == 0).any(-1).all())
