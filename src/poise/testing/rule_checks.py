"""Checks of a rule and of a post-hoc step: shapes, independence of images, order of views, precision, streams."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from poise.posthoc import PostHoc
from poise.rules import CosineHead, Gives, Rule, StreamRule
from poise.testing.conformance import require, run_checks
from poise.types import Outputs

HEAD = CosineHead(scale=20.0)


def example_images(images: int = 4, views: int = 8, classes: int = 5, width: int = 6, seed: int = 0) -> Outputs:
    """Return random outputs in float64 whose images share the texts [1, C, D]; views of one image are alike.

    Args:
        images: B.
        views: V, per image.
        classes: C.
        width: D, of the features.
        seed: of the random numbers.
    """
    generator = torch.Generator().manual_seed(seed)

    def random(*shape: int) -> Tensor:
        return torch.randn(*shape, dtype=torch.float64, generator=generator)

    unit = torch.nn.functional.normalize
    features = unit(random(images, 1, width) + 0.7 * random(images, views, width), dim=-1)
    return HEAD.outputs(features, unit(random(1, classes, width), dim=-1))


def rule_class(rule: Rule) -> None:
    """The rule derives from the class whose attributes methods read."""
    require(isinstance(rule, Rule), "a rule must derive from poise.rules.Rule")


def answer_per_image(rule: Rule) -> None:
    """The answer has the declared shape, and its probabilities are finite, also for one class."""
    for classes in (5, 1):
        out = example_images(classes=classes)
        answer, texts = rule(out, HEAD), out.text_features
        shape = out.logits.shape if rule.gives is Gives.ALL_VIEWS else out.logits[:, 0].shape
        require(answer.logits.shape == shape, f"the answer's shape must be {list(shape)}")
        require(bool(answer.logits.softmax(-1).isfinite().all()), "the answer's probabilities must be finite")
        if rule.gives is not Gives.PROBABILITIES:
            require(bool(answer.logits.isfinite().all()), "the answer's logits must be finite")
        if answer.text_features is not None:
            require(answer.text_features.shape == (4, *texts.shape[1:]), "text features must be [B, C, D]")


def one_by_one(rule: Rule) -> None:
    """A batch has the answers of its images one by one; a stream carries its state and does not change it in place."""
    out = example_images()
    rows, parts = [_row(out, number) for number in range(len(out.logits))], list[Tensor]()
    if isinstance(rule, StreamRule):
        state = rule.start(out.text_features[0])
        for row in rows:
            before = {name: tensor.clone() for name, tensor in state.items()}
            following, answer = rule.answer(state, row, HEAD)
            same = all(torch.equal(before[name], state[name]) for name in before)
            require(same, "answer() must not change the tensors of the state that it was given")
            state = following
            parts.append(answer.logits)
    else:
        parts = [rule(row, HEAD).logits for row in rows]
    _close(torch.cat(parts), rule(out, HEAD).logits, "a batch must have the answers of its images one by one")


def free_view_order(rule: Rule) -> None:
    """The order of the views after the plain one does not matter."""
    out = example_images()
    order = torch.tensor([0, *reversed(range(1, out.logits.shape[1]))])
    shuffled = replace(
        out, **{name: getattr(out, name)[:, order] for name in ("image_features", "logits", "reference_logits")}
    )
    answer, expected = rule(shuffled, HEAD).logits, rule(out, HEAD).logits
    expected = expected[:, order] if rule.gives is Gives.ALL_VIEWS else expected
    _close(answer, expected, "the answer depends on the order of the views after view 0")


def rule_precision(rule: Rule) -> None:
    """The probabilities in float32 and float64 agree."""
    out = example_images()
    narrow = HEAD.outputs(out.image_features.float(), out.text_features.float())
    one, other = rule(narrow, HEAD).logits.double().softmax(-1), rule(out, HEAD).logits.softmax(-1)
    _close(one, other, "float32 and float64 disagree", 1e-3)


RULE_CHECKS: tuple[Callable[[Rule], None], ...] = (
    rule_class,
    answer_per_image,
    one_by_one,
    free_view_order,
    rule_precision,
)


def check_rule(rule: Rule) -> None:
    """Run `RULE_CHECKS` on a rule; raise AssertionError with all failures."""
    run_checks(rule, RULE_CHECKS)


def _example_answer(classes: int = 5) -> Outputs:
    before, after = example_images(classes=classes), example_images(classes=classes, seed=1)
    texts, logits = after.text_features.expand(4, -1, -1), 2 * before.logits + after.logits
    return Outputs(before.image_features, texts, logits, before.logits)


def posthoc_class(step: PostHoc) -> None:
    """The step derives from the class whose attributes methods read."""
    require(isinstance(step, PostHoc), "a post-hoc step must derive from poise.posthoc.PostHoc")


def posthoc_answer(step: PostHoc) -> None:
    """The logits are finite [B, C], also for one class, and keep the label if the step says so."""
    for classes in (5, 1):
        out = _example_answer(classes)
        logits = step(out)
        require(logits.shape == (4, classes), "a post-hoc step returns logits [B, C]")
        require(bool(logits.isfinite().all()), "logits must be finite")
        same = torch.equal(logits.argmax(-1), out.logits[:, 0].argmax(-1))
        require(same or not step.keeps_label, "the label changed, and keeps_label is True")


def posthoc_one_by_one(step: PostHoc) -> None:
    """A batch has the answers of its images one by one."""
    whole = _example_answer()
    parts = (whole.image_features, whole.text_features, whole.logits, whole.reference_logits)
    rows = (Outputs(*(part[n : n + 1] for part in parts)) for n in range(4))
    _close(torch.cat([step(row) for row in rows]), step(whole), "a batch must have the answers of its images")


POSTHOC_CHECKS: tuple[Callable[[PostHoc], None], ...] = (posthoc_class, posthoc_answer, posthoc_one_by_one)


def check_posthoc(step: PostHoc) -> None:
    """Run `POSTHOC_CHECKS` on a post-hoc step; raise AssertionError with all failures."""
    run_checks(step, POSTHOC_CHECKS)


def _row(out: Outputs, number: int) -> Outputs:
    return HEAD.outputs(out.image_features[number : number + 1], out.text_features)


def _close(one: Tensor, other: Tensor, rule: str, tolerance: float = 1e-7) -> None:
    require(one.shape == other.shape and torch.allclose(one, other, rtol=tolerance, atol=tolerance), rule)
