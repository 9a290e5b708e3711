"""Prompts of the image tower, as MaPLe places them, against a plain forward through the model's own blocks."""

from __future__ import annotations

import pytest
import torch
from open_clip.tokenizer import SimpleTokenizer

from poise.backbones import load_model
from poise.backbones.loaders.openclip import wrap
from poise.backbones.loaders.tiny import tiny_model
from poise.encoding.prompted_views import PromptedViews, pairs
from poise.errors import InvalidOptionError
from tests.backbones.saved import save_open_clip

VIEWS = torch.randn(2, 3, 3, 32, 32, generator=torch.Generator().manual_seed(0)).double()


@pytest.fixture(scope="module")
def model():
    return tiny_model().double().eval().requires_grad_(False)


@pytest.fixture(scope="module")
def encoder():
    return load_model("tiny", device="cpu", dtype="float64")


def layers_of(count: int, images: int = 2) -> torch.Tensor:
    return torch.randn(images, count, 2, 64, generator=torch.Generator().manual_seed(count), dtype=torch.float64)


def plain(model, view: torch.Tensor, layers: torch.Tensor) -> torch.Tensor:
    visual = model.visual
    patches = visual.conv1(view[None])[0].flatten(1).T
    tokens = torch.cat([visual.class_embedding[None], patches]) + visual.positional_embedding
    x = visual.ln_pre(torch.cat([tokens, layers[0]]))[None]
    for depth, block in enumerate(visual.transformer.resblocks):
        if 1 <= depth < len(layers):
            x = torch.cat([x[:, :-2], layers[depth][None]], 1)
        x = block(x)
    feature = visual.ln_post(x[0, 0]) @ visual.proj
    return feature / feature.norm()


@pytest.mark.parametrize("count", [1, 2])
@pytest.mark.parametrize("images", [1, 2])
@pytest.mark.parametrize("together", [0, 2])
def test_equals_the_plain_forward(encoder, model, count, images, together):
    layers = layers_of(count, images).requires_grad_()
    views = PromptedViews(encoder, views_per_pass=together)
    fast, _ = views.features(VIEWS, layers)
    owner = [min(image, images - 1) for image in range(2) for _ in range(3)]
    slow = torch.stack([plain(model, view, layers[at]) for view, at in zip(VIEWS.flatten(0, 1), owner, strict=True)])
    assert (fast - slow).abs().max() <= 1e-10
    weights = torch.linspace(-1, 1, fast.numel(), dtype=torch.float64).reshape(fast.shape)
    (wanted,) = torch.autograd.grad((slow * weights).sum(), layers)
    found = views.pullback(VIEWS, layers.detach(), pairs(torch.ones(2, 3)), weights, None)  # one row per image
    assert ((found if images == 2 else found.sum(0, keepdim=True)) - wanted).abs().max() <= 1e-10


def test_chunks_change_nothing():
    small = wrap(tiny_model(), SimpleTokenizer(), {}, name="t", device=torch.device("cpu"), dtype=torch.float64)
    small.chunk = 2
    large = load_model("tiny", device="cpu", dtype="float64")
    assert (small.encode_images(VIEWS) - large.encode_images(VIEWS)).abs().max() <= 1e-12


def test_a_tower_that_takes_no_prompts(tmp_path):
    save_open_clip("rn", tmp_path)
    encoder = load_model(f"local-dir:{tmp_path}", device="cpu")
    with pytest.raises(InvalidOptionError, match="takes no prompts"):
        PromptedViews(encoder)


@pytest.mark.parametrize(("count", "width"), [(3, 64), (2, 32)])
def test_prompts_that_do_not_fit_the_tower(encoder, count, width):
    with pytest.raises(InvalidOptionError, match="2 layers of width 64"):
        PromptedViews(encoder).features(VIEWS, torch.zeros(1, count, 2, width))
