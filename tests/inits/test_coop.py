"""CoOp and CoCoOp: each fit equals the plain loop over full sentences with torch's own SGD."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from open_clip.model import CLIP

from poise.backbones import load_model
from poise.backbones.loaders.tiny import tiny_model
from poise.errors import InvalidCheckpointError, InvalidOptionError
from poise.inits import cocoop, coop, maple
from poise.prompts.files import StoredPrompt
from poise.types import DualEncoder, Prompt
from tests.oracles.text import text_features

LABELS = ["cat", "dog", "great white shark"]
RECIPE = coop.FewShot(epochs=3, batch_size=3, lr=0.1, seed=4)


@pytest.fixture(scope="module")
def encoder() -> DualEncoder:
    return load_model("tiny", device="cpu", dtype="float64")


@pytest.fixture(scope="module")
def model() -> CLIP:
    return tiny_model().double().eval().requires_grad_(False)


def shots(images: int = 6, crops: int = 2) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(3)
    features = torch.randn(images, crops, 32, dtype=torch.float64, generator=generator)
    return torch.nn.functional.normalize(features, dim=-1), torch.arange(images) % len(LABELS)


def plain_rate(epoch: int) -> float:
    """Epoch 0 warms up; then half a cosine of the length of all epochs, from its top."""
    return 1e-5 if epoch == 0 else 0.1 * 0.5 * (1 + math.cos(math.pi * (epoch - 1) / 3))


@pytest.mark.parametrize("position", ["end", "middle", "front"])
@pytest.mark.parametrize("class_specific", [False, True])
def test_fit_equals_the_plain_loop(encoder, model, position, class_specific) -> None:
    features, targets = shots()
    shape = coop.Shape(tokens=3, position=position, class_specific=class_specific)
    losses = []
    stored = coop.fit(
        encoder, LABELS, features, targets, shape=shape, recipe=RECIPE, report=lambda _, loss: losses.append(loss)
    )
    classes, context, _ = coop.initial_context(encoder, LABELS, shape, RECIPE.seed)
    context = context.clone().requires_grad_()
    optimiser = torch.optim.SGD([context], lr=1.0, momentum=0.9, weight_decay=5e-4)
    plain = []
    for epoch in range(3):
        optimiser.param_groups[0]["lr"] = plain_rate(epoch)
        values = []
        for rows in RECIPE.batches(6, epoch):
            texts = text_features(model, classes, Prompt(context[None]))[0]
            logits = encoder.scale * features[rows, epoch % 2] @ texts.T
            loss = torch.nn.functional.cross_entropy(logits, targets[rows])
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
            values.append(loss.item())
        plain.append(sum(values) / len(values))
    assert losses == pytest.approx(plain, abs=1e-8)
    torch.testing.assert_close(stored.tensors["context"], context.detach(), atol=1e-8, rtol=0)
    assert len(stored.classes(encoder, LABELS)) == 3


def test_fitting_lowers_the_loss_and_repeats_exactly(encoder) -> None:
    features, targets = shots(12, 1)
    recipe = coop.FewShot(epochs=12, batch_size=6, lr=0.02)
    losses = []
    first = coop.fit(encoder, LABELS, features, targets, recipe=recipe, report=lambda _, loss: losses.append(loss))
    again = coop.fit(encoder, LABELS, features, targets, recipe=recipe)
    assert losses[-1] < losses[0]
    assert torch.equal(first.tensors["context"], again.tensors["context"])


def test_words_are_a_beginning(encoder) -> None:
    classes, context, facts = coop.initial_context(encoder, LABELS, coop.Shape(words="a photo of a"), 0)
    assert facts.template == "a photo of a {}."
    assert torch.equal(context, encoder.embed(classes.ids[0, 1:5]))


def test_classes_may_share_a_name_as_two_pairs_of_imagenet_do(encoder) -> None:
    features, targets = shots()
    for fit in (coop.fit, cocoop.fit):
        stored = fit(encoder, ["cat", "missile", "missile"], features, targets, recipe=coop.FewShot(epochs=1))
        assert stored.tensors["context"].isfinite().all()
    fresh = maple.fresh(encoder, ["missile", "missile"], tokens=2, depth=1, seed=1)
    assert fresh.context.isfinite().all()


def test_templates_of_placeholders() -> None:
    assert coop.placeholder_template(4) == "X X X X {}."
    assert coop.placeholder_template(1, "middle") == "{} X."
    assert coop.context_option("middle", 1) == "after"
    with pytest.raises(InvalidOptionError, match="end, middle, front"):
        coop.placeholder_template(4, "centre")
    with pytest.raises(InvalidOptionError, match="at least 1"):
        coop.placeholder_template(0)


def test_features_and_classes_must_belong_together(encoder) -> None:
    features, targets = shots()
    with pytest.raises(InvalidOptionError, match=r"targets \[images\]"):
        coop.fit(encoder, LABELS, features, targets[:-1])
    with pytest.raises(InvalidOptionError, match="from 0 to 2"):
        coop.fit(encoder, LABELS[:2], features, targets)


def test_conditional_fit_equals_the_plain_loop(encoder, model) -> None:
    features, targets = shots()
    recipe = coop.FewShot(epochs=2, batch_size=2, lr=0.1, seed=4)
    stored = cocoop.fit(encoder, LABELS, features, targets, recipe=recipe)
    classes, context, _ = coop.initial_context(encoder, LABELS, coop.Shape(words="a photo of a"), recipe.seed)
    fresh = cocoop.fresh_network(context, 32, recipe.seed)
    values = {name: tensor.clone().requires_grad_() for name, tensor in fresh.items()}
    optimiser = torch.optim.SGD(list(values.values()), lr=1.0, momentum=0.9, weight_decay=5e-4)
    for epoch in range(2):
        optimiser.param_groups[0]["lr"] = recipe.rate(epoch)
        for rows in recipe.batches(6, epoch):
            losses = []
            for row in rows:
                feature = features[row, epoch % 2]
                hidden = (values["weight1"] @ feature + values["bias1"]).clamp(min=0)
                moved = values["context"] + (values["weight2"] @ hidden + values["bias2"])
                texts = text_features(model, classes, Prompt(moved[None]))[0]
                losses.append(-(encoder.scale * texts @ feature).log_softmax(0)[targets[row]])
            optimiser.zero_grad()
            torch.stack(losses).mean().backward()
            optimiser.step()
    for name, value in values.items():
        torch.testing.assert_close(stored.tensors[name], value.detach(), atol=1e-8, rtol=0)


def test_conditional_prompts_follow_the_image_and_its_norm(encoder) -> None:
    features, targets = shots()
    stored = cocoop.fit(encoder, LABELS, features, targets, recipe=coop.FewShot(epochs=1, batch_size=6))
    stored.tensors["bias1"].fill_(1.0)  # so that no hidden unit is off
    made = cocoop.Conditional.of(stored, features)
    contexts = made.prompt(features[:, 0]).context
    assert contexts.shape == (6, 4, 64)
    assert not torch.equal(contexts[0], contexts[1])
    raw = replace(cocoop.Conditional.of(stored, features), feature_norm=10.0).prompt(features[:, 0]).context
    torch.testing.assert_close(raw, made.prompt(10.0 * features[:, 0]).context)
    with pytest.raises(InvalidCheckpointError, match=r"width 32.*have 512"):
        made.prompt(features.new_zeros(6, 512))
    with pytest.raises(InvalidCheckpointError, match="weight1"):
        cocoop.Conditional.of(StoredPrompt({"context": contexts[0]}, stored.facts), features)
