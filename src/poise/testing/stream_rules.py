"""Checks of a `StreamRule` beside those of all rules: nothing but its state connects one image to the next."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor
from torch.nn.functional import normalize

from poise import methods
from poise.backbones import load_model
from poise.methods import Method
from poise.prompts import tokenise
from poise.rules import State, StreamRule, rules
from poise.testing.conformance import LABELS, require, run_checks
from poise.testing.rule_checks import HEAD, example_images
from poise.tuning import Tuner
from poise.types import Outputs

MakeRule = Callable[[], StreamRule]


def _stream() -> tuple[Outputs, Tensor]:
    """Return the outputs of twelve images, and the texts [C, D]."""
    out = example_images(images=12, views=20)
    return out, out.text_features[0]


def _rows(out: Outputs, rows: slice) -> Outputs:
    return Outputs(out.image_features[rows], out.text_features, out.logits[rows], out.reference_logits[rows])


def _copied(state: State) -> dict[str, Tensor]:
    return {name: tensor.clone() for name, tensor in state.items()}


def _same(one: State, other: State) -> bool:
    return one.keys() == other.keys() and all(torch.equal(tensor, other[name]) for name, tensor in one.items())


def images_together_equal_images_apart(make: MakeRule) -> None:
    """Several images in one call have the bits of one call each, and a state is never changed in place."""
    rule, (out, texts) = make(), _stream()
    require(rule.ordered, "'ordered' must be True, or a stream could be split")
    end, whole = rule.answer(rule.start(texts), out, HEAD)
    state: State = rule.start(texts)
    for row in range(len(out.logits)):
        before = _copied(state)
        following, answer = rule.answer(state, _rows(out, slice(row, row + 1)), HEAD)
        require(_same(state, before), "answer() must not change the tensors of the state that it is given")
        require(
            torch.equal(answer.logits[0], whole.logits[row]), "images together must have the answers of images apart"
        )
        state = _copied(following)
    require(_same(state, end), "images together must lead to the state of images apart")


def the_state_is_everything(make: MakeRule) -> None:
    """A rule has no memory besides its state: another object continues with the same bits."""
    rule, other, (out, texts) = make(), make(), _stream()
    _, whole = rule.answer(rule.start(texts), out, HEAD)
    middle, _ = rule.answer(rule.start(texts), _rows(out, slice(0, 7)), HEAD)
    _, rest = other.answer(_copied(middle), _rows(out, slice(7, None)), HEAD)
    require(torch.equal(rest.logits, whole.logits[7:]), "another object must continue a stream from its state")
    _, again = rule.answer(rule.start(texts), out, HEAD)
    require(torch.equal(again.logits, whole.logits), "the same stream must have the same answers again")


@contextmanager
def _registered(make: MakeRule) -> Iterator[Method]:
    """The rule as a method's, for the time of a check."""
    rules.add("_checked")(lambda: make())  # without parameters, so that it receives none of the method's
    try:
        yield Method(name="checked", rule="_checked")
    finally:
        rules.remove("_checked")


def _tuner(*chosen: Method) -> Tuner:
    encoder = load_model("tiny", device="cpu", dtype="float64")
    return Tuner(encoder, tokenise(encoder, LABELS), chosen)


def _features() -> Tensor:
    generator = torch.Generator().manual_seed(5)
    return normalize(torch.randn(8, 20, 32, dtype=torch.float64, generator=generator), dim=-1)


def streams_are_resumed(make: MakeRule) -> None:
    """A stream that is saved and restored has the bits of one without interruption."""
    with _registered(make) as method, tempfile.TemporaryDirectory() as folder:
        features = _features()
        whole = _tuner(method).predict(features)["checked"].logits
        first, second = _tuner(method), _tuner(method)
        head = first.predict(features[:5])["checked"].logits
        first.save(folder)
        second.restore(folder)
        parts = torch.cat([head, second.predict(features[5:])["checked"].logits])
        require(torch.equal(parts, whole), "a restored stream must have exactly the results of an uninterrupted one")


def methods_of_one_run_are_apart(make: MakeRule) -> None:
    """Beside other methods, a stream has the bits that it has alone."""
    with _registered(make) as method:
        features = _features()
        alone = _tuner(method).predict(features)["checked"].logits
        beside = _tuner(methods.get("tpt"), method, methods.get("tda")).predict(features)["checked"].logits
        require(torch.equal(beside, alone), "a stream must not depend on the other methods of a run")


def images_that_are_not_finite_are_ignored(make: MakeRule) -> None:
    """An image whose features are not finite does not change the state."""
    with _registered(make) as method:
        features, (one, other) = _features(), (_tuner(method), _tuner(method))
        broken = torch.cat([features[:5], torch.full_like(features[:1], torch.nan), features[5:]])
        clean = one.predict(features)["checked"].logits
        rows = [0, 1, 2, 3, 4, 6, 7, 8]
        answers = other.predict(broken)["checked"]
        require(bool(answers.fallback[5]), "an image whose features are not finite is a fallback")
        require(torch.equal(answers.logits[rows], clean), "an image that isn't finite must not change the state")


STREAM_RULE_CHECKS = (
    images_together_equal_images_apart,
    the_state_is_everything,
    streams_are_resumed,
    methods_of_one_run_are_apart,
    images_that_are_not_finite_are_ignored,
)


def check_stream_rule(make: MakeRule) -> None:
    """Run `STREAM_RULE_CHECKS` on a class or function that creates rules; raise AssertionError with all failures."""
    run_checks(make, STREAM_RULE_CHECKS)
