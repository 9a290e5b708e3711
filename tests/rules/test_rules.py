"""Rules: the published numbers, plain loops, and what they do at the edges."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from poise import methods
from poise.errors import InvalidOptionError
from poise.objectives import Target
from poise.rules import CosineHead, rules
from poise.rules.mta import RobustMean
from poise.rules.tps import TextShift
from poise.rules.zero import ConfidentVotes
from poise.testing import RULE_CHECKS, example_images, parametrize_checks
from poise.testing.rule_checks import HEAD
from tests.oracles import peers as plain
from tests.peer_cases import Case, cases, unit

WITHOUT_FILE = [name for name in rules if name != "tip-adapter"]


@parametrize_checks(RULE_CHECKS, {name: rules.get(name) for name in WITHOUT_FILE})
def test_rules_conform(make, check) -> None:
    check(make())


def near(one: Tensor, other: Tensor, tolerance: float = 1e-9) -> None:
    torch.testing.assert_close(one, other, rtol=0, atol=tolerance)


@pytest.mark.parametrize("case", cases("zero"), ids=lambda case: case.id)
def test_zero_equals_the_described_numbers(case: Case) -> None:
    out = case.head.outputs(case.inputs["views"], case.inputs["text"][None])
    if "dupclass" in case.id:
        out.logits[..., 11] = out.logits[..., 3]  # equal texts; a product may round them apart, class texts don't
    temperature = case.settings.get("temperature")  # a number where float16 was emulated
    votes = ConfidentVotes(Target(selection=case.settings["gamma"]), temperature).votes(out, case.head)
    near(votes, case.outputs["votes"].to(votes), 1e-3 if temperature else 1e-9)
    if "prob" in case.outputs:
        rule = ConfidentVotes(Target(selection=case.settings["gamma"]))
        near(rule(out, case.head).logits.exp(), case.outputs["prob"])
        assert torch.equal(votes.argmax(-1), case.outputs["prediction"])


@pytest.mark.parametrize("case", cases("mta"), ids=lambda case: case.id)
def test_mta_equals_the_published_numbers(case: Case) -> None:
    rule = RobustMean(case.settings["lambda_y"], case.settings["lambda_q"])
    logits = rule(case.head.outputs(case.inputs["views"], case.inputs["text"][None]), case.head).logits
    assert logits.isfinite().all()
    # Where views are equal, the published code divides by 0 or by rounding noise.
    usable = [1] if ".dup" in case.id else list(range(len(logits)))
    near(logits[usable], case.outputs["logits"][usable])


@pytest.mark.parametrize("case", cases("tps"), ids=lambda case: case.id)
def test_tps_equals_the_published_numbers(case: Case) -> None:
    settings, views = case.settings, case.inputs["views"]
    rule = TextShift(
        Target(selection=settings["rho"]), settings["steps"], settings["lr"], shared=settings["shift"] == "shared"
    )
    texts = unit(case.inputs["text"], dim=-1)[None]
    answer = rule(case.head.outputs(views, texts), case.head)
    near(answer.logits[:, 0], case.outputs["logits"], 1e-6 if case.id == "tps.sat" else 1e-9)
    near(answer.text_features.norm(dim=-1), torch.ones(len(views), texts.shape[1], dtype=torch.float64))


def test_rules_equal_plain_loops() -> None:
    out = example_images(images=6, views=24, classes=7, seed=3)
    texts = out.text_features[0]
    mta, zero, tps = (rules.get(name)() for name in ("mta", "zero", "tps"))
    two_steps = TextShift(steps=2)
    for number, views in enumerate(out.image_features):
        near(mta(out, HEAD).logits[number], plain.mta(views, texts, HEAD.scale))
        near(zero.votes(out, HEAD)[number], plain.zero(out.logits[number]))
        near(tps(out, HEAD).logits[number], plain.tps(views, texts, HEAD.scale), 1e-7)  # torch's epsilon: 1e-8
        near(two_steps(out, HEAD).logits[number], plain.tps(views, texts, HEAD.scale, steps=2), 1e-7)


def test_views_that_are_equal_answer_as_one() -> None:
    out = example_images()
    same = HEAD.outputs(out.image_features[:, :1].expand(-1, 8, -1).contiguous(), out.text_features)
    near(RobustMean()(same, HEAD).logits, out.logits[:, 0], 1e-7)
    votes = ConfidentVotes()(same, HEAD).logits.exp()
    assert torch.equal(votes.argmax(-1), out.logits[:, 0].argmax(-1))
    assert votes.amax(-1).eq(1).all()


def test_saturated_predictions_are_left_alone() -> None:
    out = example_images()
    sharp = CosineHead(1e5)
    views = out.text_features[0, [0, 1, 2, 3]][:, None].expand(-1, 8, -1).contiguous()
    saturated = sharp.outputs(views, out.text_features)
    for name in WITHOUT_FILE:
        answer = rules.get(name)()(saturated, sharp).logits
        answer = answer[:, 0] if answer.ndim == 3 else answer
        assert answer.softmax(-1).argmax(-1).tolist() == [0, 1, 2, 3], name


def test_mta_refuses_fewer_than_five_views() -> None:
    with pytest.raises(InvalidOptionError, match="5 views or more"):
        RobustMean()(example_images(views=4), HEAD)
    with pytest.raises(InvalidOptionError, match=r"'mta' needs 5 views per image, and views is 4"):
        methods.get("mta").check_views(4)
    methods.get("mta | sals").check_views(5)
    assert RobustMean()(example_images(views=5), HEAD).logits.isfinite().all()


def test_parameters_are_checked() -> None:
    with pytest.raises(InvalidOptionError):
        methods.get("mta", lambda_y=0.0)
    with pytest.raises(InvalidOptionError):
        methods.get("zero", temperature=-1.0)
    assert methods.get("zero", selection=0.2).make_rule().target.selection == 0.2
    assert methods.get("tps", lr=1e-3, steps=2).make_rule() == TextShift(lr=1e-3, steps=2)
    assert methods.get("zero").describe() == "zero(temperature=None), selection 0.3"
    assert "steps 1, lr 0.005, weight decay 0.01" in methods.get("tps").describe()
