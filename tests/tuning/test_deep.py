"""MaPLe's coupled prompts: the chunked tuner equals one big graph by hand, whatever the chunks and the batch."""

from __future__ import annotations

import copy
import dataclasses

import pytest
import torch
from open_clip.model import CLIP
from open_clip.tokenizer import SimpleTokenizer
from safetensors.torch import save_file

from poise import methods
from poise.backbones.loaders.openclip import wrap
from poise.backbones.loaders.tiny import CONFIG
from poise.errors import InvalidCheckpointError, InvalidOptionError
from poise.inits import coop, maple
from poise.methods import Term
from poise.objectives import select_views
from poise.objectives.alignment import Alignment
from poise.prompts import tokenise
from poise.prompts.files import load, save
from poise.testing import example_outputs
from poise.tuning.deep import DeepTuner
from poise.types import DualEncoder, Outputs
from tests.oracles import maple as plain
from tests.oracles.objectives import of_method

LABELS = ["cat", "dog", "great white shark"]
METHODS = ["tpt", "o-tpt", "kld+cats"]


@pytest.fixture(scope="module")
def model() -> CLIP:
    config = copy.deepcopy(CONFIG)
    config["vision_cfg"] |= {"layers": 4, "width": 32, "head_width": 16}
    config["text_cfg"] |= {"layers": 4, "vocab_size": 49408}
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(7)
        built = CLIP(**config)
        with torch.no_grad():
            built.token_embedding.weight.mul_(10.0)
            built.logit_scale.fill_(3.0)
    return built.double().eval().requires_grad_(False)


@pytest.fixture(scope="module")
def encoder(model) -> DualEncoder:
    cpu = torch.device("cpu")
    return wrap(copy.deepcopy(model), SimpleTokenizer(), {}, name="deep", device=cpu, dtype=torch.float64)


@pytest.fixture(scope="module")
def start(encoder) -> maple.Coupled:
    fresh = maple.fresh(encoder, LABELS, tokens=2, depth=3, seed=0)
    return fresh.map(lambda part: part + 0.1 * torch.randn(part.shape, generator=torch.Generator().manual_seed(1)))


def views_of(images: int = 2, views: int = 10) -> torch.Tensor:
    return torch.randn(images, views, 3, 32, 32, dtype=torch.float64, generator=torch.Generator().manual_seed(2))


def classes_of(encoder):
    return tokenise(encoder, LABELS, maple.TEMPLATE, context="before", tokens=2)


def test_the_sentence_keeps_the_words_that_are_not_replaced(encoder) -> None:
    classes = classes_of(encoder)
    assert classes.slots.tolist() == [[1, 2]] * 3
    assert classes.ids[0, 3:5].tolist() == encoder.token_ids(["of a"])[0][1:3]


@pytest.mark.parametrize(("name", "steps"), [("tpt", 1), ("o-tpt", 1), ("kld+cats", 2)])
def test_equals_the_plain_graph(encoder, model, start, name, steps) -> None:
    method, classes, views = methods.get(name, steps=steps, lr=5e-4, selection=0.3), classes_of(encoder), views_of()
    answer = DeepTuner(encoder, classes, [method], start).predict(views)[name]
    begun = {part: tensor[0] for part, tensor in start.parts().items()}
    for row in range(2):
        tuned, losses, logits = plain.tune_one(
            model, classes, begun, views[row], encoder.scale, of_method(name, 0.3), steps=steps, lr=5e-4
        )
        torch.testing.assert_close(answer.losses[row], torch.tensor(losses, dtype=torch.float64), atol=1e-9, rtol=0)
        torch.testing.assert_close(answer.logits[row], logits, atol=1e-6, rtol=0)
        torch.testing.assert_close(answer.prompt.context[row], tuned["context"], atol=1e-7, rtol=0)
        torch.testing.assert_close(answer.prompt.text_layers[row], tuned["deep"], atol=1e-7, rtol=0)
        expected = torch.stack(plain.image_layers(tuned))
        torch.testing.assert_close(answer.prompt.image_layers[row], expected, atol=1e-6, rtol=0)
    assert not answer.fallback.any()


def statistics() -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(3)
    mean = torch.randn(2, 16 + 1 + 2, 32, dtype=torch.float64, generator=generator)
    return {"mean": mean, "variance": mean.abs()}


def test_alignment_equals_the_plain_graph(encoder, model, start, tmp_path) -> None:
    save_file(statistics(), tmp_path / "statistics")
    aligned = Term("alignment", 2.0, options={"statistics": tmp_path / "statistics"})
    alone = methods.get("tpt", lr=5e-4, selection=0.3)
    method = dataclasses.replace(alone, terms=(*alone.terms, aligned))
    classes, views = classes_of(encoder), views_of(1)
    answer = DeepTuner(encoder, classes, [method], start).predict(views)["tpt"]

    def objective(out: Outputs) -> torch.Tensor:
        chosen = select_views(out.reference_logits, 0.3)[0].tolist()
        return of_method("tpt", 0.3)(out) + 2.0 * plain.alignment(out.tokens[0], chosen, **statistics())

    begun = {part: tensor[0] for part, tensor in start.parts().items()}
    tuned, losses, logits = plain.tune_one(
        model, classes, begun, views[0], encoder.scale, objective, steps=1, lr=5e-4, token_layers=2
    )
    assert answer.losses[0].tolist() == pytest.approx(losses, abs=1e-9)
    torch.testing.assert_close(answer.logits[0], logits, atol=1e-6, rtol=0)
    torch.testing.assert_close(answer.prompt.context[0], tuned["context"], atol=1e-7, rtol=0)


