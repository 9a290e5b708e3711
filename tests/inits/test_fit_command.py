"""`poise fit` and `poise convert`, end to end on a few drawn images and the tiny model."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file
from typer.testing import CliRunner

from poise import data, methods
from poise.backbones import load_model
from poise.backbones.loaders.tiny import load_tiny
from poise.cli.commands.fit import app, convert_app
from poise.errors import InvalidOptionError, UnknownNameError, UnreadableImageError
from poise.inference.features import TRAINING_CROPS, encode, epoch_crops
from poise.inference.predictor import Predictor
from poise.inits.maple import RECIPES, Coupled
from poise.prompts import files as store
from poise.prompts import tokenise
from poise.tuning import make_tuner
from poise.views import ViewRecipe, plan_views
from poise.views.pil.crops import make_views

LABELS = ["cat", "dog", "fish"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    root = tmp_path_factory.mktemp("images")
    generator = np.random.default_rng(0)
    for label in LABELS:
        (root / label).mkdir()
        for number in range(2):
            pixels = generator.integers(0, 255, (40, 48, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(root / label / f"{number}.png")
    return root


def run(*words: object, into=app) -> str:
    done = CliRunner().invoke(into, [str(word) for word in words])
    assert done.exit_code == 0, (done.output, done.exception)
    return done.output


def common(folder, out):
    return ("--dataset", f"folder:{folder}", "--out", out, "--model", "tiny", "--device", "cpu", "--dtype", "float32")


def test_coop(folder, tmp_path) -> None:
    out = tmp_path / "coop.safetensors"
    words = (*common(folder, out), "--tokens", 4, "--epochs", 2, "--augment", 2, "--cache", tmp_path / "kept")
    assert "coop for tiny, context [4, 64]" in run("coop", *words)
    assert store.load(out).facts.template == "X X X X {}."
    (kept,) = (tmp_path / "kept").iterdir()
    assert load_file(kept)["features"].shape == (6, 3, 32)
    before = store.load(out).tensors["context"]
    run("coop", *words)
    assert torch.equal(store.load(out).tensors["context"], before)


def test_cached_features_are_those_of_the_weights(folder, tmp_path) -> None:
    images, kept = data.open_dataset(f"folder:{folder}"), tmp_path / "kept"
    encoder, other = (load_tiny(device=torch.device("cpu"), dtype=torch.float32, seed=seed) for seed in (0, 1))
    assert encoder.name == other.name
    for model in (encoder, other, encoder):
        found = encode(images, model, ViewRecipe(1), cache=kept).features
        assert torch.equal(found, encode(images, model, ViewRecipe(1)).features)
    assert len(list(kept.iterdir())) == 2


def test_cocoop(folder, tmp_path) -> None:
    out = tmp_path / "cocoop.safetensors"
    run("cocoop", *common(folder, out), "--epochs", 1, "--augment", 0, "--batch-size", 3)
    assert store.load(out).facts.kind == "cocoop"


def test_maple_statistics_and_alignment(folder, tmp_path) -> None:
    out, noted = tmp_path / "maple.safetensors", tmp_path / "stats.safetensors"
    run("maple", *common(folder, out), "--epochs", 1, "--depth", 2)
    shown = run("stats", *common(folder, noted), "--init", out)
    assert "[2, 19, 64] (layers, tokens, width) over 6 images" in shown
    encoder = load_model("tiny", device="cpu", dtype="float32")
    images = data.open_dataset(f"folder:{folder}")
    views = torch.stack([_plain(item, encoder) for item in images.items])
    coupled = Coupled.of(store.load(out), encoder)
    layers = coupled.image_layers().expand(len(views), -1, -1, -1)
    states = encoder.prompted_tower.with_tokens(views, layers, 2)[1].double()
    found = load_file(noted)
    torch.testing.assert_close(found["mean"].double(), states.mean(0), atol=1e-5, rtol=0)
    torch.testing.assert_close(found["variance"].double(), states.var(0, correction=0), atol=1e-5, rtol=0)
    tuner = make_tuner(
        encoder,
        tokenise(encoder, LABELS),
        [methods.get("tpt", selection=0.5)],
        init=str(out),
        options={"statistics": str(noted)},
    )
    answer = tuner.predict(views[:1].expand(4, -1, -1, -1)[None])["tpt"]
    assert answer.probs.isfinite().all()
    assert not answer.fallback.any()


def test_recipes_of_maple_are_the_published_ones(folder, tmp_path) -> None:
    known = {name: (each.recipe.epochs, each.recipe.lr, each.depth) for name, each in RECIPES.items()}
    assert known == {"few-shot": (5, 0.0035, 9), "transfer": (2, 0.0026, 3)}
    assert {each.recipe.batch_size for each in RECIPES.values()} == {4}
    words = ["maple", *map(str, common(folder, tmp_path / "maple.safetensors"))]
    asked = CliRunner().invoke(app, [*words, "--recipe", "transfre"])
    assert isinstance(asked.exception, UnknownNameError)
    too_deep = CliRunner().invoke(app, [*words, "--recipe", "few-shot"])  # as published for 12 layers
    assert isinstance(too_deep.exception, InvalidOptionError)
    assert "depth is 9" in str(too_deep.exception)


def _plain(item, encoder):
    from poise.images import read_image

    picture = read_image(item.source())
    return make_views(picture.image, encoder.image, plan_views(picture.image.size, views=1, key=picture.key))[0]


def test_fpp_of_a_list_of_labels(tmp_path) -> None:
    labels, out = tmp_path / "labels.txt", tmp_path / "fpp.safetensors"
    labels.write_text("\n".join(LABELS) + "\n")
    shown = run("fpp", "--labels-file", labels, "--out", out, "--model", "tiny", "--steps", 3, "--device", "cpu")
    assert "sharpness" in shown
    assert store.load(out).facts.kind == "fpp"


def test_convert(tmp_path) -> None:
    torch.save({"state_dict": {"ctx": torch.randn(4, 64)}}, tmp_path / "in.pth.tar")
    shown = run("coop", tmp_path / "in.pth.tar", tmp_path / "out.safetensors", "--model", "tiny", into=convert_app)
    assert "context [4, 64]" in shown
    assert store.load(tmp_path / "out.safetensors").facts.model == "tiny"
    state = {"ctx": torch.randn(2, 64), "proj.weight": torch.randn(64, 64), "proj.bias": torch.randn(64)}
    torch.save({"state_dict": state}, tmp_path / "maple.pth.tar")
    run("maple", tmp_path / "maple.pth.tar", tmp_path / "m.safetensors", "--model", "tiny", into=convert_app)
    coupled = Coupled.of(store.load(tmp_path / "m.safetensors"), load_model("tiny", device="cpu"))
    assert coupled.deep.shape == (1, 0, 2, 64)


def test_an_epochs_crop_is_that_view(folder) -> None:
    encoder, images = load_model("tiny", device="cpu"), data.open_dataset(f"folder:{folder}")
    features = encode(images, encoder, ViewRecipe(4, 3, crops=TRAINING_CROPS)).features
    crop = epoch_crops(images, encoder, seed=3)(2, torch.tensor([1, 4]))
    torch.testing.assert_close(encoder.encode_images(crop[:, None])[:, 0], features[[1, 4], 3])


@pytest.mark.parametrize(("augmix", "crops"), [(True, "bilinear"), (False, "bicubic")])
def test_images_cut_in_batch_give_the_same_features(folder, augmix, crops, monkeypatch) -> None:
    encoder, images = load_model("tiny", device="cpu"), data.open_dataset(f"folder:{folder}")
    plain = encode(images, encoder, ViewRecipe(5, 2, augmix, crops, engine="pil")).features
    monkeypatch.setattr("poise.inference.features.Predictor", partial(Predictor, workers=1, processes=True))
    batched = encode(images, encoder, ViewRecipe(5, 2, augmix, crops)).features
    torch.testing.assert_close(batched, plain, atol=2e-3, rtol=0)


def test_an_image_that_cannot_be_read_ends_the_fit_by_name(folder, tmp_path) -> None:
    (tmp_path / "cat").mkdir()
    (tmp_path / "cat" / "broken.png").write_bytes(b"no picture")
    encoder, images = load_model("tiny", device="cpu"), data.open_dataset(f"folder:{tmp_path}")
    with pytest.raises(UnreadableImageError, match=r"cat/broken.png.*needed for fitting"):
        encode(images, encoder, ViewRecipe(1))


def test_a_folder_has_no_splits_and_the_command_says_so(folder, tmp_path) -> None:
    words = (*common(folder, tmp_path / "coop.safetensors"), "--epochs", 1, "--augment", 0, "--shots", 1)
    assert "has no splits: images are taken from all of it, so evaluate on other images" in run("coop", *words)
    assert len(data.open_dataset(f"folder:{folder}", shots=1)) == len(LABELS)
    with pytest.raises(InvalidOptionError, match="has no split 'train'"):
        data.open_dataset(f"folder:{folder}", split="train")


def test_wrong_options_are_refused_before_the_model_is_loaded(folder, tmp_path) -> None:
    out = tmp_path / "prompt.safetensors"
    negative = CliRunner().invoke(app, ["coop", "--dataset", f"folder:{folder}", "--out", str(out), "--shots", "-2"])
    assert negative.exit_code == 2
    assert "--shots" in negative.output
    unlabelled = CliRunner().invoke(app, ["fpp", "--out", str(out), "--model", "tiny"])
    assert "Give either --dataset NAME or --labels-file FILE" in str(unlabelled.exception)
