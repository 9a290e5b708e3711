"""Every framework and start behind one function, and the plain baselines."""

from __future__ import annotations

import pytest
import torch
from PIL import Image

from poise import methods
from poise.backbones import load_model
from poise.backbones.loaders.tiny import tiny_model
from poise.errors import InvalidCheckpointError, InvalidLabelsError, InvalidOptionError, UnknownNameError
from poise.inference.classifier import Classifier
from poise.inits import cocoop, coop, fpp, maple
from poise.inits.kinds import check_template
from poise.prompts import init_prompt, tokenise
from poise.prompts.files import save
from poise.tuning import Tuner, make_tuner
from poise.tuning.ensemble import TEMPLATES
from poise.tuning.frameworks import frameworks
from poise.types import DualEncoder, Prompt
from tests.oracles.objectives import of_method
from tests.oracles.text import text_features
from tests.oracles.tuning import tune_one

LABELS = ["cat", "dog", "great white shark"]
CHOSEN = [methods.get("zero-shot"), methods.get("kld+cats", selection=0.5)]


@pytest.fixture(scope="module")
def encoder() -> DualEncoder:
    return load_model("tiny", device="cpu", dtype="float64")


def draw(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def unit(*shape: int) -> torch.Tensor:
    return torch.nn.functional.normalize(draw(*shape, 32), dim=-1)


def shots() -> tuple[torch.Tensor, torch.Tensor]:
    return unit(6, 1), torch.arange(6) % 3


@pytest.fixture(scope="module")
def files(encoder, tmp_path_factory):
    folder = tmp_path_factory.mktemp("prompts")
    recipe = coop.FewShot(epochs=2, batch_size=3)
    save(folder / "coop", coop.fit(encoder, LABELS, *shots(), shape=coop.Shape(tokens=3), recipe=recipe))
    save(folder / "cocoop", cocoop.fit(encoder, LABELS, *shots(), recipe=recipe))
    pixels = draw(6, 3, 32, 32)
    fitted = maple.fit(encoder, LABELS, lambda _, rows: pixels[rows], shots()[1], depth=2, recipe=recipe)
    save(folder / "maple", fitted)
    return folder


def test_the_default_is_the_episodic_tuner(encoder) -> None:
    classes, features = tokenise(encoder, LABELS), unit(2, 6)
    made = make_tuner(encoder, classes, CHOSEN)
    assert (made.reads, made.ordered) == ("features", False)
    plain = Tuner(encoder, classes, CHOSEN).predict(features)
    for name, answer in made.predict(features).items():
        assert torch.equal(answer.probs, plain[name].probs)


@pytest.mark.parametrize("framework", ["tpt", "dynaprompt"])
@pytest.mark.parametrize("kind", ["coop", "cocoop", "maple"])
def test_every_start_in_every_framework(encoder, files, framework, kind) -> None:
    classes = tokenise(encoder, LABELS)
    if framework == "dynaprompt" and kind != "coop":
        with pytest.raises(InvalidOptionError, match=f"can't start from '{kind}'"):
            make_tuner(encoder, classes, CHOSEN, framework=framework, init=str(files / kind))
        return
    made = make_tuner(encoder, classes, CHOSEN, framework=framework, init=f"{kind}:{files / kind}")
    assert made.ordered == (framework == "dynaprompt")
    assert made.reads == ("views" if kind == "maple" else "features")
    answers = made.predict(draw(2, 6, 3, 32, 32) if kind == "maple" else unit(2, 6))
    assert list(answers) == ["zero-shot", "kld+cats"]
    for answer in answers.values():
        assert answer.probs.shape == (2, 3)
        torch.testing.assert_close(answer.probs.sum(-1), torch.ones(2, dtype=torch.float64))
    assert torch.equal(answers["zero-shot"].probs, answers["kld+cats"].init_probs)
    assert not torch.equal(answers["zero-shot"].probs, answers["kld+cats"].probs)
    assert made.texts.init_features().shape == (1, 3, 32)


@pytest.mark.parametrize("kind", ["coop", "cocoop", "maple"])
def test_the_classifier_starts_from_a_file(encoder, files, kind) -> None:
    image = Image.fromarray((draw(40, 40, 3).sigmoid() * 255).byte().numpy())
    answer = Classifier(LABELS, encoder, "kld+cats", init=files / kind, views=6)(image, details=True)
    words = Classifier(LABELS, encoder, "kld+cats", views=6)(image, details=True)
    assert sum(answer.probabilities.values()) == pytest.approx(1)
    assert answer.details.init_probabilities != words.details.init_probabilities
    assert not answer.fallback


def test_labels_may_repeat_as_in_imagenet(encoder, files) -> None:
    classes = tokenise(encoder, LABELS)
    stored = coop.fit(encoder, LABELS, *shots(), recipe=coop.FewShot(epochs=1))
    doubled = stored.classes(encoder, ["sea_cat", "dog", "sea cat"], repeats=True)
    assert torch.equal(doubled.ids[0], doubled.ids[2])
    assert doubled.labels == ("sea_cat", "dog", "sea cat")
    assert len(classes) == len(doubled)


def test_fpp_is_fitted_on_the_spot(encoder, monkeypatch) -> None:
    monkeypatch.setitem(fpp.PUBLISHED, "fpp", fpp.Flatness(steps=2))
    made = make_tuner(encoder, tokenise(encoder, LABELS), CHOSEN, init="fpp")
    assert made.texts.init.context.shape == (1, 4, 64)
    assert not torch.equal(made.texts.init.context, init_prompt(encoder, tokenise(encoder, LABELS)).context)


def test_wrong_names_are_refused(encoder, files) -> None:
    classes = tokenise(encoder, LABELS)
    with pytest.raises(UnknownNameError, match="Did you mean 'dynaprompt'"):
        make_tuner(encoder, classes, CHOSEN, framework="dynaprompts")
    with pytest.raises(InvalidCheckpointError, match=r"kind 'coop', but 'maple'"):
        make_tuner(encoder, classes, CHOSEN, init=f"maple:{files / 'coop'}")
    with pytest.raises(InvalidCheckpointError, match="no prompt file"):
        make_tuner(encoder, classes, CHOSEN, init="coop:absent")
    with pytest.raises(InvalidOptionError, match="can't start from 'coop'"):
        make_tuner(encoder, classes, CHOSEN, framework="ensemble", init=str(files / "coop"))
    options = {"statistics": str(files / "coop")}
    with pytest.raises(InvalidCheckpointError, match="no token statistics"):
        make_tuner(encoder, classes, CHOSEN, init=str(files / "maple"), options=options)


def test_options_belong_to_their_framework(encoder, files) -> None:
    classes = tokenise(encoder, LABELS)
    with pytest.raises(UnknownNameError, match=r"option 'sise' of the framework 'dynaprompt'.*Did you mean 'size'"):
        make_tuner(encoder, classes, CHOSEN, framework="dynaprompt", options={"sise": 3})
    with pytest.raises(UnknownNameError, match="option 'size' of the framework 'tpt'"):
        make_tuner(encoder, classes, CHOSEN, options={"size": 3})
    with pytest.raises(InvalidOptionError, match="statistics='x' was given, and the init is 'template'"):
        make_tuner(encoder, classes, CHOSEN, options={"statistics": "x"})
    with pytest.raises(InvalidOptionError, match=r"feature_norm=10.0 was given, and the init is 'coop'"):
        make_tuner(encoder, classes, CHOSEN, init=str(files / "coop"), options={"feature_norm": 10.0})


@pytest.mark.parametrize("name", frameworks.names())
def test_rows_say_what_their_tuners_are(encoder, name) -> None:
    row = frameworks.get(name)
    assert make_tuner(encoder, tokenise(encoder, LABELS), CHOSEN, framework=name).ordered == row.ordered
    assert row.description


def test_a_fitted_prompt_brings_its_own_template(encoder, files) -> None:
    with pytest.raises(InvalidOptionError, match=r"template 'a {}.' was given beside the fitted prompt"):
        Classifier(LABELS, encoder, "tpt", template="a {}.", init=files / "coop")
    check_template("template", "a {}.")
    check_template("fpp", "a {}.")


def test_long_labels_are_cut_under_the_prompts_own_template(encoder, files) -> None:
    long = "word " * 100
    with pytest.warns(UserWarning, match="Cut to the model's 77 tokens"):
        classes = tokenise(encoder, [*LABELS[:2], long], on_long_label="truncate")
    with pytest.raises(InvalidLabelsError, match="Too long"):
        make_tuner(encoder, classes, CHOSEN, init=str(files / "coop"))
    with pytest.warns(UserWarning, match="Cut to the model's 77 tokens"):
        made = make_tuner(encoder, classes, CHOSEN, init=str(files / "coop"), on_long_label="truncate")
    assert made.predict(unit(1, 6))["kld+cats"].probs.isfinite().all()


@pytest.mark.parametrize("steps", [1, 2])
def test_conditional_starts_equal_the_plain_loop(encoder, files, steps) -> None:
    model = tiny_model().double().eval().requires_grad_(False)
    method = methods.get("kld+cats", steps=steps, selection=0.5)
    features = unit(2, 6)
    made = make_tuner(encoder, tokenise(encoder, LABELS), [method], init=str(files / "cocoop"))
    answer = made.predict(features)["kld+cats"]
    for row in range(2):
        start = made.init.prompt(features[row, :1]).context[0]
        context, losses, probs = tune_one(
            encoder,
            lambda context: text_features(model, made.texts.classes, Prompt(context[None]))[0],
            start,
            features[row],
            of_method("kld+cats", 0.5),
            steps=steps,
        )
        assert answer.losses[row].tolist() == pytest.approx(losses, abs=1e-9)
        torch.testing.assert_close(answer.prompt.context[row], context, atol=1e-7, rtol=0)
        torch.testing.assert_close(answer.probs[row], probs, atol=1e-7, rtol=0)


def test_the_ensemble_averages_logits(encoder) -> None:
    features = unit(2, 6)
    made = make_tuner(encoder, tokenise(encoder, LABELS), CHOSEN, framework="ensemble").predict(features)
    each = [Tuner(encoder, tokenise(encoder, LABELS, text), CHOSEN).predict(features) for text in TEMPLATES]
    for name, answer in made.items():
        logits = sum(one[name].logits for one in each) / 4
        torch.testing.assert_close(answer.logits, logits)
        torch.testing.assert_close(answer.probs, logits.softmax(-1))
    torch.testing.assert_close(made["zero-shot"].init_probs, made["zero-shot"].probs)


def test_a_temperature_softens_and_keeps_the_class(encoder) -> None:
    classes, features = tokenise(encoder, LABELS), unit(4, 6)
    plain = make_tuner(encoder, classes, CHOSEN).predict(features)
    soft = make_tuner(encoder, classes, CHOSEN, options={"temperature": 3.0}).predict(features)
    for name, answer in soft.items():
        torch.testing.assert_close(answer.probs, (plain[name].logits / 3).softmax(-1))
        assert torch.equal(answer.probs.argmax(-1), plain[name].probs.argmax(-1))
    torch.testing.assert_close(soft["zero-shot"].init_probs, soft["zero-shot"].probs)


@pytest.mark.parametrize("options", [{"size": "abc"}, {"size": 2.5}, {"temperature": "warm"}])
def test_framework_options_of_another_type_are_refused(options: dict[str, object]) -> None:
    with pytest.raises(InvalidOptionError, match=next(iter(options))):
        frameworks.get("dynaprompt").parse(options)
