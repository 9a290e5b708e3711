"""Prompts of the image tower, as MaPLe places them, against a plain forward through the model's own blocks."""

from __future__ import annotations

import pytest
import torch
from backbones.saved import save_open_clip
from open_clip.tokenizer import SimpleTokenizer

from poise.backbones import load_model
from poise.backbones.loaders.openclip import wrap
from poise.backbones.loaders.tiny import tiny_model
from poise.errors import InvalidOptionError
from poise.types import Prompt

VIEWS = torch.randn(2, 3, 3, 32, 32, generator=torch.Generator().manual_seed(0)).double()


@pytest.fixture(scope="module")
def model():
    return tiny_model().double().eval().requires_grad_(False)


@pytest.fixture(scope="module")
def encoder():
    return load_model("tiny", device="cpu", dtype="float64")


def prompt(layers: int, images: int = 2) -> Prompt:
    generator = torch.Generator().manual_seed(layers)
    return Prompt(
        torch.zeros(images, 2, 64),
        image_layers=torch.randn(images, layers, 2, 64, generator=generator, dtype=torch.float64).requires_grad_(),
    )


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


@pytest.mark.parametrize("layers", [1, 2])
@pytest.mark.parametrize("images", [1, 2])
def test_equals_the_plain_forward(encoder, model, layers, images):
    given = prompt(layers, images)
    fast = encoder.encode_images(VIEWS, given)
    slow = torch.stack(
        [
            torch.stack([plain(model, view, given.image_layers[min(image, images - 1)]) for view in VIEWS[image]])
            for image in range(2)
        ]
    )
    assert (fast - slow).abs().max() <= 1e-10
    weights = torch.linspace(-1, 1, fast.numel(), dtype=torch.float64).reshape(fast.shape)
    grads = [torch.autograd.grad((each * weights).sum(), given.image_layers)[0] for each in (fast, slow)]
    assert (grads[0] - grads[1]).abs().max() <= 1e-10


def test_chunks_change_nothing(model):
    small = wrap(tiny_model(), SimpleTokenizer(), {}, name="t", device=torch.device("cpu"), dtype=torch.float64)
    small.chunk = 2
    large = load_model("tiny", device="cpu", dtype="float64")
    assert (small.encode_images(VIEWS) - large.encode_images(VIEWS)).abs().max() <= 1e-12
    given = prompt(2)
    assert (small.encode_images(VIEWS, given) - large.encode_images(VIEWS, given)).abs().max() <= 1e-12


def test_a_tower_that_takes_no_prompts(tmp_path):
    save_open_clip("rn", tmp_path)
    encoder = load_model(f"local-dir:{tmp_path}", device="cpu")
    with pytest.raises(InvalidOptionError, match="takes no prompts"):
        encoder.encode_images(torch.zeros(1, 1, 3, 64, 64), prompt(1, 1))


@pytest.mark.parametrize(("layers", "width"), [(3, 64), (2, 32)])
def test_prompts_that_do_not_fit_the_tower(encoder, layers, width):
    given = Prompt(torch.zeros(1, 2, 64), image_layers=torch.zeros(1, layers, 2, width))
    with pytest.raises(InvalidOptionError, match="2 layers of width 64"):
        encoder.encode_images(VIEWS, given)
