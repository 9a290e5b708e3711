"""Tiles against the plain text forward, and the packing itself."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from poise.backbones import load_model
from poise.backbones.loaders.openclip import causal_tower
from poise.backbones.loaders.tiny import tiny_model
from poise.backbones.text import shared_prefix
from poise.backbones.text.shared_prefix import SharedPrefix
from poise.backbones.text.tiles import make_tiles, row_offsets, tile_width
from poise.prompts import init_prompt, tokenise
from poise.types import Prompt
from tests.oracles.text import text_features

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
        actual = SharedPrefix(causal_tower(model), tiled=True)(classes, prompt)
        expected = text_features(model, classes, prompt)
    torch.testing.assert_close(torch.nn.functional.normalize(actual, dim=-1), expected, atol=1e-12, rtol=0)


def test_a_prompt_without_tokens_still_has_features_for_each_image() -> None:
    encoder = load_model("tiny", device="cpu", dtype="float64")
    classes = tokenise(encoder, LABELS[:4], "{}.", context="none")
    prompt = init_prompt(encoder, classes).map(lambda part: part.expand(3, -1, -1))
    model = tiny_model().double().requires_grad_(False)
    with torch.no_grad():
        actual = SharedPrefix(causal_tower(model), tiled=True)(classes, prompt)
        expected = SharedPrefix(causal_tower(model), tiled=False)(classes, prompt)
    assert actual.shape == (3, 4, 32)
    torch.testing.assert_close(actual, expected, atol=1e-12, rtol=0)


def test_gradients_equal_those_of_the_plain_forward(monkeypatch: pytest.MonkeyPatch) -> None:
    tiles = []
    counted = lambda *given, **more: tiles.append(1) or make_tiles(*given, **more)  # noqa: E731
    monkeypatch.setattr(shared_prefix, "make_tiles", counted)
    encoder = load_model("tiny", device="cpu", dtype="float64")
    classes = tokenise(encoder, LABELS[:12])
    init = init_prompt(encoder, classes).context.repeat(2, 1, 1).requires_grad_()
    model = tiny_model().double().requires_grad_(False)
    cotangent = torch.randn(2, 12, 32, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    tiled = SharedPrefix(causal_tower(model), tiled=True)
    actual = torch.nn.functional.normalize(tiled(classes, Prompt(init)), dim=-1)
    (ours,) = torch.autograd.grad(actual, init, cotangent)
    (plain,) = torch.autograd.grad(text_features(model, classes, Prompt(init)), init, cotangent)
    assert tiles
    torch.testing.assert_close(ours, plain, atol=1e-11, rtol=0)


def test_gradients_of_many_images_go_through_one_graph() -> None:
    encoder = load_model("tiny", device="cpu", dtype="float64")
    classes = tokenise(encoder, LABELS[:12])
    init = init_prompt(encoder, classes).context.clone().requires_grad_()
    model = tiny_model().double().requires_grad_(False)
    directions = torch.randn(5, 1, 12, 32, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    actual = torch.nn.functional.normalize(SharedPrefix(causal_tower(model), tiled=True)(classes, Prompt(init)), dim=-1)
    (ours,) = torch.autograd.grad(actual, init, directions, is_grads_batched=True)
    plain = text_features(model, classes, Prompt(init))
    for direction, gradient in zip(directions, ours, strict=True):
        (expected,) = torch.autograd.grad(plain, init, direction, retain_graph=True)
        torch.testing.assert_close(gradient, expected, atol=1e-11, rtol=0)


@settings(max_examples=50, deadline=None)
@given(st.lists(st.integers(1, 60), min_size=1, max_size=80), st.integers(1, 17))
def test_no_class_is_split_or_overlaps_another(lengths: list[int], prefix: int) -> None:
    width = tile_width(lengths, prefix)
    offsets = row_offsets(lengths, width)
    assert (width + prefix) % 8 == 0
    for length, offset in zip(lengths, offsets, strict=True):
        assert offset % width + length <= width
    used = [i for length, offset in zip(lengths, offsets, strict=True) for i in range(offset, offset + length)]
    assert len(set(used)) == len(used)


def test_padding_attends_to_the_prefix_and_so_stays_finite() -> None:
    encoder = load_model("tiny", device="cpu", dtype="float32")
    tiles = make_tiles(tokenise(encoder, LABELS), device=torch.device("cpu"), dtype=torch.float32)
    assert bool((tiles.mask == 0).any(-1).all())
