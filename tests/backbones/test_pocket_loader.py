"""The light loader gives open_clip's own features for any folder of pocket's shape."""

from __future__ import annotations

import hashlib
import json
import math
from pathlib import Path

import open_clip
import pytest
import torch
from open_clip.model import CLIP
from safetensors.torch import save_file

from poise.backbones import load_model
from poise.backbones.loaders import pocket
from poise.backbones.loaders.pocket import load_pocket
from poise.errors import InvalidCheckpointError, ModelNotFoundError
from poise.prompts import init_prompt, tokenise

MODEL = {
    "embed_dim": 48,
    "vision_cfg": {
        "timm_model_name": "tf_efficientnet_lite0",
        "timm_model_pretrained": False,
        "timm_pool": "avg",
        "timm_proj": "linear",
        "timm_proj_bias": True,
        "image_size": 64,
    },
    "text_cfg": {"context_length": 77, "vocab_size": 49408, "width": 32, "heads": 4, "layers": 2},
}
PREPROCESS = {"mean": [0.5] * 3, "std": [0.5] * 3, "interpolation": "bicubic", "resize_mode": "shortest"}
CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.manual_seed(0)
    place = tmp_path_factory.mktemp("pocket")
    model = CLIP(**MODEL)
    model.logit_scale.data.fill_(math.log(30.0))
    save_file(
        {name: tensor.contiguous() for name, tensor in model.state_dict().items()},
        place / "open_clip_model.safetensors",
    )
    (place / "open_clip_config.json").write_text(json.dumps({"model_cfg": MODEL, "preprocess_cfg": PREPROCESS}))
    return place


def test_equals_open_clip(folder: Path) -> None:
    encoder = load_pocket(device=CPU, dtype=torch.float32, folder=folder)
    model, _, _ = open_clip.create_model_and_transforms(f"local-dir:{folder}")
    model.eval()
    tokenizer = open_clip.get_tokenizer(f"local-dir:{folder}")
    labels = ["cat", "great white shark", "Boeing 737-800"]
    pictures = torch.randn(3, 3, 64, 64)
    classes = tokenise(encoder, labels)
    with torch.no_grad():
        images = encoder.encode_images(pictures[:, None])[:, 0]
        texts = encoder.encode_classes(classes, init_prompt(encoder, classes))[0]
        expected = model.encode_text(tokenizer([f"a photo of a {label}." for label in labels]), normalize=True)
        torch.testing.assert_close(images, model.encode_image(pictures, normalize=True), atol=1e-5, rtol=0)
    torch.testing.assert_close(texts, expected, atol=1e-5, rtol=0)
    assert encoder.scale == pytest.approx(30.0, rel=1e-5)
    assert encoder.image.mean == (0.5, 0.5, 0.5)


def test_missing_and_damaged_weights_are_refused(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(ModelNotFoundError, match="no weights for 'pocket'"):
        load_pocket(device=CPU, dtype=torch.float32, folder=tmp_path)
    (tmp_path / "open_clip_config.json").write_text((folder / "open_clip_config.json").read_text())
    (tmp_path / "open_clip_model.safetensors").write_bytes(b"damaged")
    with pytest.raises(InvalidCheckpointError, match="can't be read"):
        load_pocket(device=CPU, dtype=torch.float32, folder=tmp_path)


def test_pocket_1_is_loaded_from_a_folder_with_its_weights_alone(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(InvalidCheckpointError, match="other weights than pocket-1"):
        load_model(f"pocket-1:{folder}", device="cpu")
    with pytest.raises(ModelNotFoundError, match=r"no open_clip_config.json and no open_clip_model.safetensors"):
        load_model(f"pocket-1:{tmp_path}", device="cpu")
    digest = hashlib.sha256((folder / "open_clip_model.safetensors").read_bytes()).hexdigest()
    monkeypatch.setattr(pocket, "FIRST", digest)
    encoder = load_model(f"pocket-1:{folder}", device="cpu")
    assert encoder.name == "pocket-1"
    assert encoder.fingerprint() == load_pocket(device=CPU, dtype=torch.float32, folder=folder).fingerprint()
