"""Memory that runs out on one image costs that image's row."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from PIL import Image

from poise import methods
from poise.backbones import load_model
from poise.errors import is_out_of_memory
from poise.images import LoadedImage
from poise.inference.predictor import Predictor
from poise.prompts import tokenise
from poise.results import Failure
from poise.tuning import make_tuner
from poise.views import ViewRecipe

MARK = (1, 2, 3)  # the colour of the large image
ERRORS = {
    "python": MemoryError(),
    "gpu": torch.OutOfMemoryError("CUDA out of memory."),
    "cpu": RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried to allocate 9 bytes."),
}


@pytest.fixture(scope="module")
def encoder():
    return load_model("tiny", device="cpu")


@pytest.fixture
def images():
    noise = np.random.default_rng(0).integers(0, 256, (5, 40, 40, 3), dtype=np.uint8)
    noise[2] = MARK
    return list(noise)


def made(encoder, **options):
    tuner = make_tuner(encoder, tokenise(encoder, ["cat", "dog"]), [methods.get("tpt")])
    return Predictor(encoder, tuner, ViewRecipe(views=3), batch_size=4, **options)


def check(predictor, images, expected):
    outcomes = list(predictor.run(images))
    assert [isinstance(outcome, Failure) for outcome in outcomes] == [False, False, True, False, False]
    assert outcomes[2].code == "out_of_memory"
    for at in (0, 1, 3, 4):
        np.testing.assert_allclose(outcomes[at]["tpt"].probs, expected[at]["tpt"].probs, atol=1e-5)


def once(work, error, is_large):
    """``work``, which fails wherever the large image takes part."""

    def limited(*arguments, **options):
        if is_large(*arguments):
            raise error
        return work(*arguments, **options)

    return limited


@pytest.mark.parametrize("kind", ERRORS)
@pytest.mark.parametrize("stage", ["decode", "cut", "views", "encode", "tune"])
def test_one_image_that_does_not_fit_costs_one_row(encoder, images, monkeypatch, stage, kind) -> None:
    if stage == "decode" and kind != "python":
        pytest.skip("decoding does not use torch")
    expected = list(made(encoder).run(images))
    predictor = made(encoder)
    preparer = predictor.preparer
    views = preparer.views([preparer.prepare(images[2], predictor.recipe, 0)], predictor.recipe)
    plain = encoder.encode_images(views)[0, 0]

    def is_marked(some, _):
        return any(tuple(image.pixels[0, 0]) == MARK for image in some if image.pixels.size)

    owner, name, is_large = {
        "decode": (Image.Image, "tobytes", lambda image, *_: image.getpixel((0, 0)) == MARK),
        "cut": (preparer, "_cut", is_marked),
        "views": (preparer, "views", is_marked),
        "encode": (encoder, "encode_images", lambda batch: any(torch.equal(row[0], views[0, 0]) for row in batch)),
        "tune": (
            predictor.tuner,
            "predict",
            lambda batch: any(torch.allclose(row[0], plain, atol=1e-5) for row in batch),
        ),
    }[stage]
    monkeypatch.setattr(owner, name, once(getattr(owner, name), ERRORS[kind], is_large))
    check(predictor, images, expected)


def test_other_errors_are_not_taken_for_memory(encoder, images, monkeypatch) -> None:
    predictor = made(encoder)

    def broken(*_):
        raise RuntimeError("a bug")

    monkeypatch.setattr(predictor.tuner, "predict", broken)
    with pytest.raises(RuntimeError, match="a bug"):
        list(predictor.run(images))
    assert not is_out_of_memory(RuntimeError("a bug"))
    assert not is_out_of_memory(OSError("not enough memory"))


def test_a_loaded_image_is_not_read_again_from_its_file(encoder, images, monkeypatch) -> None:
    """Images that do not fit together are prepared again one by one, from whatever source they have."""
    from poise.images import read_image

    loaded: list[LoadedImage] = [read_image(image) for image in images]
    predictor = made(encoder)
    expected = list(made(encoder).run(loaded))
    work, sizes = predictor.tuner.predict, []

    def limited(batch):
        sizes.append(len(batch))
        if len(batch) > 1:
            raise MemoryError
        return work(batch)

    monkeypatch.setattr(predictor.tuner, "predict", limited)
    for outcome, other in zip(predictor.run(loaded), expected, strict=True):
        np.testing.assert_allclose(outcome["tpt"].probs, other["tpt"].probs, atol=1e-5)
    assert sizes == [4, 2, 1, 1, 2, 1, 1, 1]
