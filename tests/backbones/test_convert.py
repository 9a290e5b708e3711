"""`poise convert model` reads tensors only, whoever wrote them and under whatever names."""

from __future__ import annotations

import io
import pickle
import zipfile
from collections import OrderedDict
from pathlib import Path
from typing import Any

import open_clip
import pytest
import torch
from typer.testing import CliRunner

from poise.backbones import load_model
from poise.backbones.convert import convert_model
from poise.backbones.fingerprint import fingerprint
from poise.cli.app import app
from poise.errors import InvalidCheckpointError, InvalidOptionError, PoiseError, UnknownNameError

CONFIG = {
    "embed_dim": 64,
    "vision_cfg": {"image_size": 64, "layers": 2, "width": 64, "head_width": 32, "patch_size": 16},
    "text_cfg": {"context_length": 77, "vocab_size": 49408, "width": 64, "heads": 2, "layers": 2},
}


@pytest.fixture(scope="module")
def architecture() -> Any:
    """A small architecture that open_clip knows by name."""
    open_clip.factory._MODEL_CONFIGS["small-ViT"] = CONFIG
    yield "small-ViT"
    del open_clip.factory._MODEL_CONFIGS["small-ViT"]


@pytest.fixture(scope="module")
def state() -> dict[str, torch.Tensor]:
    torch.manual_seed(0)
    return open_clip.CLIP(**CONFIG).state_dict()


RENAMED = {
    ".ln_1.": ".layer_norm1.",
    ".ln_2.": ".layer_norm2.",
    ".c_fc.": ".fc1.",
    ".c_proj.": ".fc2.",
    "visual.ln_pre": "vision_model.pre_layrnorm",
    "visual.ln_post": "vision_model.post_layernorm",
    "ln_final": "text_model.final_layer_norm",
    ".attn.": ".self_attn.",
}


