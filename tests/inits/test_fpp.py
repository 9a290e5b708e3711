"""Flatness-aware pretraining: equal to the plain loop, and flatter than where it began."""

from __future__ import annotations

import dataclasses
import json
import math
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from poise.backbones import load_model
from poise.backbones.loaders.tiny import tiny_model
from poise.encoding.class_texts import ClassTexts
from poise.errors import InvalidOptionError
from poise.inits import fpp
from poise.inits.kinds import read_init
from poise.prompts import init_prompt, tokenise
from poise.prompts.files import Facts, StoredPrompt
from poise.types import DualEncoder, Prompt
from tests.oracles.text import text_features

LABELS = ["cat", "dog", "great white shark"]
CLOSE = {"atol": 1e-10, "rtol": 0}


@pytest.fixture(scope="module")
def encoder() -> DualEncoder:
    return load_model("tiny", device="cpu", dtype="float64")


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


def test_the_published_weights() -> None:
    assert fpp.published_weight(30) == 1.5
    assert fpp.published_weight(30, shift=True) == 1.25
    assert fpp.PUBLISHED["fpp"].weight is None
    assert fpp.PUBLISHED["fpp-shift"].weight == 1.25


@pytest.mark.parametrize(("init", "weight"), [("fpp", 1 + 15 / 3), ("fpp-shift", 1.25)])
def test_an_init_that_is_fitted_on_the_spot_has_the_published_weight(encoder, monkeypatch, init, weight) -> None:
    monkeypatch.setitem(fpp.PUBLISHED, init, dataclasses.replace(fpp.PUBLISHED[init], steps=3))
    init_read = read_init(init, encoder, tokenise(encoder, LABELS))
    wanted = fpp.fit(encoder, LABELS, recipe=fpp.Flatness(steps=3, weight=weight))
    assert torch.equal(init_read.parameters.context[0], wanted.tensors["context"].to(init_read.parameters.context))


def test_repeated_labels_count_as_often_as_they_occur(encoder) -> None:
    seen = {"once": [], "twice": []}
    for name, labels in (("once", ["crane", "cat"]), ("twice", ["crane", "cat", "crane"])):
        fpp.fit(
            encoder, labels, recipe=fpp.Flatness(steps=1), report=lambda *values, name=name: seen[name].append(values)
        )
    alone = []
    for label in ("crane", "cat"):
        fpp.fit(encoder, [label], recipe=fpp.Flatness(steps=1), report=lambda *values: alone.append(values))
    (crane, cat) = ([alignment, cosine] for _, alignment, cosine in alone)
    assert seen["once"][0][1:] == pytest.approx([(a + b) / 2 for a, b in zip(crane, cat, strict=True)])
    assert seen["twice"][0][1:] == pytest.approx([(2 * a + b) / 3 for a, b in zip(crane, cat, strict=True)])


GOLDEN = Path(__file__).parents[1] / "golden"
CASES = json.loads((GOLDEN / "fpp.json").read_text())["cases"]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["name"])
def test_equals_the_published_code(case) -> None:
    name, tensors = case["name"], load_file(GOLDEN / "fpp.safetensors")
    model = load_model(f"local-dir:{GOLDEN / 'model'}", device="cpu", dtype="float64")
    classes = tokenise(model, [label.replace("_", " ") for label in case["labels"]], case["template"])
    noises = [noise[:, : classes.ids.shape[1]].double() for noise in tensors[case["noise"]]]
    recipe = fpp.Flatness(steps=case["steps"], weight=case["weight"])
    words, errors, seen = init_prompt(model, classes), [], []
    torch.testing.assert_close(model.encode_classes(classes, words)[0], tensors[f"{name}/target"], **CLOSE)
    start = words.context[0] if case["start"] == "words" else tensors[f"{name}/start"]
    torch.testing.assert_close(start, tensors[f"{name}/start"], **CLOSE)
    cycle = (noises[step % len(noises)] for step in range(case["steps"]))
    end = fpp.descend(model, classes, start, cycle, recipe, lambda *values: seen.append(values))
    for step in range(case["recorded_steps"]):
        assert seen[step] == pytest.approx((step, case["alignment"][step], case["cosine"][step]), abs=1e-10)
        assert recipe.rate(step) == pytest.approx(case["lr"][step], rel=1e-12)
    for later in case["later"]:
        assert seen[later["step"]][1:] == pytest.approx((later["alignment"], later["cosine"]), abs=1e-10)
    torch.testing.assert_close(end, tensors[f"{name}/final_context"], **CLOSE)
    for context, wanted, noise in zip(
        [start, *tensors[f"{name}/context"][:-1]], tensors[f"{name}/gradient"], noises, strict=True
    ):
        texts, noisy = ClassTexts(model, classes, words), fpp.NoisyTexts(model, classes, recipe)
        shaken = noisy.features(context, noise)
        _, _, found = fpp.gradient(texts, context, texts.init_features(), shaken, case["weight"])
        errors.append(float((found - wanted).norm() / wanted.norm()))
    assert max(errors) < 1e-10


def test_no_steps_are_refused(encoder) -> None:
    with pytest.raises(InvalidOptionError, match="steps=0"):
        fpp.fit(encoder, LABELS, recipe=fpp.Flatness(steps=0))
