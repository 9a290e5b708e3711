"""What objectives do at the edges of their formulas, on which device they compute, and what they refuse."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from poise.errors import InvalidCheckpointError, InvalidOptionError
from poise.objectives import Alignment, ConfidenceTemperature, Entropy, Sum, Target, objectives
from poise.objectives.a_tpt import nearest_angle
from poise.testing import example_outputs
from poise.types import Objective, Outputs


def alignment_case(target: Target, seed: int = 0) -> tuple[Alignment, Outputs]:
    """Statistics of 2 layers, 4 tokens and width 3, and outputs with tokens of that shape."""
    generator = torch.Generator().manual_seed(seed)
    mean, variance = (torch.randn(2, 4, 3, dtype=torch.float64, generator=generator) for _ in range(2))
    out = example_outputs()
    tokens = 2 * torch.randn(*out.logits.shape[:2], 2, 4, 3, dtype=torch.float64, generator=generator) + 1
    return Alignment(mean, variance, target), replace(out, tokens=tokens)


def plain_alignment(term: Alignment, tokens: Tensor) -> float:
    """One image's tokens [K, J, T, W] by the formula, number by number."""
    total = 0.0
    for layer in range(tokens.shape[1]):
        parts = []
        for token in range(tokens.shape[2]):
            for unit in range(tokens.shape[3]):
                values = tokens[:, layer, token, unit].tolist()
                mean = math.fsum(values) / len(values)
                variance = math.fsum((value - mean) ** 2 for value in values) / len(values)
                at = (layer, token, unit)
                parts.append(abs(mean - term.mean[at].item()) + abs(variance - term.variance[at].item()))
        total += 0.5 * math.fsum(parts) / len(parts)
    return total


@pytest.mark.parametrize(
    "target", [Target(selection=0.4), Target(selection=1.0), Target(selection=0.3, include_plain=False)]
)
def test_alignment_by_the_formula(target: Target) -> None:
    term, out = alignment_case(target)
    value = term(out)
    assert term.token_layers == 2
    for image, views in enumerate(target.views(out)):
        assert value[image].item() == pytest.approx(plain_alignment(term, out.tokens[image, views]), abs=1e-12)


def test_alignment_has_the_precision_of_the_tokens() -> None:
    term, out = alignment_case(Target())
    assert term(replace(out, tokens=out.tokens.float())).dtype == torch.float32


def test_statistics_are_read_from_a_file(tmp_path) -> None:
    term, out = alignment_case(Target(selection=0.4))
    path = tmp_path / "statistics.safetensors"
    save_file({"mean": term.mean, "variance": term.variance}, path)
    assert torch.equal(objectives.get("alignment")(path, Target(selection=0.4))(out), term(out))
    save_file({"mean": term.mean}, path)
    with pytest.raises(InvalidCheckpointError) as problem:
        objectives.get("alignment")(path)
    assert str(problem.value) == f"'{path}' has no token statistics: 'variance'. Compute them with `poise fit stats`."


@pytest.mark.parametrize("tokens", [None, torch.zeros(3, 8, 1, 4, 3), torch.zeros(3, 8, 2, 4, 5)])
def test_statistics_of_other_tokens_are_refused(tokens: Tensor | None) -> None:
    term, out = alignment_case(Target())
    with pytest.raises(InvalidOptionError) as problem:
        term(replace(out, tokens=tokens))
    given = None if tokens is None else list(tokens.shape[2:])
    assert str(problem.value) == (
        f"Token states (layers, tokens, width) are {given}, the statistics are [2, 4, 3]. "
        "Compute the statistics with the same model and prompt: `poise fit stats`."
    )


def test_a_sum_reads_the_tokens_of_the_deepest_term() -> None:
    term, _ = alignment_case(Target())
    assert Sum(((1.0, Entropy()),)).token_layers == 0
    assert Sum(((1.0, term), (1.0, Entropy()))).token_layers == 2
    assert Sum(()).token_layers == 0


def test_one_class_has_no_angle_and_no_gradient() -> None:
    texts = torch.tensor([[[0.6, 0.8]], [[1.0, 0.0]], [[math.sqrt(0.5), -math.sqrt(0.5)]]], dtype=torch.float64)
    texts = texts.requires_grad_()
    value = nearest_angle(texts)
    (gradient,) = torch.autograd.grad(value.sum(), texts)
    assert value.tolist() == [0, 0, 0]  # the third one's entries sum to 0
    assert (gradient == 0).all()


