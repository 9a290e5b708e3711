"""The conformance checks: each finds what it is for, all failures are reported, and ``-O`` doesn't silence them."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from poise import testing
from poise.backbones import load_model
from poise.objectives import Entropy
from poise.posthoc import PostHoc
from poise.posthoc.sals import RangeScaling
from poise.rules import Rule, RuleAnswer
from poise.testing.conformance import run_checks
from poise.types import Objective, Outputs


def entropy(out: Outputs) -> Tensor:
    p = out.logits.softmax(-1)
    return -(p * p.log()).sum(-1).mean(1)


def objective(call: Callable[[Outputs], Tensor]) -> Objective:
    return type("Made", (Objective,), {"__call__": lambda self, out: call(out)})()


OFFENDERS = {
    "base_class": entropy,
    "value_per_image": lambda out: entropy(out).mean(),
    "gradient_reaches_texts": lambda out: entropy(out).detach() + 0 * out.text_features.sum(),
    "images_are_independent": lambda out: entropy(out) - entropy(out).mean(),
    "view_order_is_free": lambda out: entropy(out) * (1 + out.logits[:, -1, 0].detach()),
    "precision": lambda out: entropy(out) * (2 if out.logits.dtype == torch.float32 else 1),
}


@pytest.mark.parametrize("check", testing.OBJECTIVE_CHECKS)
def test_each_check_of_objectives_passes_a_good_one_and_finds_its_offender(check) -> None:
    check(Entropy())
    check(objective(entropy))
    offender = OFFENDERS[check.__name__]
    with pytest.raises(AssertionError):
        check(offender if check.__name__ == "base_class" else objective(offender))


def mean_logits(out: Outputs, head) -> RuleAnswer:
    return RuleAnswer(out.logits.mean(1))


RULE_OFFENDERS = {
    "rule_class": mean_logits,
    "answer_per_image": lambda out, head: RuleAnswer(out.logits),
    "one_by_one": lambda out, head: RuleAnswer(out.logits[:, 0] - out.logits[:, 0].mean(0)),
    "free_view_order": lambda out, head: RuleAnswer(out.logits[:, -1]),
    "rule_precision": lambda out, head: RuleAnswer(out.logits[:, 0] * (2 if out.logits.dtype == torch.float32 else 1)),
}


@pytest.mark.parametrize("check", testing.RULE_CHECKS)
def test_each_check_of_rules_passes_a_good_one_and_finds_its_offender(check) -> None:
    def rule(call):
        return type("Made", (Rule,), {"__call__": lambda self, out, head: call(out, head)})()

    check(rule(mean_logits))
    offender = RULE_OFFENDERS[check.__name__]
    with pytest.raises(AssertionError):
        check(offender if check.__name__ == "rule_class" else rule(offender))


POSTHOC_OFFENDERS = {
    "posthoc_class": lambda answered: answered.logits[:, 0],
    "posthoc_answer": lambda answered: -answered.logits[:, 0],  # another label
    "posthoc_one_by_one": lambda answered: answered.logits[:, 0] / answered.logits.std(),
}


@pytest.mark.parametrize("check", testing.POSTHOC_CHECKS)
def test_each_check_of_posthoc_steps_passes_a_good_one_and_finds_its_offender(check) -> None:
    check(RangeScaling())
    call = POSTHOC_OFFENDERS[check.__name__]
    step = type("Made", (PostHoc,), {"__call__": lambda self, answered: call(answered)})()
    with pytest.raises(AssertionError):
        check(call if check.__name__ == "posthoc_class" else step)


@pytest.mark.parametrize("check", testing.BACKBONE_CHECKS)
def test_a_backbone_conforms(check) -> None:
    check(load_model("tiny", device="cpu"))


def test_all_failures_are_reported() -> None:
    with pytest.raises(AssertionError) as found:
        testing.check_objective(objective(lambda out: entropy(out).mean() * torch.nan))
    text = str(found.value)
    assert "value_per_image: an objective returns one number per image" in text
    assert "gradient_reaches_texts: the gradient is not finite" in text
    with pytest.raises(AssertionError, match=r"(?s)2 of 3 .*- bad: broken\n- worse: KeyError: 'x'"):
        run_checks(0, [good, bad, worse])


def good(subject: int) -> None:
    pass


def bad(subject: int) -> None:
    raise AssertionError("broken")


def worse(subject: int) -> None:
    raise KeyError("x")


def test_parametrized_checks_have_ids() -> None:
    mark = testing.parametrize_checks([good, bad], {"one": int, "two": float}).mark
    assert mark.args[0] == ("make", "check")
    assert [case.id for case in mark.args[1]] == ["one-good", "one-bad", "two-good", "two-bad"]


def test_checks_hold_without_asserts_and_need_no_pytest() -> None:
    code = """
import sys
from poise import testing
if "pytest" in sys.modules: sys.exit("pytest was imported")
try:
    testing.check_objective(lambda out: out.logits.sum())
except AssertionError as error:
    sys.exit(0 if "value_per_image" in str(error) else "another failure")
sys.exit("nothing was found")
"""
    done = subprocess.run([sys.executable, "-O", "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
