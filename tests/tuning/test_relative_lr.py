"""A learning rate relative to the initial context equals the absolute one of that size, in every way of tuning."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from poise import methods
from poise.backbones import load_model
from poise.errors import InvalidOptionError
from poise.inits import maple
from poise.methods import Method
from poise.prompts import init_prompt, tokenise
from poise.prompts.conditional import Conditional
from poise.tuning import StreamTuner, Tuner
from poise.tuning.deep import DeepTuner
from poise.tuning.episodic import ConditionalTuner
from poise.types import Answer, DualEncoder, Prompt

LABELS = ["cat", "dog", "great white shark"]


@pytest.fixture(scope="module")
def encoder() -> DualEncoder:
    return load_model("tiny", device="cpu", dtype="float64")


def draw(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(3))


def unit(*shape: int) -> torch.Tensor:
    return torch.nn.functional.normalize(draw(*shape), dim=-1)


def template(encoder: DualEncoder, method: Method) -> tuple[Answer, torch.Tensor]:
    classes = tokenise(encoder, LABELS)
    return Tuner(encoder, classes, [method]).predict(unit(3, 8, 32))["tpt"], init_prompt(encoder, classes).context


def per_class(encoder: DualEncoder, method: Method) -> tuple[Answer, torch.Tensor]:
    context = init_prompt(encoder, tokenise(encoder, LABELS)).context[:, None] * draw(1, 3, 1, 1)
    tuner = Tuner(encoder, tokenise(encoder, LABELS), [method], Prompt(context))
    return tuner.predict(unit(3, 8, 32))["tpt"], context


def conditional(encoder: DualEncoder, method: Method) -> tuple[Answer, torch.Tensor]:
    classes = tokenise(encoder, LABELS)
    context = init_prompt(encoder, classes).context[0]
    width = context.shape[1]
    init = Conditional(context, draw(2, 32), draw(2), draw(width, 2), draw(width))
    return ConditionalTuner(encoder, classes, [method], init).predict(unit(3, 8, 32))["tpt"], context


def stream(encoder: DualEncoder, method: Method) -> tuple[Answer, torch.Tensor]:
    classes = tokenise(encoder, LABELS)
    tuner = StreamTuner(encoder, classes, [method], size=2)
    return tuner.predict(unit(3, 8, 32))["tpt"], init_prompt(encoder, classes).context


def deep(encoder: DualEncoder, method: Method) -> tuple[Answer, torch.Tensor]:
    size = encoder.image.size
    init = maple.fresh(encoder, LABELS, tokens=2, depth=2, seed=0)
    tuner = DeepTuner(encoder, tokenise(encoder, LABELS, "a photo of a {}.", tokens=2), [method], init)
    return tuner.predict(draw(2, 4, 3, size, size))["tpt"], init.context


@pytest.mark.parametrize("run", [template, per_class, conditional, stream, deep])
def test_equals_the_absolute_number_bit_by_bit(encoder: DualEncoder, run: object) -> None:
    method = methods.get("tpt", lr="0.3rms", steps=2)
    relative, context = run(encoder, method)  # type: ignore[operator]
    number = method.absolute_lr(float(context.square().mean().sqrt()))
    absolute, _ = run(encoder, replace(method, lr=number))  # type: ignore[operator]
    other, _ = run(encoder, replace(method, lr=2 * number))  # type: ignore[operator]
    assert torch.equal(relative.logits, absolute.logits)
    assert all(torch.equal(part, absolute.prompt.parts()[name]) for name, part in relative.prompt.parts().items())
    assert not torch.equal(relative.logits, other.logits)


def test_a_larger_context_takes_larger_steps(encoder: DualEncoder) -> None:
    method, classes = methods.get("tpt", lr="0.25rms", weight_decay=0.0), tokenise(encoder, LABELS)
    for factor in (1.0, 4.0):
        init = init_prompt(encoder, classes).map(lambda part, by=factor: part * by)
        moved = Tuner(encoder, classes, [method], init).predict(unit(1, 8, 32))["tpt"].prompt.context - init.context
        # The first step of AdamW moves every entry by the learning rate, less where the gradient is near its eps.
        rms = float(init.context.square().mean().sqrt())
        assert float(moved.abs().max()) == pytest.approx(0.25 * rms, rel=0.05)


@pytest.mark.parametrize("text", ["rms", "0.3", "-1rms", "0rms", "nanrms", "infrms", "0.3rmss", "x", "rms0.3", ""])
def test_other_texts_are_refused(text: str) -> None:
    with pytest.raises(InvalidOptionError, match=r"lr is '.*It must be above 0, or such a number with rms.*'0.3rms'"):
        methods.get("tpt", lr=text)


def test_a_context_of_zeros_is_refused(encoder: DualEncoder) -> None:
    classes = tokenise(encoder, LABELS)
    init = init_prompt(encoder, classes).map(torch.zeros_like)
    tuner = Tuner(encoder, classes, [methods.get("tpt", lr="0.3rms")], init)
    with pytest.raises(InvalidOptionError, match=r"lr is '0.3rms', and the initial context has RMS 0"):
        tuner.predict(unit(1, 8, 32))


def test_a_relative_number_has_six_digits() -> None:
    """So that the number that is printed gives the same answers."""
    assert methods.get("tpt", lr="0.3rms").absolute_lr(1 / 9) == 0.0333333


def test_both_are_described() -> None:
    assert "lr 0.3 x RMS of the initial context," in methods.get("tpt", lr="0.3rms").describe()
    assert "lr 0.005," in methods.get("tpt").describe()
    assert methods.get("tpt", lr="0.3rms").settings()["lr"] == "0.3rms"
