"""No file of a model runs code, opens a connection, hangs, or ends in anything but an error of poise."""

from __future__ import annotations

import builtins
import json
import os
import shutil
import signal
import socket
from collections.abc import Iterator
from pathlib import Path
from types import FrameType

import open_clip
import pytest
from huggingface_hub import constants

from poise.backbones import load_model
from poise.backbones.fingerprint import fingerprint
from poise.backbones.loaders import hub, schema
from poise.backbones.loaders.known_keys import HUGGING_FACE_TEXT, OPEN_CLIP_MODEL
from poise.backbones.loaders.openclip_load import build
from poise.errors import InvalidCheckpointError, PoiseError
from tests.backbones.hostile import ATTACKS, Attack, edit, raw
from tests.backbones.saved import save_clip, save_open_clip, save_siglip, siglip_tokenizer

SECONDS = 30
EVIL = "from pathlib import Path\nPath({!r}).touch()\nclass Evil:\n    pass\n"


class HangError(BaseException):
    """Not an Exception: no loader may convert it."""


@pytest.fixture(scope="module")
def bases(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("bases")
    for kind in ("vit", "timm"):
        save_open_clip(kind, root / kind)
    save_open_clip("siglip", root / "hf")
    siglip_tokenizer().save_pretrained(root / "hf")
    edit("oc", "model_cfg.text_cfg.hf_tokenizer_name", "here")(root / "hf")
    save_clip(root / "clip")
    save_siglip(root / "siglip")
    save_siglip(root / "siglip2", version=2)
    return {folder.name: folder for folder in root.iterdir()}


@pytest.fixture(scope="module")
def plain(bases: dict[str, Path]) -> str:
    return fingerprint(load_model(f"transformers:{bases['clip']}", device="cpu"))


@pytest.fixture
def guarded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Watch code, connections and time; whoever is asked for trust gets it."""
    contacts: list[object] = []

    def refuse(*given: object, **options: object) -> None:
        contacts.append(given)
        raise OSError("no network in this test")

    def stop(number: int, frame: FrameType | None) -> None:
        raise HangError(f"no answer after {SECONDS} s")

    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)  # nothing but poise itself keeps the network out
    for name in ("connect", "connect_ex"):
        monkeypatch.setattr(socket.socket, name, refuse)
    for name in ("create_connection", "getaddrinfo"):
        monkeypatch.setattr(socket, name, refuse)
    monkeypatch.setattr(builtins, "input", lambda prompt="": "y")
    monkeypatch.setenv("HF_MODULES_CACHE", str(tmp_path / "modules"))
    monkeypatch.chdir(tmp_path)
    handler = signal.signal(signal.SIGALRM, stop)
    signal.alarm(SECONDS)
    yield tmp_path
    signal.alarm(0)
    signal.signal(signal.SIGALRM, handler)
    assert not contacts
    assert not (tmp_path / "ran").exists()


def copied(base: Path, folder: Path) -> str:
    """Copy a folder, add code to it, and return the model's name."""
    shutil.copytree(base, folder, copy_function=os.link)
    for name in ("tokenization", "modeling", "configuration", "image_processing"):
        (folder / f"{name}_evil.py").write_text(EVIL.format(str(folder.parent / "ran")))
    scheme = "local-dir" if (folder / "open_clip_config.json").exists() else "transformers"
    return f"{scheme}:{folder}"


@pytest.mark.parametrize("attack", ATTACKS, ids=lambda attack: attack.name)
def test_a_hostile_model_ends_in_an_error(attack: Attack, bases: dict[str, Path], guarded: Path) -> None:
    name = copied(bases[attack.base], guarded / "model")
    attack.change(guarded / "model")
    with pytest.raises(PoiseError, match=attack.words) as caught:
        load_model(name, device="cpu")
    assert caught.value.message
    assert caught.value.hint
    assert len(str(caught.value)) < 2000


@pytest.mark.parametrize("base", ["vit", "timm", "hf", "clip", "siglip", "siglip2"])
def test_the_folders_without_a_change_load(base: str, bases: dict[str, Path], guarded: Path) -> None:
    assert load_model(copied(bases[base], guarded / "model"), device="cpu").scale > 0


@pytest.mark.parametrize(
    "change",
    [
        edit("tf", "_attn_implementation", "evil/kernel"),
        edit("tf", "attn_implementation", "evil/kernel"),
        edit("tf", "_name_or_path", "evil/model"),
        edit("tf", "architectures", ["Evil"]),
        edit("tf", "transformers_weights", "../evil.safetensors"),
        edit("tf", "text_config._attn_implementation", "evil/kernel"),
        edit("tok", "name_or_path", "evil/model"),
        edit("tok", "tokenizer_file", "/etc/passwd"),
        edit("tok", "chat_template", "{{ cycler.__init__.__globals__.os.system('touch ran') }}"),
        edit("pre", "image_processor_type", "Evil"),
        raw("adapter_config.json", json.dumps({"peft_type": "LORA", "base_model_name_or_path": "evil/model"}).encode()),
        raw("generation_config.json", b"{"),
        raw("pytorch_model.bin", b"garbage"),
    ],
    ids=[
        "kernel",
        "kernel-2",
        "name",
        "class",
        "weights",
        "inner-kernel",
        "tokenizer-name",
        "tokenizer-file",
        "template",
        "processor",
        "adapter",
        "generation",
        "pickle",
    ],
)
def test_unknown_keys_do_not_reach_transformers(change, bases: dict[str, Path], plain: str, guarded: Path) -> None:
    name = copied(bases["clip"], guarded / "model")
    change(guarded / "model")
    assert fingerprint(load_model(name, device="cpu")) == plain


def test_all_architectures_of_open_clip_fit_the_schema() -> None:
    names = [name for name in open_clip.list_models() if "multimodal_cfg" not in open_clip.get_model_config(name)]
    assert len(names) > 100
    for name in names:
        config = open_clip.get_model_config(name)
        assert schema.read(OPEN_CLIP_MODEL, config, name) == config


def test_a_text_tower_of_the_hub_is_built_from_known_keys(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tower = {
        "model_type": "roberta",
        "hidden_size": 32,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "intermediate_size": 64,
        "vocab_size": 99,
        "max_position_embeddings": 40,
        "pad_token_id": 1,
    }
    (tmp_path / "config.json").write_text(json.dumps(tower | {"_name_or_path": "x"}))
    monkeypatch.setattr(hub, "fetch", lambda repo, names, cache_dir=None: tmp_path / names[0])
    config = {
        "embed_dim": 16,
        "vision_cfg": {"layers": 1, "width": 32, "head_width": 16, "patch_size": 8, "image_size": 32},
        "text_cfg": {"hf_model_name": "org/tower", "hf_proj_type": "linear", "hf_pooler_type": "mean_pooler"},
    }
    assert build(config, None).text.transformer.config.hidden_size == 32
    (tmp_path / "config.json").write_text(json.dumps(tower | {"auto_map": {"AutoModel": "modeling_evil.Evil"}}))
    with pytest.raises(InvalidCheckpointError, match="auto_map"):
        build(config, None)
    assert "model_type" in HUGGING_FACE_TEXT.required


def test_a_model_of_the_hub_is_checked_like_a_folder(bases: dict[str, Path], tmp_path: Path, monkeypatch) -> None:
    copied(bases["hf"], tmp_path / "model")
    monkeypatch.setattr(hub, "fetch", lambda repo, names, cache_dir=None: tmp_path / "model" / names[0])
    monkeypatch.setattr(hub, "fetch_folder", lambda repo, patterns, cache_dir=None, *, needs: tmp_path / "model")
    ours = load_model(f"local-dir:{bases['hf']}", device="cpu")
    assert fingerprint(load_model("hf-hub:org/model", device="cpu")) == fingerprint(ours)
    edit("tok", "auto_map", {"AutoTokenizer": ["tokenization_evil.Evil", None]})(tmp_path / "model")
    with pytest.raises(InvalidCheckpointError, match="auto_map"):
        load_model("hf-hub:org/model", device="cpu")
    assert not (tmp_path / "ran").exists()
