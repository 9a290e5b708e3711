"""Methods with a rule or post-hoc steps in a tuner: beside tuned ones, along a stream, and where they are refused."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from poise import Classifier, methods
from poise.backbones import load_model
from poise.errors import InvalidCheckpointError, InvalidOptionError, UnknownNameError
from poise.evaluate.config import RunConfig
from poise.evaluate.resolve import check_init, is_ordered, make_methods, resolve
from poise.methods import About, Method
from poise.posthoc import posthoc
from poise.prompts import tokenise
from poise.prompts.conditional import Conditional
from poise.rules import LogitHead, RuleAnswer, State, StreamRule, rules
from poise.tuning import Tuner, episodic, make_tuner
from poise.tuning.episodic import ConditionalTuner
from poise.tuning.loop import adapt
from poise.types import DualEncoder, Outputs

LABELS = ["cat", "dog", "great white shark", "cup"]
UNTUNED = ["zero", "mta", "tps"]


@pytest.fixture(scope="module")
def encoder() -> DualEncoder:
    return load_model("tiny", device="cpu", dtype="float64")


def features(encoder: DualEncoder, images: int = 4, views: int = 10, seed: int = 0) -> Tensor:
    generator, size = torch.Generator().manual_seed(seed), encoder.image.size
    return encoder.encode_images(torch.randn(images, views, 3, size, size, dtype=torch.float64, generator=generator))


def test_rules_answer_beside_tuned_prompts_and_change_nothing_about_them(encoder: DualEncoder) -> None:
    classes, images = tokenise(encoder, LABELS), features(encoder)
    both = Tuner(encoder, classes, [methods.get(name) for name in ["tpt", *UNTUNED, "zero-shot"]])
    answers = both.predict(images)
    assert list(answers) == ["tpt", *UNTUNED, "zero-shot"]
    assert not both.ordered
    alone = Tuner(encoder, classes, [methods.get("tpt")]).predict(images)["tpt"]
    assert torch.equal(answers["tpt"].probs, alone.probs)
    texts = both.texts.init_features()
    logits = both.texts.logits(images, texts)
    for name in UNTUNED:
        expected = methods.get(name).make_rule()(Outputs(images, texts, logits, logits), both.texts).logits
        expected = expected[:, 0] if expected.ndim == 3 else expected
        torch.testing.assert_close(answers[name].probs, expected.softmax(-1))
        assert not answers[name].fallback.any()
    assert answers["zero"].selected.shape[1] == 3  # those that vote


@pytest.mark.parametrize("name", [*UNTUNED, "tps | cots", "tpt | cots", "kld+cats | e-cots", "mta | sals"])
def test_batches_equal_single_images(encoder: DualEncoder, name: str) -> None:
    tuner = Tuner(encoder, tokenise(encoder, LABELS), [methods.get(name)])
    images = features(encoder)
    single = torch.cat([tuner.predict(image[None])[name].probs for image in images])
    torch.testing.assert_close(single, tuner.predict(images)[name].probs, rtol=1e-9, atol=1e-9)


@pytest.fixture
def solved(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The number of problems that each call of the loop was given."""
    counts: list[int] = []

    def counting(problems: Sequence[Any], *more: Any) -> Any:
        counts.append(len(problems))
        return adapt(problems, *more)

    monkeypatch.setattr(episodic, "adapt", counting)
    return counts


def test_posthoc_steps_share_one_solution_and_follow_in_order(encoder: DualEncoder, solved: list[int]) -> None:
    names = ["tpt", "tpt|cots", "tpt | sals", "tpt | cots | sals"]
    tuner = Tuner(encoder, tokenise(encoder, LABELS), [methods.get(name) for name in names])
    answers = tuner.predict(features(encoder))
    assert solved == [1]
    assert list(answers) == ["tpt", "tpt | cots", "tpt | sals", "tpt | cots | sals"]
    plain = answers["tpt"]
    ratio = plain.logits / answers["tpt | cots"].logits
    torch.testing.assert_close(ratio, ratio[:, :1].expand_as(ratio))  # one temperature per image
    zero_shot = plain.init_probs.log()[:, None]
    out = Outputs(features(encoder), plain.text_features, answers["tpt | cots"].logits[:, None], zero_shot)
    chained = posthoc.get("sals")()(out)
    torch.testing.assert_close(answers["tpt | cots | sals"].probs, chained.softmax(-1))
    assert all(torch.equal(answer.probs.argmax(-1), plain.probs.argmax(-1)) for answer in answers.values())


