"""Objectives of other papers: the published losses, gradients and steps, and what they do at the edges."""

from __future__ import annotations

import pytest
import torch
from safetensors.torch import load_file

from poise import methods
from poise.errors import InvalidOptionError
from poise.objectives import objectives
from poise.objectives.a_tpt import nearest_angle
from poise.testing import example_outputs
from tests.peer_cases import GOLDEN, Case, cases, tune_texts

PUBLISHED = [case for method in ("penalty", "zs-norm", "a-tpt") for case in cases(method)]


def as_published(case: Case) -> methods.Method:
    """The method with the settings of the case, and the reference or sign of the released code."""
    settings, family = case.settings, case.id.split(".")[0]
    options = {"selection": settings["rho"], "lr": settings["lr"], "steps": settings["steps"]}
    if family == "a-tpt":
        name = "a-tpt-fg" if ".fg." in case.id else "a-tpt"
        return methods.get(name, weight=settings["lambda_term"], **options)
    return methods.get(family, **options, **{family: {"reference": "as-published"}})


@pytest.mark.parametrize("case", PUBLISHED, ids=lambda case: case.id)
def test_losses_gradients_and_steps_equal_the_published(case: Case) -> None:
    losses, gradients, logits = tune_texts(as_published(case), case)
    torch.testing.assert_close(torch.stack(losses, 1), case.outputs["loss"], rtol=0, atol=1e-9)
    gradient = case.outputs["gradient"].reshape(len(losses[0]), -1, *gradients[0].shape[1:])[:, 0]
    if case.id.endswith("dupclass"):  # labels 3 and 11 are equal: rounding decides which of them is another's nearest
        gradients[0], gradient = (
            torch.cat([part, part[:, 3:4] + part[:, 11:]], 1)[:, [0, 1, 2, *range(4, 11), 12]]
            for part in (gradients[0], gradient)
        )
    else:
        torch.testing.assert_close(logits, case.outputs["logits"], rtol=0, atol=1e-9)
    torch.testing.assert_close(gradients[0], gradient, rtol=0, atol=1e-9)


def test_values_by_the_formulas() -> None:
    texts = load_file(GOLDEN / "peers.safetensors")["read.text"][None]
    out = example_outputs()
    out = type(out)(out.image_features, texts, out.logits, out.reference_logits)
    assert nearest_angle(texts).item() == pytest.approx(0.68413305, abs=1e-8)
    assert objectives.get("a-tpt")()(out).item() == pytest.approx(-0.68413305, abs=1e-8)
    for delta, value in {0.5: 0.23292186456676797, 0.7: 0.25649889673218673, 0.9: 0.2578444029621565}.items():
        assert objectives.get("soc")(delta=delta)(out).item() == pytest.approx(value, abs=1e-12)


def test_ranges_as_described_are_those_of_the_plain_view_under_the_init() -> None:
    out = example_outputs()
    low, high = out.reference_logits[:, 0].amin(-1), out.reference_logits[:, 0].amax(-1)
    inside = low[:, None, None] + (high - low)[:, None, None] * torch.rand_like(out.logits)
    within = type(out)(out.image_features, out.text_features, inside, out.reference_logits)
    assert objectives.get("penalty")()(within).tolist() == [0, 0, 0]
    doubled = type(out)(out.image_features, out.text_features, 3 * inside - 5, out.reference_logits)
    one, other = (objectives.get("zs-norm")()(each) for each in (within, doubled))
    torch.testing.assert_close(one, other)  # scale and offset of the tuned logits don't matter


def test_equal_texts_and_one_class() -> None:
    texts = example_outputs().text_features.detach()
    twice = torch.cat([texts, texts[:, :1]], 1).requires_grad_()
    (gradient,) = torch.autograd.grad(nearest_angle(twice).sum(), twice)
    assert gradient.isfinite().all()
    assert nearest_angle(texts[:, :1]).tolist() == [0, 0, 0]


def test_equal_logits_have_no_range() -> None:
    out = example_outputs()
    flat = type(out)(out.image_features, out.text_features, 0 * out.logits, out.reference_logits)
    (gradient,) = torch.autograd.grad(objectives.get("zs-norm")()(flat).sum(), out.text_features)
    assert gradient.isfinite().all()


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("a-tpt", {"sign": "up"}),
        ("soc", {"delta": 0.0}),
        ("penalty", {"reference": "view"}),
        ("zs-norm", {"reference": "view"}),
    ],
)
def test_parameters_are_checked(name: str, options: dict) -> None:
    with pytest.raises(InvalidOptionError):
        objectives.get(name)(**options)


def test_descriptions_name_the_variant() -> None:
    assert "80 x a-tpt(sign=apart) (10 on shifts)" in methods.get("a-tpt").describe()
    assert "80 x a-tpt(sign=together)" in methods.get("a-tpt-fg").describe()
    assert "reference=plain" in methods.get("penalty").describe()
    assert "delta=0.7" in methods.get("soc", soc={"delta": 0.7}).describe()
