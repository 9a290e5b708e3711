"""The online memory: decisions and answers of the plain loop, and streams that are interrupted and restored."""

from __future__ import annotations

import pytest
import torch

from poise import methods
from poise.backbones import load_model
from poise.backbones.loaders.tiny import tiny_model
from poise.errors import InvalidCheckpointError, InvalidOptionError
from poise.prompts import init_prompt, tokenise
from poise.testing import check_memory, memories
from poise.tuning import make_tuner
from poise.tuning.frameworks import Framework, frameworks
from poise.tuning.memory import PromptMemory, pick_as_published, pick_described, probability_difference
from poise.tuning.stream import StreamTuner, restore_memory, save_memory
from poise.types import Answer, DualEncoder, Prompt
from tests.oracles import dynaprompt as plain
from tests.oracles.objectives import of_method
from tests.oracles.text import text_features

LABELS = ["cat", "dog", "great white shark", "cup"]
SCRIPT = {"described": 5, "as-published": 1}  # seeds of streams on which several prompts are picked and some evicted


@pytest.fixture(scope="module")
def encoder() -> DualEncoder:
    return load_model("tiny", device="cpu", dtype="float64")


class OneStream:
    """A `StreamTuner` of one method."""

    def __init__(self, encoder, classes, method, size=10, variant="described") -> None:
        self.tuner = StreamTuner(encoder, classes, [method], size=size, variant=variant)
        (self.stream,) = self.tuner.streams.values()

    def __getattr__(self, name: str) -> object:
        return getattr(self.stream, name)

    def predict(self, features: torch.Tensor) -> Answer:
        (answer,) = self.tuner.predict(features).values()
        return answer


def stream_of(images: int = 7, views: int = 10, seed: int = 0) -> torch.Tensor:
    """Views near their own centre, centres near each other, so that some tuned prompts suit later images."""
    generator = torch.Generator().manual_seed(seed)

    def draw(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, 32, dtype=torch.float64, generator=generator)

    centres = draw(1, 1) + 0.3 * draw(images, 1)
    return torch.nn.functional.normalize(centres + 0.7 * draw(images, views), dim=-1)


@pytest.mark.parametrize("variant", ["described", "as-published"])
@pytest.mark.parametrize("name", ["tpt", "c-tpt", "kld+cats"])  # a loss of views, of texts, and of a target
def test_equals_the_plain_loop(encoder, name, variant) -> None:
    model = tiny_model().double().eval().requires_grad_(False)
    method = methods.get(name, lr=0.02)
    classes, stream = tokenise(encoder, LABELS), stream_of(8, seed=SCRIPT[variant])
    expected = plain.run(
        stream,
        init_prompt(encoder, classes).context[0],
        lambda context: text_features(model, classes, Prompt(context[None]))[0],
        encoder.scale,
        of_method(name),
        size=4,
        variant=variant,
        lr=0.02,
    )
    tuner = OneStream(encoder, classes, method, size=4, variant=variant)
    answer = tuner.predict(stream)
    logits = torch.stack([row for _, row in expected])
    torch.testing.assert_close(answer.logits, logits, atol=1e-6, rtol=0)
    if variant == "as-published":
        assert tuner.picked == [used for used, _ in expected]
    else:  # a prompt's age and its slot are two names of one thing, so equal sizes and equal answers decide
        assert [len(used) for used in tuner.picked] == [len(used) for used, _ in expected]


@pytest.mark.parametrize("variant", ["described", "as-published"])
def test_the_scripted_streams_show_something(encoder, variant) -> None:
    tuner = OneStream(encoder, tokenise(encoder, LABELS), methods.get("tpt", lr=0.02), size=4, variant=variant)
    tuner.predict(stream_of(8, seed=SCRIPT[variant]))
    assert any(len(set(used)) > 1 for used in tuner.picked)
    assert any(len(used) == 1 for used in tuner.picked[4:])  # a full memory had to make room
    assert tuner.seen == 8


@pytest.mark.parametrize("variant", ["described", "as-published"])
def test_a_restored_stream_continues_bitwise(encoder, tmp_path, variant) -> None:
    classes, stream = tokenise(encoder, LABELS), stream_of(9)
    chosen = [methods.get("tpt", lr=0.02), methods.get("kld+cats", steps=2)]
    whole = StreamTuner(encoder, classes, chosen, size=3, variant=variant).predict(stream)
    first = StreamTuner(encoder, classes, chosen, size=3, variant=variant)
    begun = first.predict(stream[:4])
    first.save(tmp_path)
    second = StreamTuner(encoder, classes, chosen, size=3, variant=variant)
    second.restore(tmp_path)
    rest = second.predict(stream[4:])
    for name in whole:
        assert torch.equal(torch.cat([begun[name].logits, rest[name].logits]), whole[name].logits)
        assert second.streams[name].seen == 9