def test_opposite_texts_have_a_finite_gradient() -> None:
    """Arccos has an infinite derivative at -1 as well as at 1."""
    texts = torch.tensor([[[1.0, 0.0], [-1.0, 0.0]]], dtype=torch.float64).requires_grad_()
    value = nearest_angle(texts)
    (gradient,) = torch.autograd.grad(value.sum(), texts)
    assert value.item() == pytest.approx(math.acos(-0.99999), abs=1e-12)
    assert gradient.isfinite().all()


@pytest.mark.parametrize("name", list(objectives))
def test_objectives_compute_on_the_device_of_their_inputs(name: str) -> None:
    """Whatever else is made on the default device, which is another one here."""
    objective: Objective
    if name == "alignment":
        objective, out = alignment_case(Target())
    else:
        objective, out = objectives.get(name)(), example_outputs()
    expected = objective(out)
    with torch.device("meta"):
        value = objective(out)
    assert value.device == out.logits.device
    assert torch.equal(value, expected)


@pytest.mark.parametrize(
    ("name", "options", "text"),
    [
        ("a-tpt", {"sign": "up"}, "sign='up' is not accepted. Accepted: apart, together."),
        ("soc", {"delta": 0.0}, "delta is 0.0. It must be above 0."),
        ("soc", {"delta": math.nan}, "delta is nan. It must be above 0."),
        ("penalty", {"reference": "view"}, "reference='view' is not accepted. Accepted: plain, as-published."),
        ("zs-norm", {"reference": "view"}, "reference='view' is not accepted. Accepted: plain, as-published."),
    ],
)
def test_errors_name_what_was_given_and_what_is_accepted(name: str, options: dict, text: str) -> None:
    with pytest.raises(InvalidOptionError) as problem:
        objectives.get(name)(**options)
    assert str(problem.value) == text


def test_errors_of_targets() -> None:
    for make, text in (
        (
            lambda: ConfidenceTemperature(t_min=2.0, t_max=1.0),
            "t_min is 2.0 and t_max is 1.0. They must satisfy 0 < t_min <= t_max.",
        ),
        (lambda: Target(selection=0.0), "selection is 0.0. It is a fraction of the views, above 0 and at most 1."),
        (
            lambda: Target(include_plain=False).lowest(torch.zeros(1, 1)),
            "There is the plain view alone, and include_plain is False. Use 2 views or more.",
        ),
    ):
        with pytest.raises(InvalidOptionError) as problem:
            make()
        assert str(problem.value) == text


def test_temperatures_of_views() -> None:
    """One without a temperature; with one, T = t_max - (t_max - t_min) α for each view's confidence α."""
    logits = torch.tensor([[[0.0, 0.0], [math.log(3.0), 0.0], [1e3, 0.0]]], dtype=torch.float64)
    assert Target().temperatures(logits).tolist() == [[1.0, 1.0, 1.0]]
    scaled = Target(temperature=ConfidenceTemperature(t_min=1.0, t_max=5.0)).temperatures(logits)
    torch.testing.assert_close(scaled, torch.tensor([[3.0, 2.0, 1.0]], dtype=torch.float64), atol=1e-12, rtol=0)
    same = Target(temperature=ConfidenceTemperature(t_min=2.0, t_max=2.0)).temperatures(logits)
    assert same.tolist() == [[2.0, 2.0, 2.0]]
    assert Target().temperatures(logits[..., :1]).tolist() == [[1.0, 1.0, 1.0]]  # of one class


def test_a_ranking_is_followed_instead_of_entropies() -> None:
    out = example_outputs()
    ranking = torch.arange(8.0).flip(0).expand(3, -1)
    assert Target(selection=0.4).views(replace(out, ranking=ranking)).tolist() == [[7, 6, 5]] * 3
    assert Target(selection=0.4, include_plain=False).views(replace(out, ranking=-ranking)).tolist() == [[1, 2]] * 3
    assert Target(selection=0.4).views(replace(out, ranking=0 * ranking)).tolist() == [[0, 1, 2]] * 3  # ties
