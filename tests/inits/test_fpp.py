"""Flatness-aware pretraining: equal to the plain loop, and flatter than where it began."""

from __future__ import annotations

import math

import pytest
import torch
from oracles.text import text_features

from poise.backbones import load
from poise.backbones.loaders.tiny import tiny_model
from poise.errors import InvalidOptionError
from poise.inits import fpp
from poise.prompts import init_prompt, tokenise
from poise.prompts.files import Facts, StoredPrompt
from poise.types import DualEncoder, Prompt

LABELS = ["cat", "dog", "great white shark"]


@pytest.fixture(scope="module")
def encoder() -> DualEncoder:
    return load("tiny", device="cpu", dtype="float64")


def disturbed_features(model, classes, context, noise, ctx_sd, rest_sd):
    """One noise [L, E] on every token vector of every sentence, through the model's own full-length forward."""
    table = model.token_embedding.weight.detach().clone()
    rows = []
    for row in range(len(classes)):
        length, slots = int(classes.lengths[row]), classes.slots[row].tolist()
        ids = torch.zeros(77, dtype=torch.long)
        ids[:length] = classes.ids[row, :length]
        vectors = table[ids].clone()
        for place, slot in enumerate(slots):
            vectors[slot] = context[place]
        for position in range(length):
            vectors[position] += noise[position] * (ctx_sd if position in slots else rest_sd)
        x = (vectors + model.positional_embedding)[None]
        for block in model.transformer.resblocks:
            x = block(x, attn_mask=model.attn_mask)
        feature = model.ln_final(x)[0, length - 1] @ model.text_projection
        rows.append(feature / feature.norm())
    return torch.stack(rows)


def test_fit_equals_the_plain_loop(encoder) -> None:
    model = tiny_model().double().eval().requires_grad_(False)
    recipe = fpp.Flatness(steps=3, seed=5)
    seen = []
    stored = fpp.fit(encoder, LABELS, recipe=recipe, report=lambda *values: seen.append(values))
    classes = tokenise(encoder, LABELS)
    goal = text_features(model, classes, init_prompt(encoder, classes))[0].detach()
    generator = torch.Generator().manual_seed(5)
    context = (torch.randn(4, 64, generator=generator).double() * 0.141421).requires_grad_()
    optimiser = torch.optim.AdamW([context], lr=1e-2)
    for step in range(3):
        optimiser.param_groups[0]["lr"] = 1e-4 + (1e-2 - 1e-4) * 0.5 * (1 + math.cos(math.pi * step / 3))
        noises = torch.randn(4, classes.ids.shape[1], 64, generator=generator).double()
        with torch.no_grad():
            shaken = [disturbed_features(model, classes, context, noise, 0.0707105, 0.141421) for noise in noises]
        texts = text_features(model, classes, Prompt(context[None]))[0]
        alignment = sum(((t - g) ** 2).sum() for t, g in zip(texts, goal, strict=True)) / 3
        cosine = sum((t @ s) for rows in shaken for t, s in zip(texts, rows, strict=True)) / 12
        optimiser.zero_grad()
        (alignment - (1 + 15 / 3) * cosine).backward()
        optimiser.step()
        assert seen[step] == pytest.approx((step, alignment.item(), cosine.item()), abs=1e-9)
    torch.testing.assert_close(stored.tensors["context"], context.detach(), atol=1e-6, rtol=0)


def test_it_gets_flatter_and_comes_near_the_words(encoder) -> None:
    values = []
    recipe = fpp.Flatness(steps=60)
    stored = fpp.fit(encoder, LABELS, recipe=recipe, report=lambda *each: values.append(each))
    assert values[-1][1] < values[0][1]
    begun = torch.randn(4, 64, generator=torch.Generator().manual_seed(0)).double() * recipe.start_sd
    before = StoredPrompt({"context": begun}, Facts(kind="fpp", model="tiny", template="a photo of a {}."))
    assert fpp.sharpness(encoder, LABELS, stored) < fpp.sharpness(encoder, LABELS, before)


def test_the_weight_follows_the_number_of_classes() -> None:
    assert fpp.Flatness().flatness_weight(30) == 1.5
    assert fpp.Flatness(weight=1.25).flatness_weight(30) == 1.25


def test_no_steps_are_refused(encoder) -> None:
    with pytest.raises(InvalidOptionError, match="steps is 0"):
        fpp.fit(encoder, LABELS, recipe=fpp.Flatness(steps=0))