@pytest.mark.parametrize("variant", ["described", "as-published"])
def test_methods_share_passes_and_answer_as_if_alone(encoder, variant, monkeypatch) -> None:
    classes, stream = tokenise(encoder, LABELS), stream_of(6)
    stream[2] = torch.nan  # an image that asks for nothing
    chosen = [
        methods.get("tpt", lr=0.02),
        methods.get("kld+cats", steps=2),
        methods.get("c-tpt"),
        methods.get("zero-shot"),
    ]
    alone = {each.name: OneStream(encoder, classes, each, size=3, variant=variant).predict(stream) for each in chosen}
    tuner, passes = StreamTuner(encoder, classes, chosen, size=3, variant=variant), []
    run = tuner.texts.features
    monkeypatch.setattr(tuner.texts, "features", lambda prompt: passes.append(len(prompt)) or run(prompt))
    together = tuner.predict(stream)
    for name, answer in alone.items():
        torch.testing.assert_close(together[name].logits, answer.logits, atol=1e-9, rtol=0, equal_nan=True)
    most = (
        3 if variant == "as-published" else 2
    )  # for each image; the method with two steps has one more than the others
    assert len(passes) <= 1 + 5 * (most + 1)


def test_order_matters_and_batches_do_not(encoder) -> None:
    classes, stream = tokenise(encoder, LABELS), stream_of()

    def run(*parts: torch.Tensor) -> torch.Tensor:
        tuner = OneStream(encoder, classes, methods.get("tpt", lr=0.02), size=3)
        return torch.cat([tuner.predict(part).logits for part in parts])

    assert torch.equal(run(stream), run(stream[:2], stream[2:]))
    assert not torch.equal(run(stream), run(stream.flip(0)).flip(0))


@pytest.mark.parametrize("variant", ["described", "as-published"])
def test_as_many_prompts_as_classes(encoder, variant) -> None:
    tuner = OneStream(encoder, tokenise(encoder, LABELS), methods.get("tpt"), size=len(LABELS), variant=variant)
    assert tuner.predict(stream_of()).probs.isfinite().all()


def test_zero_shot_and_one_label_tune_nothing(encoder) -> None:
    classes, stream = tokenise(encoder, LABELS), stream_of()
    answer = OneStream(encoder, classes, methods.get("zero-shot")).predict(stream)
    assert torch.equal(answer.probs, answer.init_probs)
    assert answer.losses.shape == (7, 0)
    alone = OneStream(encoder, tokenise(encoder, ["cat"]), methods.get("tpt"))
    assert alone.predict(stream).probs.eq(1).all()
    assert not alone.memory.used()


def test_a_broken_image_leaves_the_memory_alone(encoder) -> None:
    classes, stream = tokenise(encoder, LABELS), stream_of()
    broken = torch.cat([stream[:3], torch.full_like(stream[:1], torch.nan), stream[3:]])
    broken[3, 0] = stream[0, 0]
    sound = OneStream(encoder, classes, methods.get("tpt", lr=0.02), size=3).predict(stream)
    tuner = OneStream(encoder, classes, methods.get("tpt", lr=0.02), size=3)
    answer = tuner.predict(broken)
    assert answer.fallback.tolist() == [False, False, False, True, False, False, False, False]
    assert answer.probs.isfinite().all()
    assert torch.equal(answer.logits[[0, 1, 2, 4, 5, 6, 7]], sound.logits)


def test_a_memory_belongs_to_its_stream(encoder, tmp_path) -> None:
    classes = tokenise(encoder, LABELS)
    tuner = OneStream(encoder, classes, methods.get("tpt"), size=3)
    tuner.predict(stream_of(2))
    save_memory(tuner.stream, tmp_path / "m.safetensors")
    for other, both in [
        (OneStream(encoder, classes, methods.get("tpt"), size=4), ("size is 3", "4")),
        (OneStream(encoder, classes, methods.get("tpt"), size=3, variant="as-published"), ("described", "as-pub")),
        (OneStream(encoder, tokenise(encoder, LABELS[:3]), methods.get("tpt"), size=3), ("labels is",)),
        (OneStream(encoder, classes, methods.get("kld"), size=3), ("tpt", "kld")),
    ]:
        with pytest.raises(InvalidCheckpointError) as refusal:
            restore_memory(other.stream, tmp_path / "m.safetensors")
        assert all(text in str(refusal.value) for text in both)
    with pytest.raises(InvalidCheckpointError, match="can't be read"):
        restore_memory(tuner.stream, tmp_path / "absent.safetensors")


