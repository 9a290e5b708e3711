"""Keys that a later version of open_clip adds: harmless ones load, those that change the computation are refused."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import open_clip.model
import pytest
import torch

from poise.backbones import load_model
from poise.backbones.fingerprint import fingerprint
from poise.errors import InvalidCheckpointError
from tests.backbones.saved import save_open_clip


@dataclasses.dataclass
class LaterText(open_clip.model.CLIPTextCfg):
    """open_clip's text_cfg with keys of a version to come."""

    new_flag: bool = False
    new_number: float = 1.0
    new_name: str = "plain"


@pytest.fixture
def later(monkeypatch: pytest.MonkeyPatch) -> None:
    """An open_clip whose text tower is scaled by a new key, and has one that does nothing."""
    monkeypatch.setattr(open_clip.model, "CLIPTextCfg", LaterText)
    monkeypatch.setattr("poise.backbones.loaders.new_keys.CLIPTextCfg", LaterText)
    build, encode = open_clip.model._build_text_tower, open_clip.model.CLIP.encode_text

    def tower(embed_dim: int, text_cfg: Any, *given: Any, **options: Any) -> Any:
        text_cfg = LaterText(**text_cfg) if isinstance(text_cfg, dict) else text_cfg
        made = build(embed_dim, text_cfg, *given, **options)
        made.eos_shift = text_cfg.new_number
        return made

    monkeypatch.setattr(open_clip.model, "_build_text_tower", tower)

    class Later(open_clip.model.CLIP):
        def __init__(self, embed_dim: int, vision_cfg: Any, text_cfg: Any, **options: Any) -> None:
            super().__init__(embed_dim, vision_cfg, text_cfg, **options)
            self.factor = text_cfg.get("new_number", 1.0) if isinstance(text_cfg, dict) else 1.0

        def encode_text(self, text: torch.Tensor, normalize: bool = False) -> torch.Tensor:
            features = encode(self, text, normalize=normalize)
            return features.roll(int(self.factor) - 1, -1)

    monkeypatch.setattr("poise.backbones.loaders.openclip_load.CLIP", Later)


def with_keys(folder: Path, **keys: object) -> str:
    path = folder / "open_clip_config.json"
    config = json.loads(path.read_text())
    config["model_cfg"]["text_cfg"].update(keys)
    path.write_text(json.dumps(config))
    return f"local-dir:{folder}"


def test_a_key_with_its_default_changes_nothing(later: None, tmp_path: Path) -> None:
    save_open_clip("vit", tmp_path)
    plain = fingerprint(load_model(f"local-dir:{tmp_path}", device="cpu"))
    for keys in ({"new_flag": False}, {"new_name": "plain"}, {"new_number": 1.0}):
        assert fingerprint(load_model(with_keys(tmp_path, **keys), device="cpu")) == plain


def test_a_key_is_accepted_if_the_features_stay_those_of_open_clip(later: None, tmp_path: Path) -> None:
    save_open_clip("vit", tmp_path)
    assert load_model(with_keys(tmp_path, new_flag=True), device="cpu").scale > 0


def test_a_key_that_changes_the_computation_is_refused(later: None, tmp_path: Path) -> None:
    save_open_clip("vit", tmp_path)
    with pytest.raises(InvalidCheckpointError, match="they change what is computed: new_number"):
        load_model(with_keys(tmp_path, new_number=3.0), device="cpu")


@pytest.mark.parametrize(
    "keys", [{"new_name": "hf-hub:evil/x"}, {"new_flag": {"a": 1}}, {"new_number": 1e300}, {"unheard_of": 1}]
)
def test_texts_objects_and_keys_that_open_clip_lacks_are_refused(later: None, keys: Any, tmp_path: Path) -> None:
    save_open_clip("vit", tmp_path)
    with pytest.raises(InvalidCheckpointError, match="unknown key"):
        load_model(with_keys(tmp_path, **keys), device="cpu")
