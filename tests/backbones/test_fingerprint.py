"""A model's fingerprint changes with anything its answers depend on, and with nothing else."""

from __future__ import annotations

import dataclasses
import json
import shutil

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from poise.backbones import fingerprint as code
from poise.backbones.encoder import Encoder
from poise.backbones.fingerprint import fingerprint
from poise.backbones.load import load_model
from poise.backbones.loaders.openclip import wrap
from poise.backbones.loaders.pocket import FOLDER, load_pocket
from poise.backbones.loaders.tiny import load_tiny, tiny_model
from poise.errors import InvalidCalibrationError, InvalidOptionError
from poise.types import Fingerprinted
from tests.backbones.saved import save_clip, save_open_clip, save_siglip

CPU = torch.device("cpu")


def make(kind: str, folder) -> str:
    """Write a small random checkpoint and return its name."""
    if kind in ("pocket", "tiny"):
        return kind
    if kind in ("clip", "siglip"):
        (save_clip if kind == "clip" else save_siglip)(folder)
        return f"transformers:{folder}"
    save_open_clip(kind, folder)
    return f"local-dir:{folder}"


@pytest.fixture(scope="module")
def original(tmp_path_factory):
    """Makes a copy of a checkpoint, and returns its name and its fingerprint, which is computed once for each kind."""
    made = {}

    def copy(kind: str, folder) -> tuple[str, str]:
        if kind not in made:
            source = tmp_path_factory.mktemp(kind)
            made[kind] = source, fingerprint(load_model(make(kind, source), device="cpu"))
        source, known = made[kind]
        shutil.copytree(source, folder, dirs_exist_ok=True)
        return f"{'transformers' if kind in ('clip', 'siglip') else 'local-dir'}:{folder}", known

    return copy


@pytest.mark.parametrize("kind", ["pocket", "tiny", "vit", "rn", "siglip", "clip"])
def test_a_model_has_the_same_fingerprint_each_time_and_in_each_dtype(kind, tmp_path):
    name = make(kind, tmp_path)
    one = load_model(name, device="cpu")
    assert isinstance(one, Fingerprinted)
    assert int(fingerprint(one), 16) >= 0
    assert len(fingerprint(one)) == 32
    assert fingerprint(load_model(name, device="cpu", dtype="float64")) == fingerprint(one)


@pytest.mark.parametrize("dtype", [torch.float16, torch.float64])
def test_float16_is_float32(dtype):
    # `load_model` refuses float16 on a CPU, where no model runs in it; fingerprints need no forward pass.
    assert fingerprint(load_tiny(device=CPU, dtype=dtype)) == fingerprint(load_tiny(device=CPU, dtype=torch.float32))
    assert fingerprint(load_pocket(device=CPU, dtype=dtype)) == fingerprint(load_model("pocket", device="cpu"))


def test_bfloat16_differs():
    encoder = load_tiny(device=CPU, dtype=torch.bfloat16)
    assert fingerprint(encoder) != fingerprint(load_model("tiny", device="cpu"))


def rewrite(path, change) -> None:
    tensors = load_file(path)
    change(tensors)
    save_file(tensors, path)


def nudge(tensors, name) -> None:
    tensors[name].flatten()[-1] += 0.25


@pytest.mark.parametrize(
    ("kind", "tensor"),
    [
        ("vit", "visual.conv1.weight"),
        ("vit", "token_embedding.weight"),
        ("vit", "logit_scale"),
        ("rn", "visual.layer1.0.bn1.running_mean"),  # a buffer
        ("clip", "vision_model.embeddings.class_embedding"),
        ("clip", "text_projection.weight"),
        ("siglip", "text_model.head.weight"),
    ],
)
def test_one_weight(kind, tensor, original, tmp_path):
    name, before = original(kind, tmp_path)
    (file,) = tmp_path.glob("*model.safetensors")
    rewrite(file, lambda tensors: nudge(tensors, tensor))
    assert fingerprint(load_model(name, device="cpu")) != before


@pytest.mark.parametrize("tensor", ["visual.trunk.conv_stem.weight", "ln_final.bias"])
def test_one_weight_of_pocket(tensor, tmp_path):
    for file in FOLDER.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    rewrite(tmp_path / "open_clip_model.safetensors", lambda tensors: nudge(tensors, tensor))
    changed = load_pocket(device=CPU, dtype=torch.float32, folder=tmp_path)
    assert fingerprint(changed) != fingerprint(load_model("pocket", device="cpu"))


@pytest.mark.parametrize(
    "change",
    [
        {"mean": [0.5, 0.4, 0.31]},
        {"std": [0.2, 0.3, 0.41]},
        {"interpolation": "bilinear"},
        {"resize_mode": "shortest"},
    ],
    ids=lambda change: next(iter(change)),
)
def test_one_setting_of_the_preprocessing(change, original, tmp_path):
    name, before = original("vit", tmp_path)
    config = json.loads((tmp_path / "open_clip_config.json").read_text())
    config["preprocess_cfg"].update(change)
    (tmp_path / "open_clip_config.json").write_text(json.dumps(config))
    assert fingerprint(load_model(name, device="cpu")) != before


