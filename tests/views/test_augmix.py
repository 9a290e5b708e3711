from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.numpy import load_file

from poise.types import ImageSpec
from poise.views import plan_views
from poise.views.magnitudes import OPERATIONS
from poise.views.pil.augmix import apply_operation, augmix_pixels, augmix_view
from poise.views.pil.crops import crop_view
from poise.views.pixels import normalise
from tests.oracles import views as oracle

GOLDEN = Path(__file__).parents[1] / "golden" / "augmix.npz"
VECTORS = Path(__file__).parents[3] / "shared" / "vectors"
SPEC = ImageSpec(32, (0.48, 0.46, 0.41), (0.27, 0.26, 0.28))


def _golden() -> dict[str, np.ndarray]:
    with np.load(GOLDEN) as stored:
        return dict(stored)


def _check_case(name: str, image: np.ndarray, want: np.ndarray) -> None:
    """The published code decides a shift's direction from another random stream than the recorded draw, so a shift
    must equal the stored image in one of the two directions; other operations must equal it for the recorded draw."""
    operation, level, draw = name.split("/")
    strength = float(level.removeprefix("level"))
    sign = -1.0 if float(draw.removeprefix("draw")) > 0.5 else 1.0
    signs = (1.0, -1.0) if operation.startswith("translate") else (sign,)
    made = [np.asarray(apply_operation(Image.fromarray(image), operation, strength, s)) for s in signs]
    assert any(np.array_equal(one, want) for one in made)


@pytest.mark.parametrize("name", sorted(set(_golden()) - {"input"}))
def test_an_operation_equals_the_published_image(name: str) -> None:
    golden = _golden()
    _check_case(name, golden["input"], golden[name])


@pytest.mark.data
@pytest.mark.skipif(not VECTORS.exists(), reason="the full set of golden images is not beside the repository")
def test_every_published_image_is_equalled() -> None:
    images = load_file(VECTORS / "augmix.safetensors")
    cases = json.loads((VECTORS / "augmix.json").read_text())["cases"]
    assert len(cases) == 90
    for case in cases:
        _check_case(case["name"], images["input"], images[case["name"]])


def _image(side: int, seed: int = 0) -> np.ndarray:
    rng = np.random.default_rng(seed)
    coarse = Image.fromarray(rng.integers(30, 220, (5, 5, 3), dtype=np.uint8)).resize((side, side), 3)
    return np.asarray(coarse)


@pytest.mark.parametrize("level", [0.1, 0.5, 0.99])
@pytest.mark.parametrize("sign", [1.0, -1.0])
@pytest.mark.parametrize("name", OPERATIONS)
def test_pil_and_the_oracle_agree(name: str, level: float, sign: float) -> None:
    image = _image(48)
    side = len(image)
    want = {
        "autocontrast": lambda: np.stack([oracle.autocontrast(image[..., c]) for c in range(3)], -1),
        "equalize": lambda: np.stack([oracle.equalize(image[..., c]) for c in range(3)], -1),
        "posterize": lambda: image & 0xF0,
        "solarize": lambda: np.where(image < 256 - int(level * 25.6), image, 255 - image),
        "rotate": lambda: oracle.warp(image, oracle.rotation(sign * int(level * 3), side)),
        "shear_x": lambda: oracle.warp(image, (1, sign * level * 0.3 / 10, 0, 0, 1, 0)),
        "shear_y": lambda: oracle.warp(image, (1, 0, 0, sign * level * 0.3 / 10, 1, 0)),
        "translate_x": lambda: oracle.warp(image, (1, 0, sign * int(level * side / 30), 0, 1, 0)),
        "translate_y": lambda: oracle.warp(image, (1, 0, 0, 0, 1, sign * int(level * side / 30))),
    }[name]()
    made = np.asarray(apply_operation(Image.fromarray(image), name, level, sign))
    np.testing.assert_array_equal(made, want)


@pytest.mark.parametrize("value", [0, 7, 255])
def test_constant_images_pass_through_the_lookups(value: int) -> None:
    image = Image.new("RGB", (8, 8), (value, value, value))
    for name in ("autocontrast", "equalize"):
        assert apply_operation(image, name, 0.5).tobytes() == image.tobytes()


def test_mixing_before_and_after_normalisation_is_the_same() -> None:
    image = Image.fromarray(_image(60))
    plan = plan_views(image.size, views=5, key="a", augmix=True)
    assert plan.augmix is not None
    for row in range(4):
        crop = crop_view(image, plan, row, SPEC.size)
        view = augmix_view(crop, SPEC, plan.augmix, row)
        torch.testing.assert_close(normalise(augmix_pixels(crop, plan.augmix, row), SPEC), view, atol=2e-6, rtol=0)