def test_rules_by_hand() -> None:
    entropy, difference = torch.tensor([1.0, 0.5, 0.5, 1.5]), torch.tensor([0.2, 0.3, 0.1, 0.9])
    assert pick_described(entropy, difference) == [1]
    assert pick_described(torch.tensor([1.0, 0.5, 1.0]), torch.tensor([0.2, 0.2, 0.3])) == []  # equal is not better
    # entropies fall 3, 0, 1, 2: slot 0 has rank 1; surer: 1, 2; the first by difference: 3. Nothing in common.
    assert pick_as_published(entropy, difference, fresh=0) == [0]
    # slot 1 has rank 2; surer: 2; the first two by difference: 3, 1. Nothing in common again.
    assert pick_as_published(entropy, difference, fresh=1) == [1]
    # with slot 2 ahead: surer than 1: 2; first two: 2, 3; slot 2 as a position in (3, 0, 1, 2) is slot 1, the start.
    assert pick_as_published(entropy, torch.tensor([0.2, 0.1, 0.9, 0.3]), fresh=1) == [1, 1]
    logits = torch.tensor([[[2.0, 0.0], [0.0, 0.0], [0.0, 2.0]]])
    expected = torch.sigmoid(torch.tensor(2.0)) - (0.5 + torch.sigmoid(torch.tensor(-2.0))) / 2
    torch.testing.assert_close(probability_difference(logits), expected[None])


def test_the_memory_forgets_the_least_recently_used() -> None:
    memory = PromptMemory(torch.zeros(1, 2), 2)
    for number, slot in enumerate([0, 1]):
        assert memory.fresh() == slot
        memory.finish([slot], memory.values + number + 1)
    memory.finish([0], memory.values)
    assert memory.used() == [1, 0]
    assert memory.fresh() == 1
    assert memory.values[1].eq(0).all()
    assert memory.used() == [0]


def test_unknown_variants_and_sizes_are_refused(encoder) -> None:
    classes = tokenise(encoder, LABELS)
    with pytest.raises(InvalidOptionError, match="described, as-published"):
        OneStream(encoder, classes, methods.get("tpt"), variant="paper")
    with pytest.raises(InvalidOptionError, match="size is 0"):
        OneStream(encoder, classes, methods.get("tpt"), size=0)


def test_class_specific_inits_are_refused(encoder) -> None:
    classes = tokenise(encoder, LABELS)
    own = init_prompt(encoder, classes).context.expand(len(LABELS), -1, -1)[None]
    with pytest.raises(InvalidOptionError, match=r"got \{'context': \[1, 4, 4, 64\]\}.*class-specific"):
        StreamTuner(encoder, classes, [methods.get("tpt")], Prompt(own))


def test_stored_features_share_no_memory_with_others(encoder) -> None:
    tuner = StreamTuner(encoder, tokenise(encoder, LABELS), [methods.get("tpt"), methods.get("kld")], size=3)
    tuner.predict(stream_of())
    stored = [text for stream in tuner.streams.values() for text in stream.text_features.values()]
    assert stored
    assert all(text.untyped_storage().nbytes() == text.numel() * text.element_size() for text in stored)


class FirstInFirstOut(PromptMemory):
    """Gives up the prompt that came first, however often it was used since."""

    def finish(self, picked, values):
        self.values = values
        for slot in picked:
            if not self.uses[slot]:
                self.order.remove(slot)
                self.order.append(slot)
            self.uses[slot] += 1


class Forgets(FirstInFirstOut):
    """Returns its lists, so that a saved state changes with it."""

    def state(self):
        return self.values, self.order, self.uses

    def reset(self, values, order, uses):
        self.values, self.order, self.uses = values, order, uses


class Hoards(PromptMemory):
    """Never gives a prompt up."""

    def fresh(self):
        return next((slot for slot in self.order if not self.uses[slot]), self.order[0])


@pytest.mark.parametrize("memory", [PromptMemory, FirstInFirstOut])
def test_memories_conform(memory) -> None:
    check_memory(memory)


@pytest.mark.parametrize(
    ("memory", "check", "rule"),
    [
        (Forgets, memories.state_is_restored, "later uses must not change"),
        (Hoards, memories.capacity, "must contain the init"),
    ],
)
def test_memories_that_do_not_conform_are_refused_with_the_reason(memory, check, rule) -> None:
    assert check in memories.MEMORY_CHECKS
    with pytest.raises(AssertionError, match=rule):
        check(memory)


def test_a_memory_of_your_own_is_reached_by_a_framework_row(encoder) -> None:
    """So that `poise bench run --framework fifo` uses it."""

    def build(encoder, chosen, init, options, _):
        return StreamTuner(encoder, init.classes, chosen, init.parameters, size=2, memory=FirstInFirstOut)

    frameworks.add("fifo")(Framework(name="fifo", description="", build=build, inits=("template",), ordered=True))
    try:
        chosen = [methods.get("tpt")]
        tuner = make_tuner(encoder, tokenise(encoder, LABELS), chosen, framework="fifo")
        direct = StreamTuner(encoder, tokenise(encoder, LABELS), chosen, size=2, memory=FirstInFirstOut)
        assert torch.equal(tuner.predict(stream_of())["tpt"].logits, direct.predict(stream_of())["tpt"].logits)
    finally:
        frameworks.remove("fifo")