def test_statistics_of_another_shape_are_refused() -> None:
    with pytest.raises(InvalidOptionError, match=r"are None, the statistics are \[2, 19, 32\]"):
        Alignment(**statistics())(example_outputs())


@pytest.mark.parametrize("together", [1, 3])
def test_chunks_of_views_and_batches_change_nothing(encoder, start, together) -> None:
    chosen = [methods.get(name, lr=5e-4, selection=0.3, steps=2) for name in METHODS]
    classes, views = classes_of(encoder), views_of(3)
    whole = DeepTuner(encoder, classes, chosen, start).predict(views)
    pieces = DeepTuner(encoder, classes, chosen, start, views_per_pass=together)
    for row in range(3):
        alone = pieces.predict(views[row : row + 1])
        for name in METHODS:
            torch.testing.assert_close(alone[name].probs[0], whole[name].probs[row], atol=1e-9, rtol=0)


def test_a_broken_image_falls_back_alone(encoder, start) -> None:
    classes, views = classes_of(encoder), views_of(2)
    tuner = DeepTuner(encoder, classes, [methods.get("tpt", selection=0.5), methods.get("zero-shot")], start)
    sound = tuner.predict(views)
    views[1, 3:] = torch.nan
    answer = tuner.predict(views)
    assert answer["tpt"].fallback.tolist() == [False, True]
    assert torch.equal(answer["tpt"].probs[1], answer["tpt"].init_probs[1])
    torch.testing.assert_close(answer["tpt"].probs[0], sound["tpt"].probs[0])
    assert torch.equal(answer["zero-shot"].probs, answer["zero-shot"].init_probs)


def test_fit_equals_the_plain_loop(encoder, model) -> None:
    recipe = coop.FewShot(epochs=2, batch_size=2, lr=0.05, seed=3)
    crops = views_of(4, 2)
    targets = torch.tensor([0, 1, 2, 0])
    stored = maple.fit(
        encoder, LABELS, lambda epoch, rows: crops[rows, epoch], targets, tokens=2, depth=3, recipe=recipe
    )
    classes, fresh = classes_of(encoder), maple.fresh(encoder, LABELS, tokens=2, depth=3, seed=3)
    values = {name: part[0].clone().requires_grad_() for name, part in fresh.parts().items()}
    optimiser = torch.optim.SGD(list(values.values()), lr=1.0, momentum=0.9, weight_decay=5e-4)
    for epoch in range(2):
        optimiser.param_groups[0]["lr"] = recipe.rate(epoch)
        for rows in recipe.batches(4, epoch):
            logits = plain.forward(model, classes, values, crops[rows, epoch], encoder.scale, 0)[2]
            loss = torch.nn.functional.cross_entropy(logits, targets[rows])
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
    for name, value in values.items():
        torch.testing.assert_close(stored.tensors[name], value.detach(), atol=1e-8, rtol=0)


def test_a_fitted_prompt_comes_back_and_wrong_ones_are_refused(encoder, start, tmp_path) -> None:
    recipe = coop.FewShot(epochs=1, batch_size=2)
    stored = maple.fit(
        encoder, LABELS, lambda _, rows: views_of(2)[rows, 0], torch.tensor([0, 1]), depth=3, recipe=recipe
    )
    save(tmp_path / "maple.safetensors", stored)
    back = load(tmp_path / "maple.safetensors")
    assert torch.equal(maple.Coupled.of(back, encoder).weight[0], stored.tensors["weight"])
    assert back.classes(encoder, LABELS).slots.shape == (3, 2)
    narrow = {**stored.tensors, "weight": stored.tensors["weight"][:, :16], "bias": stored.tensors["bias"][:, :16]}
    with pytest.raises(InvalidCheckpointError, match=r"width 16.* has 32"):
        maple.Coupled.of(type(stored)(narrow, stored.facts), encoder)
    deep = {name: stored.tensors[name].repeat(3, *[1] * (stored.tensors[name].ndim - 1)) for name in ("weight", "bias")}
    deep |= {"context": stored.tensors["context"], "deep": stored.tensors["deep"].repeat(4, 1, 1)}
    with pytest.raises(InvalidCheckpointError, match=r"9 projections and 8 deep prompts; the image tower has 4"):
        maple.Coupled.of(type(stored)(deep, stored.facts), encoder)
    with pytest.raises(InvalidCheckpointError, match="no deep, weight, bias"):
        maple.Coupled.of(type(stored)({"context": stored.tensors["context"]}, stored.facts), encoder)
    with pytest.raises(InvalidOptionError, match="depth is 5"):
        maple.fresh(encoder, LABELS, tokens=2, depth=5, seed=0)


def test_repeated_names_are_refused(encoder, start) -> None:
    with pytest.raises(InvalidOptionError, match="repeat a name"):
        DeepTuner(encoder, classes_of(encoder), [methods.get("tpt")] * 2, start)


def test_rules_and_posthoc_steps_from_coupled_prompts(encoder, start) -> None:
    classes, names = classes_of(encoder), ["tpt", "tpt | sals", "zero-shot | cots", "zero-shot", "mta", "tps | cots"]
    answers = DeepTuner(encoder, classes, [methods.get(name) for name in names], start).predict(views_of())
    torch.testing.assert_close(answers["zero-shot | cots"].probs, answers["zero-shot"].probs)
    assert torch.equal(answers["tpt | sals"].probs.argmax(-1), answers["tpt"].probs.argmax(-1))
    assert not any(answer.fallback.any() for answer in answers.values())
    with pytest.raises(InvalidOptionError, match="tuned for some views only"):
        DeepTuner(encoder, classes, [methods.get("tpt | cots")], start)
