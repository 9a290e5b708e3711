from __future__ import annotations

import os
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from torchvision import transforms
from torchvision.transforms import functional as vision
from transformers import CLIPImageProcessor

from poise import triton_support
from poise.errors import InvalidOptionError
from poise.types import ImageSpec
from poise.views import plan_views
from poise.views.batched import make_views_batched
from poise.views.pil.crops import crop_view, make_views
from poise.views.pil.plain import plain_view
from poise.views.pixels import normalise, pixels_of, to_tensor
from poise.views.triton import launch
from tests.oracles import views as oracle

MEAN, STD = (0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711)
SPEC = ImageSpec(64, MEAN, STD)


def _image(width: int, height: int, seed: int = 0) -> Image.Image:
    rng = np.random.default_rng(seed)
    coarse = Image.fromarray(rng.integers(0, 256, (7, 7, 3), dtype=np.uint8)).resize((width, height), 3)
    noise = rng.normal(0, 5, (height, width, 3))
    return Image.fromarray(np.clip(np.asarray(coarse) + noise, 0, 255).astype(np.uint8))


def _levels(difference: torch.Tensor) -> torch.Tensor:
    return (difference * torch.tensor(STD, device=difference.device)[:, None, None] * 255).abs()


@pytest.mark.parametrize("size", [(500, 375), (375, 500), (64, 64), (63, 200), (40, 31), (1, 1), (3, 90)])
@pytest.mark.parametrize("interpolation", ["bicubic", "bilinear"])
def test_plain_view_is_torchvisions_resize_and_centre_crop(size: tuple[int, int], interpolation: str) -> None:
    image = _image(*size)
    mode = transforms.InterpolationMode(interpolation)
    want = transforms.CenterCrop(64)(transforms.Resize(64, mode)(image))
    made = plain_view(image, ImageSpec(64, MEAN, STD, interpolation=interpolation))
    assert made.tobytes() == want.tobytes()


@pytest.mark.parametrize("margin", range(8))
def test_an_odd_margin_is_halved_as_the_models_library_does_it(margin: int) -> None:
    image, upright = _image(64 + margin, 64), _image(64, 64 + margin)
    processor = CLIPImageProcessor(size={"shortest_edge": 64}, crop_size={"height": 64, "width": 64})
    for each in (image, upright):
        theirs = processor(each, return_tensors="pt")["pixel_values"][0]
        ours = replace(SPEC, crop_offset="floor")
        assert _levels(normalise(to_tensor(plain_view(each, ours)), ours) - theirs).max() < 0.01
        torchvisions = transforms.CenterCrop(64)(each)
        assert plain_view(each, SPEC).tobytes() == torchvisions.tobytes()


@pytest.mark.parametrize("offset", ["round", "floor"])
@pytest.mark.parametrize("size", [(67, 64), (64, 71), (90, 61)])
def test_all_view_engines_share_the_offset_of_the_centre_crop(size: tuple[int, int], offset: str) -> None:
    image, spec, plan = _image(*size), replace(SPEC, crop_offset=offset), plan_views(size, views=1)
    reference = make_views(image, spec, plan)[0]
    assert _levels(make_views_batched([image], spec, [plan])[0, 0] - reference).max() < 0.01
    with pytest.raises(InvalidOptionError, match="Accepted: round, floor"):
        make_views(image, replace(SPEC, crop_offset="ceil"), plan)


def test_squash_resizes_both_sides() -> None:
    image = _image(90, 40)
    made = plain_view(image, ImageSpec(64, MEAN, STD, resize="squash"))
    assert made.tobytes() == image.resize((64, 64), Image.Resampling.BICUBIC).tobytes()


def test_a_long_strip_is_cropped_without_resizing_all_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    strip = _image(2, 300)
    whole = np.asarray(plain_view(strip, SPEC)).astype(int)
    monkeypatch.setattr("poise.views.pil.plain.WHOLE_PIXELS", 1000)
    assert np.abs(np.asarray(plain_view(strip, SPEC)) - whole).max() <= 1
    monkeypatch.undo()
    assert plain_view(_image(1, 5000), ImageSpec(224, MEAN, STD)).size == (224, 224)


@pytest.mark.parametrize("name", ["bilinear", "bicubic"])
@pytest.mark.parametrize("size", [(500, 375), (30, 50)])
def test_crops_are_torchvisions_resized_crop(size: tuple[int, int], name: str) -> None:
    image = _image(*size)
    plan = plan_views(size, views=9, key="a")
    for row, (left, top, width, height) in enumerate(plan.boxes.tolist()):
        want = vision.resized_crop(image, top, left, height, width, [64, 64], transforms.InterpolationMode(name))
        want = vision.hflip(want) if plan.flips[row] else want
        assert crop_view(image, plan, row, 64, name).tobytes() == want.tobytes()


def test_views_are_normalised_as_torchvision_does() -> None:
    image = _image(80, 70)
    plan = plan_views(image.size, views=3, key="a")
    pipeline = transforms.Compose([transforms.ToTensor(), transforms.Normalize(MEAN, STD)])
    want = torch.stack([pipeline(plain_view(image, SPEC)), *(pipeline(crop_view(image, plan, r, 64)) for r in (0, 1))])
    assert torch.equal(make_views(image, SPEC, plan), want)


@pytest.mark.parametrize("size", [(300, 200), (40, 60)])
def test_pil_equals_the_float64_formula_to_a_rounding(size: tuple[int, int]) -> None:
    image = _image(*size)
    made = np.asarray(image.resize((64, 64), Image.Resampling.BILINEAR)).astype(float)
    difference = np.abs(made - oracle.resize(np.asarray(image), 64))
    assert difference.max() <= 2
    assert difference.mean() < 0.03