@pytest.mark.parametrize("change", [("quick_gelu", True), ("heads", 4)], ids=["activation", "heads"])
def test_settings_that_no_weight_shows(change, original, tmp_path):
    name, before = original("vit", tmp_path)
    config = json.loads((tmp_path / "open_clip_config.json").read_text())
    model = config["model_cfg"]
    (model if change[0] == "quick_gelu" else model["text_cfg"]).update([change])
    (tmp_path / "open_clip_config.json").write_text(json.dumps(config))
    assert fingerprint(load_model(name, device="cpu")) != before


def test_one_token_of_the_tokenizer():
    from open_clip.tokenizer import SimpleTokenizer

    def encoder(tokenizer: SimpleTokenizer) -> Encoder:
        return wrap(tiny_model(), tokenizer, {}, name="tiny", device=CPU, dtype=torch.float32)

    plain, other = SimpleTokenizer(), SimpleTokenizer()
    other.encoder = {**other.encoder, "cat</w>": other.encoder["dog</w>"]}
    assert fingerprint(encoder(other)) != fingerprint(encoder(plain))
    assert fingerprint(encoder(plain)) == fingerprint(load_model("tiny", device="cpu"))


def test_the_name_the_device_and_the_batches_do_not_count():
    encoder = load_tiny(device=CPU, dtype=torch.float32)
    before = fingerprint(load_tiny(device=CPU, dtype=torch.float32))
    encoder.name, encoder.chunk = "another", 3
    assert fingerprint(encoder) == before


def test_it_is_computed_once(monkeypatch):
    encoder = load_model("tiny", device="cpu")
    first = fingerprint(encoder)
    monkeypatch.setattr(code, "compute", None)
    assert fingerprint(encoder) == first


def test_it_is_a_hash_of_facts_and_weights_as_they_are():
    encoder = load_model("tiny", device="cpu")
    one = code.hash_weights({"a": torch.tensor([1.0]), "b": torch.tensor([2])})
    assert one == code.hash_weights({"b": torch.tensor([2]), "a": torch.tensor([1.0], dtype=torch.float64)})
    assert one != code.hash_weights({"a": torch.tensor([1.00001]), "b": torch.tensor([2])})
    assert one != code.hash_weights({"a": torch.tensor([[1.0]]), "b": torch.tensor([2])})
    assert one != code.hash_weights({"c": torch.tensor([1.0]), "b": torch.tensor([2])})
    whole = code.compute(encoder, one, b"words", "")
    assert whole != code.compute(encoder, one, b"other words", "")
    encoder.image = dataclasses.replace(encoder.image, crop_offset="floor")
    assert whole != code.compute(encoder, one, b"words", "")


def test_weights_beyond_the_range_of_float16(tmp_path):
    name, found = make("vit", tmp_path), []
    for value in (70_000.0, 80_000.0):
        rewrite(tmp_path / "open_clip_model.safetensors", lambda tensors, to=value: tensors["visual.proj"].fill_(to))
        found.append(load_model(name, device="cpu"))
    assert fingerprint(found[0]) != fingerprint(found[1])
    assert found[0].earlier_fingerprint() == found[1].earlier_fingerprint()  # what was wrong with it


def test_two_words_that_change_places(tmp_path):
    name, file = f"transformers:{tmp_path}", tmp_path / "tokenizer.json"
    save_siglip(tmp_path)
    before = load_model(name, device="cpu")
    content = json.loads(file.read_text())
    words = content["model"]["vocab"]
    one, other = (
        next(at for at, (word, _) in enumerate(words) if word == f"\u2581{text}") for text in ("shark", "white")
    )
    words[one], words[other] = words[other], words[one]
    file.write_text(json.dumps(content))
    after = load_model(name, device="cpu")
    assert before.token_ids(["shark"]) != after.token_ids(["shark"])
    assert fingerprint(before) != fingerprint(after)
    assert before.earlier_fingerprint() == after.earlier_fingerprint()  # what was wrong with it


STORED = "0371439e4f1c0c7e"  # of the model "tiny", by an earlier version


def test_what_earlier_versions_stored_is_still_valid():
    from poise import Classifier

    encoder = load_model("tiny", device="cpu")
    assert fingerprint(encoder, like=STORED) == STORED
    classify = Classifier(["cat", "dog"], model=encoder, method="zero-shot")
    images = list(np.random.default_rng(0).integers(0, 256, (20, 32, 32, 3), np.uint8))
    calibration = classify.calibrate(images, ["cat", "dog"] * 10)
    assert len(calibration.conditions.fingerprint) == 32
    old = dataclasses.replace(calibration.conditions, fingerprint=STORED)
    Classifier(["cat", "dog"], encoder, "zero-shot", calibration=dataclasses.replace(calibration, conditions=old))
    for wrong in ("0" * 16, "0" * 32):
        other = dataclasses.replace(calibration, conditions=dataclasses.replace(old, fingerprint=wrong))
        with pytest.raises(InvalidCalibrationError, match="fingerprint"):
            Classifier(["cat", "dog"], encoder, "zero-shot", calibration=other)


class Foreign:
    name = "foreign"


def test_an_encoder_without_one_says_how_to_add_it():
    with pytest.raises(InvalidOptionError, match=r"'foreign' \(Foreign\) has no fingerprint.*fingerprint\(\)"):
        fingerprint(Foreign())
