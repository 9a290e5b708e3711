"""The written-out Jacobian against backward passes, and when it is used."""

from __future__ import annotations

import pytest
import torch

from poise import methods
from poise.backbones import load
from poise.forward import ClassTexts
from poise.jacobian import TextJacobian, pays
from poise.prompts import start_prompt, tokenise
from poise.tuning import Tuner
from poise.types import DualEncoder, Prompt

LABELS = ["cat", "dog", "great white shark", "a very long name for a thing", "cup"]


@pytest.fixture(scope="module")
def encoder() -> DualEncoder:
    return load("tiny", device="cpu", dtype="float64")


@pytest.mark.parametrize("template", ["a photo of a {}.", "{} in a photo", "the {} here"])
@pytest.mark.parametrize("tokens", [16_384, 64])
def test_equals_backward_passes(encoder: DualEncoder, template: str, tokens: int) -> None:
    classes = tokenise(encoder, LABELS, template)
    start = start_prompt(encoder, classes)
    cotangent = torch.randn(3, len(LABELS), 32, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    texts = ClassTexts(encoder, classes, start)
    wanted = texts.pullback(texts.start, cotangent).context
    found = TextJacobian.of(encoder, classes, start, tokens_per_pass=tokens).pullback(cotangent)
    torch.testing.assert_close(found, wanted, atol=1e-11, rtol=1e-9)


def test_a_long_run_answers_as_a_short_one(encoder: DualEncoder) -> None:
    classes = tokenise(encoder, LABELS)
    chosen = [methods.get(name) for name in methods.names()]
    features = torch.nn.functional.normalize(
        torch.randn(4, 20, 32, dtype=torch.float64, generator=torch.Generator().manual_seed(1)), dim=-1
    )
    short, long = Tuner(encoder, classes, chosen), Tuner(encoder, classes, chosen, expected_images=10_000)
    wanted, found = short.predict(features), long.predict(features)
    assert short.texts._jacobian is None
    assert long.texts._jacobian is not None
    for name in wanted:
        torch.testing.assert_close(found[name].probs, wanted[name].probs, atol=1e-9, rtol=0)


def test_large_cotangents_stay_in_the_range_of_half_precision() -> None:
    matrix = torch.full((4096, 8), 30.0, dtype=torch.float16)
    found = TextJacobian(matrix, (2, 4)).pullback(torch.ones(1, 8, 512))
    torch.testing.assert_close(found, torch.full((1, 2, 4), 4096 * 30.0), rtol=2e-3, atol=0)


def test_it_must_pay_and_fit(encoder: DualEncoder) -> None:
    classes = tokenise(encoder, LABELS)
    start = start_prompt(encoder, classes)
    features = torch.zeros(1, len(LABELS), 32)
    assert not pays(classes, start, features, torch.float64, 10)
    assert pays(classes, start, features, torch.float64, 1000)
    assert not pays(classes, start, torch.zeros(1, 10**7, 32).expand(1, -1, -1), torch.float64, 1000)
    assert not pays(classes, Prompt(start.context[:, None].expand(1, 5, -1, -1)), features, torch.float64, 1000)
