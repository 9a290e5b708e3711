"""Post-hoc steps: the published numbers, and what they do at the edges."""

from __future__ import annotations

import pytest
import torch
from safetensors.torch import load_file

from poise.errors import InvalidOptionError
from poise.posthoc import posthoc
from poise.posthoc.cots import ConfidenceMatching, matching_temperatures
from poise.posthoc.e_cots import AveragedMatching, mean_pair_cosine
from poise.posthoc.sals import RangeScaling
from poise.testing import POSTHOC_CHECKS, example_images, parametrize_checks
from poise.types import Outputs
from tests.oracles import peers as plain
from tests.peer_cases import GOLDEN, Case, cases


@parametrize_checks(POSTHOC_CHECKS, {name: posthoc.get(name) for name in posthoc})
def test_steps_conform(make, check) -> None:
    check(make())


def after(logits: torch.Tensor, init_logits: torch.Tensor, texts: torch.Tensor) -> Outputs:
    """Outputs after a method; steps do not read the views' features."""
    return Outputs(torch.empty(0), texts, logits, init_logits)


def plain_view(tuned: torch.Tensor, zero_shot: torch.Tensor) -> Outputs:
    return after(tuned[:, None], zero_shot[:, None], torch.zeros(len(tuned), tuned.shape[1], 2))


@pytest.mark.parametrize("case", cases("sals"), ids=lambda case: case.id)
def test_sals_equals_the_published_numbers(case: Case) -> None:
    tuned, zero_shot = case.inputs["tuned"], case.inputs["zero_shot"]
    logits, expected = RangeScaling()(plain_view(tuned, zero_shot)), case.outputs["logits"]
    flat = expected.isnan().any(-1)  # the published code divides by zero; here the zero-shot logits answer
    torch.testing.assert_close(logits[~flat], expected[~flat], rtol=0, atol=1e-9)
    assert torch.equal(logits[flat], zero_shot[flat])


def test_sals_by_hand() -> None:
    tuned, zero_shot = torch.tensor([[12.0, 9.0, 4.0, 7.5]]), torch.tensor([[8.0, 7.0, 3.0, 5.0]])
    assert RangeScaling()(plain_view(tuned, zero_shot)).tolist() == [[8.0, 6.125, 3.0, 5.1875]]


def described() -> Outputs:
    tensors = load_file(GOLDEN / "peers.safetensors")
    logits = tensors["read.views"][None]
    tuned = 1.7 * logits + torch.tensor([0.5, -0.2, 0.0, 0.1], dtype=torch.float64)
    return after(tuned, logits, tensors["read.text"][None])


def test_cots_equals_the_numbers_of_the_formulas() -> None:
    out = described()
    _, temperature = ConfidenceMatching(0.3).match(out)
    assert temperature.item() == pytest.approx(1.7726740940726189, rel=1e-7)  # by golden section, to about 1e-8
    probs = ConfidenceMatching(0.3)(out).softmax(-1)[0].tolist()
    assert probs == pytest.approx(
        [0.9988659989177328, 2.366600513348051e-09, 0.0011307620992506027, 3.2366164162887683e-06], abs=1e-9
    )
    assert mean_pair_cosine(out.text_features).item() == pytest.approx(0.7158437291335359, abs=1e-12)
    probs = AveragedMatching(0.3)(out).softmax(-1)[0].tolist()
    assert probs == pytest.approx(
        [0.9984936245298702, 2.8353656289669024e-09, 0.001160697038837989, 0.0003456755959263274], abs=1e-9
    )


def test_temperatures_minimise_the_loss() -> None:
    out = example_images(images=12, views=5)
    tuned, confidences = 3 * out.logits, example_images(images=12, views=5, seed=7).logits.softmax(-1).amax(-1)
    found = matching_temperatures(tuned, confidences)
    grid = torch.logspace(-1.301, 1.301, 400, dtype=torch.float64).clamp(0.05, 20).tolist()
    for row, temperature in enumerate(found.tolist()):
        best = min(plain.matching_loss(tuned[row], confidences[row], value) for value in grid)
        assert plain.matching_loss(tuned[row], confidences[row], temperature) <= best + 1e-12


def test_zero_shot_keeps_temperature_one_also_if_saturated() -> None:
    logits = example_images().logits
    for scale in (1.0, 1e6):
        out = after(scale * logits, scale * logits, torch.ones(4, 5, 3, dtype=torch.float64))
        assert ConfidenceMatching().match(out)[1].tolist() == [1.0] * 4


def test_temperatures_have_bounds() -> None:
    logits = torch.tensor([[[50.0, 0.0]]])
    assert matching_temperatures(logits, torch.tensor([[0.5]])).item() == pytest.approx(20)
    assert matching_temperatures(logits / 5000, torch.tensor([[1.0]])).item() == pytest.approx(0.05)


def test_cots_matches_the_views_that_are_confident_after_the_method() -> None:
    """Of two views, one is confident after the method, the other before it."""
    sharp, flat = [4.0, 0.0, 0.0], [0.5, 0.0, 0.1]
    tuned, zero_shot = torch.tensor([[flat, sharp, flat]]), torch.tensor([[flat, flat, sharp]])
    logits, temperatures = ConfidenceMatching(0.4).match(after(tuned, zero_shot, torch.zeros(1, 3, 2)))
    assert logits.tolist() == [[sharp]]
    confidence = torch.tensor(flat).softmax(-1).max()  # that of the same view under the initial prompt
    torch.testing.assert_close((torch.tensor(sharp) / temperatures[0]).softmax(-1).max(), confidence)


def test_cots_leaves_out_the_plain_view_and_needs_another() -> None:
    out = described()
    changed = out.reference_logits.clone()
    changed[:, 0] = 0
    other = after(out.logits, changed, out.text_features)
    assert torch.equal(ConfidenceMatching(0.3)(other), ConfidenceMatching(0.3)(out))
    with pytest.raises(InvalidOptionError, match="2 views or more"):
        ConfidenceMatching()(after(out.logits[:, :1], out.reference_logits[:, :1], out.text_features))
    with pytest.raises(InvalidOptionError, match="fraction of the views"):
        ConfidenceMatching(0.0)
