"""Classes with one text: the plain computation's numbers, and no rounding between them."""

from __future__ import annotations

import pytest
import torch

from poise import methods
from poise.backbones import load_model
from poise.backbones.loaders.tiny import tiny_model
from poise.encoding.class_texts import ClassTexts
from poise.prompts import init_prompt, tokenise
from poise.tuning import Tuner, make_tuner
from poise.types import Prompt
from tests.oracles.objectives import of_method
from tests.oracles.text import text_features
from tests.oracles.tuning import tune_one

LABELS = ["cat", "dog", "cat", "great white shark", "cup", "Dog", "cat"]
MANY = [*LABELS, *(f"thing {number}" for number in range(11)), "cat"]  # 19: some copies in a vector, one in the rest
COPIES = [(0, 2), (0, 6), (0, 18), (1, 5)]


def unit(*shape: int, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    drawn = torch.randn(*shape, 32, generator=torch.Generator().manual_seed(0), dtype=dtype)
    return torch.nn.functional.normalize(drawn, dim=-1)


@pytest.mark.parametrize("tokens", [0, 4])
def test_equal_the_plain_computation(tokens: int) -> None:
    encoder = load_model("tiny", device="cpu", dtype="float64")
    model = tiny_model().double().requires_grad_(False)
    classes, images = tokenise(encoder, LABELS, repeats=True), unit(2, 12)
    init = init_prompt(encoder, classes)
    both = init.context.repeat(2, 1, 1) * torch.tensor([1.0, 1.1])[:, None, None]
    texts, cotangent, leaf = ClassTexts(encoder, classes, init, tokens_per_pass=tokens), unit(2, 7), both.clone()
    plain = text_features(model, classes, Prompt(leaf.requires_grad_()))
    (gradient,) = torch.autograd.grad(plain, leaf, cotangent)
    torch.testing.assert_close(texts.features(Prompt(both)), plain.detach(), atol=1e-12, rtol=0)
    torch.testing.assert_close(texts.pullback(Prompt(both), cotangent).context, gradient, atol=1e-10, rtol=0)
    torch.testing.assert_close(texts.pullback_to_init(cotangent).context[0], gradient[0], atol=1e-10, rtol=0)
    features, pullback = texts.with_pullback(Prompt(both))
    torch.testing.assert_close(features, plain.detach(), atol=1e-12, rtol=0)
    torch.testing.assert_close(pullback(cotangent).context, gradient, atol=1e-10, rtol=0)
    for name in ("c-tpt", "kld+cats"):
        answer = Tuner(encoder, classes, [methods.get(name, steps=2)], tokens_per_pass=tokens).predict(images)[name]
        for row in range(2):
            _, losses, probs = tune_one(
                encoder,
                lambda context: text_features(model, classes, Prompt(context[None]))[0],
                init.context[0],
                images[row],
                of_method(name),
                steps=2,
            )
            torch.testing.assert_close(answer.losses[row], torch.tensor(losses, dtype=torch.float64), atol=1e-9, rtol=0)
            torch.testing.assert_close(answer.probs[row], probs, atol=1e-7, rtol=0)


@pytest.mark.parametrize("framework", ["tpt", "dynaprompt", "ensemble"])
def test_have_equal_probabilities_and_the_first_is_predicted(framework: str) -> None:
    encoder = load_model("tiny", device="cpu", dtype="float32")
    classes = tokenise(encoder, MANY, repeats=True)
    cats = encoder.encode_classes(classes, init_prompt(encoder, classes))[:, :1].expand(3, 12, -1)
    images = torch.nn.functional.normalize(cats + 0.3 * unit(3, 12, dtype=torch.float32), dim=-1)
    chosen = [methods.get("zero-shot"), *(methods.get(name, steps=2) for name in ("c-tpt", "kld+cats"))]
    for answer in make_tuner(encoder, classes, chosen, framework=framework).predict(images).values():
        for numbers in (answer.logits, answer.probs, answer.init_probs, answer.target_probs):
            assert all(torch.equal(numbers[:, first], numbers[:, copy]) for first, copy in COPIES)
        assert answer.probs.argmax(-1).tolist() == answer.init_probs.argmax(-1).tolist() == [0, 0, 0]
        assert all(torch.equal(answer.text_features[:, first], answer.text_features[:, copy]) for first, copy in COPIES)