def test_other_options_are_another_solution(encoder: DualEncoder, solved: list[int]) -> None:
    chosen = [methods.get("tpt"), methods.get("tpt | sals", lr=0.1)]
    Tuner(encoder, tokenise(encoder, LABELS), chosen).predict(features(encoder))
    assert solved == [2]


def test_an_image_that_is_not_finite_gets_the_inits_answer_alone(encoder: DualEncoder) -> None:
    tuner = Tuner(encoder, tokenise(encoder, LABELS), [methods.get(name) for name in UNTUNED])
    images = features(encoder)
    images[1, 3] = torch.nan  # not the plain view, so that the init has an answer
    fine = tuner.predict(features(encoder))
    for name, answer in tuner.predict(images).items():
        # A vote of a view without numbers may be lost in zero; the others can't answer.
        assert answer.fallback.tolist() == [False, name != "zero", False, False]
        torch.testing.assert_close(answer.probs[[0, 2, 3]], fine[name].probs[[0, 2, 3]])
        assert answer.probs.isfinite().all()


def test_labels_of_one_text_and_one_label(encoder: DualEncoder) -> None:
    twice = tokenise(encoder, ["cat", "dog", "cat"], repeats=True)
    for name, answer in (
        Tuner(encoder, twice, [methods.get(name) for name in ("mta", "tps")]).predict(features(encoder)).items()
    ):
        assert torch.equal(answer.probs[:, 0], answer.probs[:, 2]), name
    names = [*UNTUNED, "tpt | cots", "zero-shot | e-cots", "a-tpt", "soc | sals"]
    one = Tuner(encoder, tokenise(encoder, ["cat"]), [methods.get(name) for name in names])
    assert all(answer.probs.eq(1).all() for answer in one.predict(features(encoder)).values())


def test_rules_start_from_a_context_that_follows_the_image(encoder: DualEncoder) -> None:
    classes, images = tokenise(encoder, LABELS), features(encoder)
    start = Tuner(encoder, classes, []).texts.init.context[0]
    width, generator = images.shape[-1], torch.Generator().manual_seed(3)
    down, up = (
        torch.randn(*shape, dtype=torch.float64, generator=generator) for shape in ((4, width), (start.shape[-1], 4))
    )
    init = Conditional(start, down, torch.zeros(4).double(), up, torch.zeros(len(up)).double())
    tuner = ConditionalTuner(encoder, classes, [methods.get(name) for name in ["zero-shot", *UNTUNED]], init)
    whole = tuner.predict(images)
    single = [tuner.predict(image[None]) for image in images]
    for name, answer in whole.items():
        torch.testing.assert_close(answer.probs, torch.cat([part[name].probs for part in single]), rtol=1e-9, atol=1e-9)


def test_what_can_not_be_combined_is_refused(encoder: DualEncoder) -> None:
    with pytest.raises(InvalidOptionError, match=r"'mta \| cots': the rule 'mta' gives logits.*logits of all views"):
        methods.get("mta | cots")
    with pytest.raises(InvalidOptionError, match=r"gives probabilities"):
        methods.get("zero | sals")
    with pytest.raises(UnknownNameError, match="post-hoc step 'cot'"):
        methods.get("tpt | cot")
    with pytest.raises(InvalidOptionError, match="has both terms and a rule"):
        Method(name="mine", terms=(methods.Term("entropy"),), rule="mta")
    for framework in ("dynaprompt", "ensemble"):
        with pytest.raises(InvalidOptionError, match="Run methods with a rule in the framework tpt"):
            make_tuner(encoder, tokenise(encoder, LABELS), [methods.get("mta")], framework=framework)
        with pytest.raises(InvalidOptionError, match="Run methods with a rule in the framework tpt"):
            check_init(RunConfig(framework=framework, methods=("tpt", "peers")))