def below(prefix: str, state: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {prefix + name: tensor for name, tensor in state.items()}


def transformers_names(state: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """The tensors as transformers' CLIPModel saves them."""
    import transformers

    tower = {"hidden_size": 64, "intermediate_size": 256, "num_hidden_layers": 2, "num_attention_heads": 2}
    model = transformers.CLIPModel(
        transformers.CLIPConfig(
            text_config=tower | {"hidden_act": "gelu", "eos_token_id": 49407},
            vision_config=tower | {"image_size": 64, "patch_size": 16, "hidden_act": "gelu"},
            projection_dim=64,
        )
    )
    names = {
        "token_embedding.weight": "text_model.embeddings.token_embedding.weight",
        "positional_embedding": "text_model.embeddings.position_embedding.weight",
        "visual.class_embedding": "vision_model.embeddings.class_embedding",
        "visual.positional_embedding": "vision_model.embeddings.position_embedding.weight",
        "visual.conv1.weight": "vision_model.embeddings.patch_embedding.weight",
    }
    found = {}
    for name, tensor in state.items():
        if name in ("text_projection", "visual.proj"):
            found["text_projection.weight" if name[0] == "t" else "visual_projection.weight"] = tensor.T.clone()
            continue
        name = names.get(name, name)
        name = name.replace("visual.transformer.resblocks", "vision_model.encoder.layers")
        name = name.replace("transformer.resblocks", "text_model.encoder.layers")
        for new, old in (
            (".ln_1.", ".layer_norm1."),
            (".ln_2.", ".layer_norm2."),
            (".c_fc.", ".fc1."),
            (".c_proj.", ".fc2."),
        ):
            name = name.replace(new, old)
        name = name.replace("visual.ln_pre", "vision_model.pre_layrnorm").replace(
            "visual.ln_post", "vision_model.post_layernorm"
        )
        name = name.replace("ln_final", "text_model.final_layer_norm").replace(".attn.", ".self_attn.")
        if ".in_proj_" in name:
            layer, kind = name.split(".in_proj_")
            found |= {f"{layer}.{part}_proj.{kind}": piece for part, piece in zip("qkv", tensor.chunk(3), strict=True)}
        else:
            found[name] = tensor
    model.load_state_dict(found, strict=True)  # the names are transformers' own
    return model.state_dict()


FORMS = {
    "plain": lambda state: state,
    "data-parallel": lambda state: {"epoch": 3, "state_dict": below("module.", state)},
    "lightning": lambda state: {"state_dict": OrderedDict(below("model.", state))},
    "nested": lambda state: {"model": below("module.model.", state), "ema": [1, 2]},
    "openai": lambda state: dict(state) | {"input_resolution": torch.tensor(64), "context_length": torch.tensor(77)},
    "custom-text": lambda state: {
        (name if name.startswith(("visual.", "logit")) else f"text.{name}"): tensor for name, tensor in state.items()
    },
    "transformers": transformers_names,
}


@pytest.mark.parametrize("form", FORMS)
def test_every_form_gives_the_same_model(form: str, state: Any, architecture: str, tmp_path: Path) -> None:
    torch.save(FORMS[form](state), tmp_path / "model.pt")
    done = convert_model(tmp_path / "model.pt", architecture, tmp_path / "out")
    torch.save(state, tmp_path / "plain.pt")
    convert_model(tmp_path / "plain.pt", architecture, tmp_path / "plain")
    one, other = (load_model(f"local-dir:{tmp_path / name}", device="cpu") for name in ("out", "plain"))
    assert fingerprint(one) == fingerprint(other)
    assert done.unused == ()
    assert done.names == ("transformers" if form == "transformers" else "open_clip")


def test_the_command_says_what_it_could_not_match(state: Any, architecture: str, tmp_path: Path) -> None:
    torch.save(below("module.", state) | {"module.head.weight": torch.zeros(3)}, tmp_path / "m.pt")
    run, out = CliRunner(), str(tmp_path / "out")
    done = run.invoke(app, ["convert", "model", str(tmp_path / "m.pt"), "--architecture", architecture, "--out", out])
    assert done.exit_code == 0, done.output
    assert "prefix 'module.' removed" in done.output
    assert "Not used, because small-ViT has no such weights: head.weight" in done.output
    checked = run.invoke(app, ["models", "check", out])
    assert checked.exit_code == 0, checked.output
    for words in (
        "library:",
        "open_clip 3",
        "logit scale, bias:",
        "fingerprint:",
        "lower",
        "features equal the library's",
    ):
        assert words in checked.output
    with pytest.raises(InvalidOptionError, match="has a model already"):
        convert_model(tmp_path / "m.pt", architecture, out)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda state: state.pop("ln_final.weight"), "ln_final.weight: missing"),
        (
            lambda state: state.update({"visual.proj": torch.zeros(3, 3)}),
            r"visual.proj: \[3, 3\] in the file, \[64, 64\]",
        ),
        (lambda state: state.pop("logit_scale"), "no trained logit scale"),
    ],
)
def test_what_does_not_fit_is_refused(change: Any, words: str, state: Any, architecture: str, tmp_path: Path) -> None:
    changed = dict(state)
    change(changed)
    torch.save(changed, tmp_path / "m.pt")
    with pytest.raises(InvalidCheckpointError, match=words):
        convert_model(tmp_path / "m.pt", architecture, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_scale_that_is_missing_is_never_guessed(state: Any, architecture: str, tmp_path: Path) -> None:
    from safetensors.torch import save_file

    changed = {name: tensor for name, tensor in state.items() if name != "logit_scale"}
    torch.save(changed, tmp_path / "m.pt")
    convert_model(tmp_path / "m.pt", architecture, tmp_path / "out", logit_scale=50.0)
    name = f"local-dir:{tmp_path / 'out'}"
    assert load_model(name, device="cpu").scale == pytest.approx(50, rel=1e-5)
    with pytest.raises(InvalidOptionError, match="has a trained logit scale"):
        load_model(name, device="cpu", logit_scale=20.0)
    save_file(changed, tmp_path / "out" / "open_clip_model.safetensors")
    with pytest.raises(InvalidCheckpointError, match="no trained logit scale"):
        load_model(name, device="cpu")
    assert load_model(name, device="cpu", logit_scale=20.0).scale == pytest.approx(20, rel=1e-5)
    with pytest.raises(InvalidOptionError, match="above 0"):
        load_model(name, device="cpu", logit_scale=-1.0)
    with pytest.raises(InvalidOptionError, match="logit scale of its own"):
        load_model("tiny", logit_scale=20.0)


def test_a_scale_that_a_folder_of_transformers_lacks(tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    from tests.backbones.saved import save_clip

    save_clip(tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    del tensors["logit_scale"]
    save_file(tensors, tmp_path / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(InvalidCheckpointError, match="no trained logit scale"):
        load_model(f"transformers:{tmp_path}", device="cpu")
    assert load_model(f"transformers:{tmp_path}", device="cpu", logit_scale=30.0).scale == pytest.approx(30, rel=1e-5)


class Bomb:
    def __reduce__(self) -> tuple[object, ...]:
        import os

        return os.system, ("touch ran",)


class Getter:
    def __reduce__(self) -> tuple[object, ...]:
        return getattr, ("text", "upper")


def _archive(content: bytes, *names: str, compress: bool = False) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED if compress else zipfile.ZIP_STORED) as archive:
        for name in names:
            archive.writestr(name, content)
    return file.getvalue()


def _saved(content: object) -> bytes:
    file = io.BytesIO()
    torch.save(content, file)
    return file.getvalue()


HOSTILE: dict[str, bytes] = {
    "bomb": pickle.dumps(Bomb()),
    "bomb-saved": _saved({"state_dict": Bomb()}),
    "bomb-in-state": _saved({"logit_scale": torch.tensor(1.0), "x": Bomb()}),
    "getattr": _saved({"x": Getter()}),
    "empty": b"",
    "text": b"not a checkpoint",
    "zeros": b"\0" * 1000,
    "deep": b"(" * 10**5 + b".",
    "deep-lists": b"\x80\x02" + b"]" * 10**5 + b"a" * (10**5 - 1) + b".",
    "long-number": b"\x80\x02\x8b\xff\xff\xff\x7f.",
    "long-bytes": b"\x80\x03B\xff\xff\xff\xff.",
    "truncated": _saved({"a": torch.zeros(1000)})[:-900],
    "zip-of-zeros": _archive(b"\0" * 10**7, "archive/data.pkl", compress=True),
    "zip-empty": _archive(b"", "archive/data.pkl"),
    "zip-traversal": _archive(b"x", "../../evil", "archive/data.pkl"),
    "torchscript": _archive(b"", "archive/constants.pkl", "archive/code/x.py", "archive/data.pkl"),
    "no-tensors": _saved({"epoch": 3}),
    "a-list": _saved([torch.zeros(2)]),
    "expanded": _saved({"logit_scale": torch.zeros(1).expand(10**12)}),
    "meta": _saved({"logit_scale": torch.zeros(10**12, device="meta")}),
    "sparse": _saved({"logit_scale": torch.zeros(4).to_sparse()}),
}


@pytest.mark.parametrize("kind", HOSTILE)
def test_hostile_pickles_end_in_an_error(kind: str, architecture: str, tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "m.pt").write_bytes(HOSTILE[kind])
    with pytest.raises(PoiseError) as caught:
        convert_model(tmp_path / "m.pt", architecture, tmp_path / "out")
    assert len(str(caught.value)) < 1500
    assert not (tmp_path / "ran").exists()
    assert not (tmp_path / "out").exists()


def test_an_architecture_that_does_not_exist(tmp_path: Path) -> None:
    with pytest.raises(UnknownNameError, match="ViT-B-32"):
        convert_model(tmp_path / "m.pt", "ViT-B32", tmp_path / "out")
    with pytest.raises(PoiseError, match="is not a file"):
        convert_model(tmp_path / "m.pt", "ViT-B-32", tmp_path / "out")
