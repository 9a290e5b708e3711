"""The float8 image tower against wider precision; kernels run in Triton's interpreter where there is no GPU."""

from __future__ import annotations

import os
from dataclasses import replace

import pytest
import torch
from open_clip.model import CLIP
from torch import Tensor, nn

from poise import triton_support
from poise.backbones import load_model
from poise.backbones.fingerprint import fingerprint
from poise.backbones.loaders.openclip import class_token_tower
from poise.backbones.loaders.tiny import CONFIG, load_tiny
from poise.backbones.triton import float8_block
from poise.backbones.triton.float8_block import Float8Block, Float8Rows, Float8Stream, activated
from poise.errors import InvalidOptionError

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
kernels = pytest.mark.skipif(
    not triton_support.available or (DEVICE.type == "cpu" and os.environ.get("TRITON_INTERPRET") != "1"),
    reason="no GPU and no interpreter",
)


def _random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(DEVICE)


@pytest.fixture
def wide_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let kernels in the interpreter write float32 rows: it converts some numbers to float8 wrongly (127.9 to 64)."""
    if DEVICE.type == "cpu":
        monkeypatch.setattr(float8_block, "_FLOAT8", torch.float32)


def _assert_quantised(rows: Float8Rows, exact: Tensor, *, atol: float = 1e-5) -> None:
    """Rows have their own scale, and each number is within half a float8 step of the exact one (at most a 16th)."""
    exact = exact.double()
    largest = exact.abs().amax(1, keepdim=True)
    torch.testing.assert_close(rows.scales.double(), largest / 448, rtol=1e-3, atol=1e-7)
    values = rows.values.float().double() * rows.scales.double()
    half_step = torch.maximum(exact.abs() / 16, largest / 448 * 2**-10)
    if rows.values.dtype == torch.float32:
        half_step = torch.zeros_like(exact)
    assert ((values - exact).abs() <= 1.01 * half_step + atol * largest).all()


def _block(*, quick: bool) -> Float8Block:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = CLIP(**{**CONFIG, "quick_gelu": quick}).requires_grad_(False).to(DEVICE)  # type: ignore[arg-type]
    tower = class_token_tower(model.visual)
    assert tower is not None
    return Float8Block.of(tower.blocks[0])


def test_rows_are_quantised_with_their_own_scale() -> None:
    matrix = _random(5, 32) * torch.tensor([1e-3, 1.0, 1e3, 0.0, 7.0], device=DEVICE)[:, None]
    rows = Float8Rows.of(matrix)
    _assert_quantised(rows, matrix)
    assert (rows.values[3].float() == 0).all()


def test_products_are_those_of_the_quantised_matrices() -> None:
    left, right, bias = Float8Rows.of(_random(16, 32)), Float8Rows.of(_random(48, 32, seed=1)), _random(48, seed=2)
    exact = [rows.values.double() * rows.scales.double() for rows in (left, right)]
    expected = exact[0] @ exact[1].T + bias.bfloat16().double()
    actual = left.times(right, bias.bfloat16()).double()
    assert (actual - expected).abs().max() < 0.02 * expected.abs().max()  # bfloat16, and float8's fast accumulation


@kernels
@pytest.mark.usefixtures("wide_rows")
def test_the_stream_is_normed_and_updated() -> None:
    norm = nn.LayerNorm(24).to(DEVICE).requires_grad_(False)
    nn.init.normal_(norm.weight)
    x, update, bias = _random(3, 5, 24), _random(15, 24, seed=1), _random(24, seed=2)
    stream = Float8Stream(x.clone())
    _assert_quantised(stream.normed(norm), norm(x).flatten(0, 1))
    stream.update = update, bias
    expected = x + update.view_as(x) + bias
    _assert_quantised(stream.normed(norm), norm(expected).flatten(0, 1))
    stream.update = update, bias
    first, normed = stream.finish(norm)
    expected = expected + update.view_as(x) + bias
    torch.testing.assert_close(first, expected[:, :1], atol=1e-5, rtol=0)
    torch.testing.assert_close(normed, norm(expected), atol=1e-4, rtol=0)


@kernels
@pytest.mark.usefixtures("wide_rows")
@pytest.mark.parametrize("quick", [False, True])
@pytest.mark.parametrize("width", [24, 64, 96])
def test_activations(quick: bool, width: int) -> None:
    hidden, bias = 3 * _random(7, width), _random(width, seed=1)
    block = replace(_block(quick=quick), first_bias=bias)
    wide = (hidden + bias).double()
    exact = wide * (1.702 * wide).sigmoid() if quick else nn.functional.gelu(wide)
    _assert_quantised(activated(hidden, block), exact, atol=3e-5)


def _plain_times(left: Float8Rows, right: Float8Rows, bias: Tensor | None = None) -> Tensor:
    """Round both factors to float8, and multiply them in float32."""
    exact = [rows.values.to(torch.float8_e4m3fn).float() * rows.scales for rows in (left, right)]
    return (exact[0] @ exact[1].T + (0 if bias is None else bias)).bfloat16()


@kernels
@pytest.mark.usefixtures("wide_rows")
@pytest.mark.parametrize("quick", [False, True])
def test_the_tower_is_near_the_exact_one(quick: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if DEVICE.type == "cpu":
        monkeypatch.setattr(Float8Rows, "times", _plain_times)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = CLIP(**{**CONFIG, "quick_gelu": quick}).requires_grad_(False)  # type: ignore[arg-type]
    images = _random(4, 3, 32, 32)
    expected = model.to(DEVICE).double().visual(images.double())
    tower = class_token_tower(model.float().visual)
    assert tower is not None
    assert tower.can_use_float8()
    with torch.no_grad():
        cosine = nn.functional.cosine_similarity(tower.in_float8()(images).double(), expected)
    assert cosine.min() > 0.99


def test_float8_is_refused_where_it_does_not_work() -> None:
    with pytest.raises(InvalidOptionError, match=r"compute capability 8\.9"):
        load_model("tiny", device="cpu", dtype="float8")
    with pytest.raises(InvalidOptionError, match="can't run in float8"):
        load_model("pocket", device="cpu").use_float8()  # type: ignore[attr-defined]


def test_a_float8_model_has_another_fingerprint() -> None:
    plain, eight = (load_tiny(device=torch.device("cpu"), dtype=torch.float32) for _ in range(2))
    eight.use_float8()
    assert fingerprint(plain) != fingerprint(eight)


@pytest.mark.gpu
def test_float8_on_a_gpu() -> None:
    if torch.cuda.get_device_capability() < (8, 9):
        pytest.skip("this GPU has no float8 products")
    views = _random(2, 8, 3, 32, 32)
    features = [load_model("tiny", device="cuda", dtype=dtype).encode_images(views) for dtype in ("float32", "float8")]
    assert (features[0] * features[1]).sum(-1).min() > 0.99