@pytest.mark.parametrize("framework", ["dynaprompt", "ensemble"])
def test_posthoc_steps_follow_other_frameworks(encoder: DualEncoder, framework: str, tmp_path: Path) -> None:
    chosen = [methods.get("tpt"), methods.get("tpt | cots")]
    tuner = make_tuner(encoder, tokenise(encoder, LABELS), chosen, framework=framework)
    answers = tuner.predict(features(encoder))
    assert torch.equal(answers["tpt"].probs.argmax(-1), answers["tpt | cots"].probs.argmax(-1))
    assert not torch.equal(answers["tpt"].probs, answers["tpt | cots"].probs)
    if framework == "dynaprompt":
        tuner.save(tmp_path)
        assert sorted(path.name for path in tmp_path.iterdir()) == ["tpt--cots.safetensors", "tpt.safetensors"]
        tuner.restore(tmp_path)


@dataclass(frozen=True)
class RunningMean(StreamRule):
    """The plain view's logits, minus a share of their mean over the images so far: a stream for tests."""

    share: float = 0.5

    def start(self, text_features: Tensor) -> State:
        return {"total": torch.zeros_like(text_features[:, 0]), "count": torch.zeros(1, dtype=torch.long)}

    def answer(self, state: State, out: Outputs, head: LogitHead) -> tuple[State, RuleAnswer]:
        totals = state["total"] + out.logits[:, 0].cumsum(0)
        counts = state["count"] + torch.arange(1, len(totals) + 1)
        answer = RuleAnswer(out.logits[:, 0] - self.share * totals / counts[:, None])
        return ({"total": totals[-1], "count": counts[-1:]} if len(totals) else state), answer


@pytest.fixture
def running_mean() -> Iterator[Method]:
    rules.add("running-mean")(RunningMean)
    yield methods.register(Method(name="running", rule="running-mean", about=About(group="streams")))
    methods.unregister("running")
    rules.remove("running-mean")


def test_a_stream_goes_on_and_can_be_saved(encoder: DualEncoder, running_mean: Method, tmp_path: Path) -> None:
    classes, images = tokenise(encoder, LABELS), features(encoder, 6)
    chosen = [running_mean, methods.get("running | sals"), methods.get("tpt")]
    whole, parts, resumed = (Tuner(encoder, classes, chosen) for _ in range(3))
    expected = whole.predict(images)["running"].logits
    assert whole.ordered
    first = parts.predict(images[:2])["running"].logits
    parts.save(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["running.safetensors"]
    resumed.restore(tmp_path)
    for tuner in (parts, resumed):
        torch.testing.assert_close(torch.cat([first, tuner.predict(images[2:])["running"].logits]), expected)
    other = Tuner(encoder, classes, [replace(running_mean, rule_options={"share": 0.1})])
    with pytest.raises(InvalidCheckpointError, match="The memory's method"):
        other.restore(tmp_path)


def test_an_image_that_is_not_finite_does_not_enter_a_stream(encoder: DualEncoder, running_mean: Method) -> None:
    images = features(encoder, 5)
    broken = images.clone()
    broken[2] = torch.nan
    one, other = (Tuner(encoder, tokenise(encoder, LABELS), [running_mean]) for _ in range(2))
    answer = one.predict(broken)["running"]
    assert answer.fallback.tolist() == [False, False, True, False, False]
    expected = other.predict(images[[0, 1, 3, 4]])["running"].logits
    torch.testing.assert_close(answer.logits[[0, 1, 3, 4]], expected)


def test_a_run_with_a_stream_is_ordered(running_mean: Method) -> None:
    stream, single = (RunConfig(methods=names) for names in (("tpt", "streams"), ("all",)))
    assert is_ordered(stream, make_methods(stream))
    assert not is_ordered(single, make_methods(single))
    with pytest.raises(InvalidOptionError, match=r"running depend on the images before.*bench run"):
        Classifier(LABELS, model="tiny", method="running", device="cpu")


def test_configurations_take_groups_and_steps() -> None:
    config = resolve(RunConfig(methods=("paper", "zero", "kld+cats|cots"), options={"kld+cats": {"lr": 0.1}}))
    assert config.methods == (*methods.names(), "zero", "kld+cats | cots")
    by_name = {method.name: method for method in make_methods(config)}
    assert (by_name["kld+cats | cots"].lr, by_name["kld+cats"].lr, by_name["tpt"].lr) == (0.1, 0.1, 0.005)
    own = resolve(RunConfig(methods=("tpt | cots",), options={"tpt|cots": {"cots": {"selection": 0.2}}}))
    assert make_methods(own)[0].describe().endswith("then cots(selection=0.2)")
