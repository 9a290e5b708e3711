"""The tuner: fast equals plain, batched equals single, chunked equals whole, and nothing infects its neighbours."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from poise import methods
from poise.backbones import load_model
from poise.backbones.loaders.tiny import tiny_model
from poise.encoding.class_texts import ClassTexts
from poise.errors import InvalidOptionError
from poise.objectives import Sum
from poise.prompts import init_prompt, tokenise
from poise.tuning import Tuner, make_tuner
from poise.tuning.answer import stacked
from poise.types import DualEncoder, Objective, Prompt
from tests.oracles.objectives import of_method
from tests.oracles.text import text_features
from tests.oracles.tuning import tune_one

LABELS = ["cat", "dog", "great white shark", "a very long name for a thing", "cup"]
TUNED = [name for name in methods.names() if name != "zero-shot"]


@pytest.fixture(scope="module")
def encoder() -> DualEncoder:
    return load_model("tiny", device="cpu", dtype="float64")


def image_features(encoder: DualEncoder, images: int = 3, views: int = 20, seed: int = 0) -> torch.Tensor:
    size = encoder.image.size
    pixels = torch.randn(
        images, views, 3, size, size, dtype=torch.float64, generator=torch.Generator().manual_seed(seed)
    )
    return encoder.encode_images(pixels)


@pytest.mark.parametrize(("name", "steps"), [*((name, 1) for name in TUNED), ("tpt", 3), ("kld+cats", 3)])
def test_equals_the_plain_loop(encoder: DualEncoder, name: str, steps: int) -> None:
    method = methods.get(name, steps=steps)
    classes = tokenise(encoder, LABELS)
    features = image_features(encoder)
    answer = Tuner(encoder, classes, [method]).predict(features)[name]
    start = init_prompt(encoder, classes).context[0]
    model = tiny_model().double().requires_grad_(False)
    for row in range(3):
        context, losses, probs = tune_one(
            encoder,
            lambda context: text_features(model, classes, Prompt(context[None]))[0],
            start,
            features[row],
            of_method(name),
            steps=steps,
        )
        torch.testing.assert_close(answer.losses[row], torch.tensor(losses, dtype=torch.float64), atol=1e-9, rtol=0)
        torch.testing.assert_close(answer.prompt.context[row], context, atol=1e-7, rtol=0)
        torch.testing.assert_close(answer.probs[row], probs, atol=1e-7, rtol=0)


@pytest.mark.parametrize("steps", [1, 3])
def test_batched_equals_one_by_one(encoder: DualEncoder, steps: int) -> None:
    tuner = Tuner(encoder, tokenise(encoder, LABELS), [methods.get(name, steps=steps) for name in TUNED])
    features = image_features(encoder, images=4)
    together = tuner.predict(features)
    for row in range(4):
        alone = tuner.predict(features[row : row + 1])
        for name in TUNED:
            torch.testing.assert_close(together[name].probs[row], alone[name].probs[0], atol=1e-9, rtol=0)


@pytest.mark.parametrize("tokens", [1, 7, 30])
def test_class_chunks_change_nothing(encoder: DualEncoder, tokens: int) -> None:
    classes = tokenise(encoder, LABELS)
    features = image_features(encoder)
    chosen = [methods.get("o-tpt", steps=2), methods.get("kld+cats", steps=2)]
    whole = Tuner(encoder, classes, chosen).predict(features)
    pieces = Tuner(encoder, classes, chosen, tokens_per_pass=tokens).predict(features)
    for name in whole:
        torch.testing.assert_close(pieces[name].probs, whole[name].probs, atol=1e-9, rtol=0)


def test_out_of_memory_halves_the_pass_and_repeats_it(encoder: DualEncoder, monkeypatch: pytest.MonkeyPatch) -> None:
    classes = tokenise(encoder, LABELS)
    texts = ClassTexts(encoder, classes, init_prompt(encoder, classes))
    expected = texts.features(texts.init)
    encode = type(encoder).encode_classes

    def limited(self: DualEncoder, rows: object, prompt: Prompt) -> torch.Tensor:
        if len(rows) > 1:
            raise torch.OutOfMemoryError("too many classes")
        return encode(self, rows, prompt)

    monkeypatch.setattr(type(encoder), "encode_classes", limited)
    torch.testing.assert_close(texts.features(texts.init), expected, atol=1e-12, rtol=0)
    monkeypatch.setattr(type(encoder), "encode_classes", lambda *_: (_ for _ in ()).throw(torch.OutOfMemoryError("no")))
    with pytest.raises(torch.OutOfMemoryError):
        texts.features(texts.init)


def test_zero_shot_is_the_init(encoder: DualEncoder) -> None:
    answers = Tuner(encoder, tokenise(encoder, LABELS), [methods.get("zero-shot"), methods.get("tpt")]).predict(
        image_features(encoder)
    )
    assert torch.equal(answers["zero-shot"].probs, answers["zero-shot"].init_probs)
    assert torch.equal(answers["zero-shot"].probs, answers["tpt"].init_probs)
    assert answers["zero-shot"].losses.shape == (3, 0)


def test_permuting_labels_permutes_probabilities(encoder: DualEncoder) -> None:
    features = image_features(encoder)
    order = [3, 0, 4, 1, 2]
    for name in methods.names():
        straight = Tuner(encoder, tokenise(encoder, LABELS), [methods.get(name)]).predict(features)[name].probs
        permuted = Tuner(encoder, tokenise(encoder, [LABELS[i] for i in order]), [methods.get(name)]).predict(features)
        torch.testing.assert_close(permuted[name].probs, straight[:, order], atol=1e-8, rtol=0)


def test_one_label_is_not_tuned(encoder: DualEncoder) -> None:
    answer = Tuner(encoder, tokenise(encoder, ["cat"]), [methods.get("kld+cats")]).predict(image_features(encoder))
    assert torch.equal(answer["kld+cats"].probs, torch.ones(3, 1, dtype=torch.float64))
    assert not answer["kld+cats"].fallback.any()


class Broken(Objective):
    """An objective that is not finite for the second image."""

    def __init__(self, inner: object, where: str) -> None:
        self.inner, self.where = inner, where

    def __call__(self, out):
        value = self.inner(out)
        factor = torch.ones_like(value)
        factor[1] = float("nan" if self.where == "nan" else "inf")
        return value * factor


@pytest.mark.parametrize("kind", ["nan", "inf"])
def test_what_is_not_finite_falls_back_alone(encoder: DualEncoder, kind: str) -> None:
    class Sabotaged(type(methods.get("tpt"))):
        def objective(self):
            return Sum(((1.0, Broken(super().objective(), kind)),))

    method = Sabotaged(
        **{field.name: getattr(methods.get("tpt"), field.name) for field in dataclasses.fields(methods.Method)}
    )
    classes, features = tokenise(encoder, LABELS), image_features(encoder)
    broken = Tuner(encoder, classes, [method]).predict(features)["tpt"]
    sound = Tuner(encoder, classes, [methods.get("tpt")]).predict(features)["tpt"]
    assert broken.fallback.tolist() == [False, True, False]
    assert torch.equal(broken.probs[1], broken.init_probs[1])
    torch.testing.assert_close(broken.probs[[0, 2]], sound.probs[[0, 2]], atol=1e-12, rtol=0)
    assert broken.probs.isfinite().all()


def test_a_broken_view_or_image_does_not_infect_the_others(encoder: DualEncoder) -> None:
    classes, features = tokenise(encoder, LABELS), image_features(encoder)
    sound = Tuner(encoder, classes, [methods.get("kld+cats")]).predict(features)["kld+cats"]
    features[1, 5] = float("nan")
    broken = Tuner(encoder, classes, [methods.get("kld+cats")]).predict(features)["kld+cats"]
    assert broken.probs.isfinite().all()
    torch.testing.assert_close(broken.probs[[0, 2]], sound.probs[[0, 2]], atol=1e-12, rtol=0)


@pytest.mark.parametrize("framework", ["tpt", "dynaprompt", "ensemble"])
def test_repeated_method_names_are_refused(encoder: DualEncoder, framework: str) -> None:
    twice = [methods.get("tpt"), methods.get("tpt", steps=2)]
    with pytest.raises(InvalidOptionError, match="repeat a name"):
        make_tuner(encoder, tokenise(encoder, LABELS), twice, framework=framework)


def test_text_features_that_all_images_share_are_stored_once(encoder: DualEncoder) -> None:
    """Answers of several groups are those of one; untuned text features would take [B, C, D] otherwise."""
    chosen = [methods.get("zero-shot"), methods.get("tpt")]
    tuner = make_tuner(encoder, tokenise(encoder, ["cat", "dog", "tree"]), chosen)
    groups = [tuner.predict(part) for part in image_features(encoder, images=5, views=10).split(2)]
    for name in ("zero-shot", "tpt"):
        joined = stacked([group[name] for group in groups])
        for field in ("probs", "text_features", "losses"):
            assert torch.equal(getattr(joined, field), torch.cat([getattr(group[name], field) for group in groups]))
    shared = stacked([group["zero-shot"] for group in groups]).text_features
    assert shared is not None
    assert shared.stride(0) == 0