@pytest.mark.parametrize(("augmix", "crops"), [(False, "bilinear"), (True, "bilinear"), (False, "bicubic")])
@pytest.mark.parametrize("size", [(500, 375), (40, 60), (1, 1), (1, 700)])
def test_batched_views_equal_the_pil_views(size: tuple[int, int], augmix: bool, crops: str) -> None:
    image = _image(*size)
    spec = replace(SPEC, crop_interpolation=crops)
    plan = plan_views(size, views=24, key="a", augmix=augmix)
    want = make_views(image, spec, plan)
    made = make_views_batched([image], spec, [plan])[0]
    assert made.shape == want.shape
    torch.testing.assert_close(made[0], want[0])
    assert _levels(made - want).mean() < 0.1


def test_batch_mates_and_kind_of_input_do_not_matter() -> None:
    images = [_image(90, 70, 1), _image(33, 70, 2), _image(64, 64, 3)]
    plans = [plan_views(image.size, views=5, key=str(i), augmix=True) for i, image in enumerate(images)]
    together = make_views_batched(images, SPEC, plans)
    for i, image in enumerate(images):
        assert torch.equal(make_views_batched([image], SPEC, [plans[i]])[0], together[i])
        assert torch.equal(make_views_batched([to_tensor(image)], SPEC, [plans[i]])[0], together[i])
    half = make_views_batched(images, SPEC, plans, dtype=torch.float16)
    assert torch.equal(half, together.half())


@given(st.integers(1, 4096), st.integers(1, 4096), st.integers(0, 10))
@settings(max_examples=12, deadline=None)
def test_any_size_gives_finite_views(width: int, height: int, seed: int) -> None:
    image = Image.new("RGB", (width, height), (seed, 40, 250))
    spec = ImageSpec(16, MEAN, STD)
    plan = plan_views(image.size, views=3, seed=seed, augmix=True)
    views = make_views(image, spec, plan)
    assert views.isfinite().all()
    torch.testing.assert_close(make_views_batched([image], spec, [plan])[0], views, atol=0.02, rtol=0)


def test_wrong_combinations_are_refused() -> None:
    image = _image(20, 20)
    plan, other = plan_views((20, 20), views=3), plan_views((20, 20), views=4)
    with pytest.raises(InvalidOptionError, match="30 x 20"):
        make_views(image, SPEC, plan_views((30, 20), views=3))
    with pytest.raises(InvalidOptionError, match="1 image and 2 plans"):
        make_views_batched([image], SPEC, [plan, plan])
    with pytest.raises(InvalidOptionError, match="differ"):
        make_views_batched([image, image], SPEC, [plan, other])
    with pytest.raises(InvalidOptionError, match="interpolation"):
        make_views(image, ImageSpec(8, MEAN, STD, interpolation="nearest"), plan)
    for make in (lambda spec: make_views(image, spec, plan), lambda spec: make_views_batched([image], spec, [plan])):
        with pytest.raises(InvalidOptionError, match=r"crop_interpolation='lanczos'.*bilinear, bicubic"):
            make(ImageSpec(8, MEAN, STD, crop_interpolation="lanczos"))
    with pytest.raises(InvalidOptionError, match="resize"):
        make_views(image, ImageSpec(8, MEAN, STD, resize="longest"), plan)


@pytest.mark.gpu
@pytest.mark.parametrize(("augmix", "crops"), [(False, "bilinear"), (True, "bilinear"), (False, "bicubic")])
@pytest.mark.parametrize("plain", ["bicubic", "lanczos"])  # the kernels do not have lanczos
def test_views_on_a_gpu_equal_the_pil_views(augmix: bool, crops: str, plain: str) -> None:
    spec = replace(SPEC, crop_interpolation=crops, interpolation=plain)
    images = [_image(w, h) for w, h in ((500, 375), (40, 60), (1, 1), (1, 700), (1300, 900), (70, 70), (9, 9), (5, 8))]
    images += [_image(64, 50), _image(50, 64)]
    plans = [plan_views(image.size, views=20, key=str(i), augmix=augmix) for i, image in enumerate(images)]
    made = make_views_batched(images, spec, plans, "cuda").cpu()
    for image, plan, views in zip(images, plans, made, strict=True):
        difference = _levels(views - make_views(image, spec, plan))
        assert difference.mean() < 0.1
        assert difference[0].max() < 1.01
    tensors = [to_tensor(image).cuda() for image in images]
    assert torch.equal(make_views_batched(tensors, spec, plans, "cuda").cpu(), made)


@pytest.mark.skipif(os.environ.get("TRITON_INTERPRET") != "1" or not triton_support.available, reason="no interpreter")
@pytest.mark.filterwarnings("ignore:.*encountered in.*:RuntimeWarning")
@pytest.mark.parametrize("augmix", [False, True])
def test_kernels_in_the_interpreter_equal_the_pil_views(augmix: bool) -> None:
    spec = replace(SPEC, size=16)
    images = [_image(50, 37), _image(1, 40), Image.new("RGB", (20, 20), (7, 7, 7))]
    plans = [plan_views(image.size, views=3, key=str(i), augmix=augmix) for i, image in enumerate(images)]
    made = torch.empty(3, 3, 3, 16, 16)
    launch.fused_views(images, spec, plans, made)
    for image, plan, views in zip(images, plans, made, strict=True):
        difference = _levels(views - make_views(image, spec, plan))
        assert difference.mean() < 0.1
        assert difference[0].max() < 1.01


def test_the_pixels_of_normalised_views_come_back() -> None:
    pixels = to_tensor(_image(80, 70))
    assert torch.equal(pixels_of(normalise(pixels, SPEC), SPEC), pixels)
