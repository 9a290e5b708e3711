"""Kernels of transformer blocks against torch in float64; run in Triton's interpreter where there is no GPU."""

from __future__ import annotations

import os

import pytest
import torch
from open_clip.model import CLIP
from torch import Tensor, nn

from poise import triton_support
from poise.backbones import load_model
from poise.backbones.block import Mlp
from poise.backbones.encoder import Encoder
from poise.backbones.loaders.openclip import causal_tower, class_token_tower
from poise.backbones.loaders.tiny import CONFIG, tiny_model
from poise.backbones.text import packed
from poise.backbones.text.shared_prefix import SharedPrefix
from poise.backbones.triton import block_kernels, fused_block
from poise.encoding.class_texts import ClassTexts
from poise.prompts import init_prompt, tokenise
from poise.types import ClassTokens, Prompt
from tests.oracles.text import text_features

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
SLACK = 300 if DEVICE.type == "cuda" else 1  # a GPU multiplies float32 in TF32, which has 13 bits fewer
LABELS = ["cat", "great white shark", "a very long name for a thing that has no name", *(f"no {i}" for i in range(24))]

pytestmark = [
    pytest.mark.skipif(not triton_support.available, reason="no Triton for this platform"),
    pytest.mark.skipif(DEVICE.type == "cpu" and os.environ.get("TRITON_INTERPRET") != "1", reason="no GPU"),
    pytest.mark.filterwarnings("ignore:.*encountered in.*:RuntimeWarning"),  # raised by NumPy in the interpreter
]


def _tiny(*, quick: bool = False) -> CLIP:
    if quick:  # as `tiny` is
        return tiny_model().requires_grad_(False)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return CLIP(**{**CONFIG, "quick_gelu": False}).eval().requires_grad_(False)  # type: ignore[arg-type]


@pytest.mark.parametrize(("quick", "kind"), [(False, block_kernels.GELU), (True, block_kernels.QUICK_GELU)])
def test_both_activations_are_tested_below(quick: bool, kind: int) -> None:
    for block in causal_tower(_tiny(quick=quick)).blocks:
        assert isinstance(block.mlp, Mlp)
        assert fused_block.activation_kind(block.mlp) == kind


@pytest.fixture
def any_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """Use the kernels also where torch is used otherwise: in single precision and for tensors on a CPU."""
    monkeypatch.setattr(fused_block, "usable", lambda blocks, x: not torch.is_grad_enabled())


@pytest.mark.parametrize("kind", [block_kernels.GELU, block_kernels.QUICK_GELU])
def test_activations_of_every_half_precision_number(kind: int) -> None:
    x = torch.arange(2**16, dtype=torch.int32).to(torch.int16).view(torch.float16)
    x = x[x.isfinite()].to(DEVICE)
    wide = x.double()
    expected = wide * (
        torch.special.erfc(-(wide / 2**0.5)) / 2 if kind == block_kernels.GELU else (1.702 * wide).sigmoid()
    )
    actual = fused_block.activate(x.clone(), kind).double()
    allowed = (expected.half().double() - expected).abs() + 1e-6  # rounding, plus the error of the approximation
    assert ((actual - expected).abs() <= allowed).all()


def test_the_residual_stream_accumulates_updates() -> None:
    norm, first, last = nn.LayerNorm(24), nn.Linear(24, 40), nn.Linear(40, 24)
    generator = torch.Generator().manual_seed(0)
    for part in (norm, first, last):
        for weight in part.parameters():
            nn.init.normal_(weight, generator=generator).requires_grad_(False)
        part.to(DEVICE)
    x, change = (torch.randn(3, 5, width, generator=generator).to(DEVICE) for width in (24, 40))
    stream = fused_block.ResidualStream(x.clone())
    torch.testing.assert_close(stream.normed(norm), norm(x), atol=1e-5, rtol=0)
    stream.add(change, last)
    stream.add(change, last)
    expected = x + 2 * last(change)
    torch.testing.assert_close(stream.normed(norm), norm(expected), atol=1e-5, rtol=0)
    torch.testing.assert_close(stream.value(slice(1), slice(2)), expected[:1, :2], atol=1e-5, rtol=0)


@pytest.mark.usefixtures("any_device")
@pytest.mark.parametrize("quick", [False, True])
def test_the_image_tower_in_kernels_equals_its_own_forward(quick: bool) -> None:
    visual = _tiny(quick=quick).visual.to(DEVICE)
    images = torch.randn(2, 3, 32, 32, generator=torch.Generator().manual_seed(0)).to(DEVICE)
    tower = class_token_tower(visual)
    assert tower is not None
    assert all(map(fused_block.is_supported, tower.blocks))
    with torch.no_grad():
        torch.testing.assert_close(tower(images), visual(images), atol=1e-4, rtol=1e-4)


def _set(model: CLIP, labels: list[str]) -> tuple[SharedPrefix, ClassTokens, Tensor]:
    encoder = load_model("tiny", device="cpu", dtype="float32")
    classes = tokenise(encoder, labels)
    return SharedPrefix(causal_tower(model.to(DEVICE)), tiled=True), classes, init_prompt(encoder, classes).context


@pytest.mark.usefixtures("any_device")
def test_texts_in_kernels_equal_the_plain_forward(monkeypatch: pytest.MonkeyPatch) -> None:
    model, ran = _tiny(quick=True), []
    texts, classes, context = _set(model, LABELS)
    run = packed.run
    monkeypatch.setattr(packed, "run", lambda *given: ran.append(run(*given)) or ran[-1])
    prompt = Prompt(context + 0.1 * torch.randn(2, 4, 64, generator=torch.Generator().manual_seed(0)))
    with torch.no_grad():
        actual = nn.functional.normalize(texts(classes, prompt.map(lambda part: part.to(DEVICE))), dim=-1)
        expected = text_features(model.cpu().double(), classes, prompt.map(Tensor.double))
    assert ran
    torch.testing.assert_close(actual.cpu().double(), expected, atol=2e-5 * SLACK, rtol=0)


@pytest.mark.usefixtures("any_device")
@pytest.mark.parametrize(("quick", "apart"), [(True, False), (False, True)])
def test_gradients_of_many_images_equal_autograds(quick: bool, apart: bool) -> None:
    model = _tiny(quick=quick)
    texts, classes, context = _set(model, LABELS)
    cotangent = torch.randn(2, len(classes), 32, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    if apart:  # one prompt per image
        context = context + 0.1 * torch.randn(2, 4, 64, generator=torch.Generator().manual_seed(1))
    pull = texts.pullback_at(classes, Prompt(context.to(DEVICE)), lambda x: nn.functional.normalize(x, dim=-1))
    assert pull is not None
    actual = pull(cotangent.float().to(DEVICE)).cpu().double()
    leaf = context.double().expand(2, -1, -1).clone().requires_grad_()
    (expected,) = torch.autograd.grad(text_features(model.cpu().double(), classes, Prompt(leaf)), leaf, cotangent)
    assert (actual - expected).norm() < 1e-5 * SLACK * expected.norm()


@pytest.mark.usefixtures("any_device")
def test_half_precision_stays_within_its_rounding() -> None:
    """The kernels are used in half precision; the other tests use single precision, to tell errors from rounding."""
    model = _tiny(quick=True).half()
    texts, classes, context = _set(model, LABELS[:8])
    context = (context + 0.1 * torch.randn(2, 4, 64, generator=torch.Generator().manual_seed(1))).half()
    cotangent = torch.randn(2, len(classes), 32, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    prompt, leaf = Prompt(context.to(DEVICE)), context.double().requires_grad_()
    with torch.no_grad():
        actual = nn.functional.normalize(texts(classes, prompt).float(), dim=-1).cpu().double()
    pull = texts.pullback_at(classes, prompt, lambda x: nn.functional.normalize(x.float(), dim=-1))
    assert pull is not None
    gradient = pull(cotangent.float().to(DEVICE)).cpu().double()
    expected = text_features(model.cpu().double(), classes, Prompt(leaf))
    (reference,) = torch.autograd.grad(expected, leaf, cotangent)
    torch.testing.assert_close(actual, expected.detach(), atol=3e-3, rtol=0)
    assert (gradient - reference).norm() < 1e-2 * reference.norm()


@pytest.mark.usefixtures("any_device")
def test_class_texts_use_them_chunk_by_chunk(monkeypatch: pytest.MonkeyPatch) -> None:
    encoder = load_model("tiny", device=str(DEVICE), dtype="float32")
    classes = tokenise(encoder, LABELS[:4])
    start = init_prompt(encoder, classes)
    cotangent = torch.randn(2, 4, 32, generator=torch.Generator().manual_seed(0)).to(DEVICE)
    expected = ClassTexts(encoder, classes, start)
    monkeypatch.setattr(expected, "_fast_encoder", None)  # autograd's graph
    assert isinstance(encoder, Encoder)
    encoder.text.forward.tiled = True  # type: ignore[attr-defined]
    actual = ClassTexts(encoder, classes, start, tokens_per_pass=8)
    assert len(list(actual.chunks(1))) > 1
    torch.testing.assert_close(
        actual.pullback_to_init(cotangent).context,
        expected.pullback_to_init(cotangent).context,
        atol=1e-4 * SLACK,
        rtol=1e-3,
    )


def test_other_blocks_are_left_to_torch() -> None:
    plain = causal_tower(_tiny()).blocks[0]
    assert fused_block.is_supported(plain)
    scaled = {**vars(plain), "scale1": nn.Identity()}
    assert not fused_block.is_supported(type(plain)(**scaled))
    assert isinstance(plain.mlp, Mlp)
    tanh = Mlp(plain.mlp.first, nn.GELU(approximate="tanh"), plain.mlp.last)
    assert not fused_block.is_supported(type(plain)(**{**vars(plain), "mlp": tanh}))
    assert not fused_block.usable((plain,), torch.zeros(2, 64))
