"""Names, devices, dtypes and damaged checkpoints."""

from __future__ import annotations

import json
import pickle

import pytest
import torch
from huggingface_hub import constants
from huggingface_hub.errors import LocalEntryNotFoundError
from safetensors.torch import load_file, save_file

from poise.backbones import describe_models, load_model
from poise.backbones.load import ModelRow, models
from poise.backbones.loaders import hub
from poise.backbones.loaders.openclip_load import build, known_names, named_weights, uses_quick_gelu
from poise.errors import InvalidCheckpointError, InvalidOptionError, ModelNotFoundError, UnknownNameError
from poise.registry import Registry
from tests.backbones.saved import save_clip, save_open_clip, save_siglip

WEIGHTS = "open_clip_model.safetensors"


@pytest.fixture
def folder(tmp_path):
    save_open_clip("vit", tmp_path)
    return tmp_path


def rewrite(path, change) -> None:
    tensors = load_file(path)
    change(tensors)
    save_file(tensors, path)


def configure(folder, change, name: str = "open_clip_config.json") -> None:
    config = json.loads((folder / name).read_text())
    change(config)
    (folder / name).write_text(json.dumps(config))


@pytest.mark.parametrize(
    ("name", "guess"),
    [
        ("ViT-B-16/openal", "'ViT-B-16/openai'"),
        ("ViT-B16/openai", "'ViT-B-16/openai'"),
        ("nothing like it", "Accepted"),
        (
            "openai/clip-vit-base-patch16",
            r"write transformers:openai/clip-vit-base-patch16 .* or hf-hub:openai/clip-vit",
        ),
        ("google/siglip2-base-patch16-224", "write transformers:google/siglip2-base-patch16-224"),
        ("poket", "'pocket'"),
        ("POCKET", "'pocket'"),
        ("vit-b-16", "'ViT-B-16/"),
        ("Tiny", "'tiny'"),
        ("localdir:/models/mine", "'local-dir:PATH'"),
        ("hf_hub:org/model", "'hf-hub:ORG/REPO'"),
        ("transformer:org/model", "'transformers:ORG/REPO or PATH'"),
    ],
)
def test_an_unknown_name_gets_suggestions(name, guess):
    with pytest.raises(UnknownNameError, match=guess):
        load_model(name, device="cpu")


@pytest.mark.parametrize(
    ("file", "advice"),
    [
        ("open_clip_config.json", r"Write local-dir:.*folder \(it has open_clip_config\.json\)"),
        ("config.json", r"Write transformers:.*folder \(it has config\.json\)"),
        ("notes.txt", r"has none of open_clip_config\.json, config\.json"),
    ],
)
def test_a_folder_without_a_scheme_is_told_how_to_write_it(tmp_path, file, advice):
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / file).write_text("{}")
    with pytest.raises(UnknownNameError, match=advice):
        load_model(str(tmp_path / "folder"))


@pytest.mark.parametrize(("name", "form"), [("pocket:large", "pocket"), ("local-dir:", "local-dir:PATH")])
def test_a_name_in_another_form_is_refused(name, form):
    with pytest.raises(UnknownNameError, match=f"Write {form}"):
        load_model(name)


def test_every_name_has_a_line_about_it():
    rows = dict(describe_models())
    assert list(rows)[:2] == ["pocket", "tiny"]
    assert "recommended for the published tables" in rows["ViT-B-16/openai"]
    assert "downloaded on first use" in rows["ViT-B-16/openai"]
    assert "download" not in rows["pocket"] + rows["local-dir:PATH"]
    assert set(known_names()) < set(rows)


def test_the_list_has_one_name_to_copy_for_each_family():
    from typer.testing import CliRunner

    from poise.cli.app import app

    shown = CliRunner().invoke(app, ["list", "models"]).output
    for words in ("SigLIP 2", "transformers:google/siglip2-base-patch16-224", "ViT-B-16/openai", "local-dir:PATH"):
        assert words in shown
    assert len(shown.splitlines()) < 60
    single = CliRunner().invoke(app, ["list", "models", "--filter", "B-16"]).output
    assert "ViT-B-16/laion400m_e32" in single


@pytest.mark.parametrize(("family", "words"), [("tipsv2", "no trained scale"), ("altclip", "nearest that works: xlm-")])
def test_a_family_that_is_refused_says_why_and_what_works(tmp_path, family, words):
    (tmp_path / "config.json").write_text(json.dumps({"model_type": family}))
    with pytest.raises(InvalidOptionError, match=words):
        load_model(f"transformers:{tmp_path}", device="cpu")


def test_a_kind_of_model_is_one_row(monkeypatch):
    rows, made = Registry("kind of model"), load_model("tiny", device="cpu")
    for name in models:
        rows.add(name)(models.get(name))
    monkeypatch.setattr("poise.backbones.load.models", rows)
    rows.add("mine")(ModelRow("mine:NUMBER", "a model of my own", lambda rest, place: made, recommended="me"))
    assert load_model("mine:3") is made
    assert ("mine:NUMBER", "a model of my own; recommended for me") in describe_models()


@pytest.mark.parametrize("name", ["", "  ", None, 3])
def test_a_name_is_text(name):
    with pytest.raises(InvalidOptionError, match="name must be a string"):
        load_model(name)


def test_devices():
    assert load_model("tiny", device=torch.device("cpu")).device.type == "cpu"
    with pytest.raises(InvalidOptionError, match="not accepted"):
        load_model("tiny", device="gpu please")
    with pytest.raises(InvalidOptionError, match="not available"):
        load_model("tiny", device="cuda:99")


def test_dtypes():
    assert load_model("tiny", device="cpu").dtype == torch.float32
    assert load_model("tiny", device="cpu", dtype="float64").dtype == torch.float64
    assert load_model("tiny", device="cpu", dtype=torch.float64).dtype == torch.float64
    with pytest.raises(InvalidOptionError, match="float32, float64"):
        load_model("tiny", device="cpu", dtype="fp16")
    with pytest.raises(InvalidOptionError, match="Accepted: auto"):
        load_model("tiny", device="cpu", dtype="int8")


def test_missing_weights_without_a_network_say_what_to_fetch(tmp_path, monkeypatch):
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    for name, words in [
        ("ViT-B-16/openai", "open_clip_model.safetensors"),
        ("hf-hub:some/model", "open_clip_config.json"),
        ("transformers:some/model", "safetensors"),
    ]:
        with pytest.raises(ModelNotFoundError, match=words) as error:
            load_model(name, device="cpu", cache_dir=str(tmp_path))
        assert "hf download" in str(error.value)
        assert str(tmp_path) in str(error.value)


def only_cached(repo: str, name: str, *, cache_dir: str, local_files_only: bool = False) -> str:
    assert local_files_only, "a download was tried"
    raise LocalEntryNotFoundError("not cached")


def test_an_unreachable_hub_is_noticed_before_a_download_is_tried(tmp_path, monkeypatch):
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(constants, "ENDPOINT", "https://hub.invalid")
    monkeypatch.setattr(hub.urllib.request, "getproxies", dict)
    asked = []

    def refuse(address: tuple[str, int], timeout: float) -> None:
        asked.append((address, timeout))
        raise OSError("no route")

    monkeypatch.setattr(hub.socket, "create_connection", refuse)
    monkeypatch.setattr(hub.huggingface_hub, "hf_hub_download", only_cached)
    with pytest.raises(ModelNotFoundError, match=r"hub\.invalid can't be reached \(no route\)"):
        hub.fetch("some/model", ["model.safetensors"], str(tmp_path))
    assert asked == [(("hub.invalid", 443), hub.PROBE_SECONDS)]  # one short look, and no download is tried


@pytest.mark.parametrize("name", ["hf-hub:not a name!", "transformers:not a name!"])
def test_a_repository_name_that_cannot_be(name, tmp_path):
    with pytest.raises(ModelNotFoundError, match="repository name"):
        load_model(name, device="cpu", cache_dir=str(tmp_path))


@pytest.mark.parametrize("name", ["local-dir:/absent/folder", "transformers:/absent/folder", "transformers:./absent"])
def test_a_folder_that_is_absent(name):
    with pytest.raises(ModelNotFoundError, match="not a folder"):
        load_model(name, device="cpu")


class Bomb:
    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return open, (str(self.path), "w")


@pytest.mark.parametrize("suffix", ["bin", "pt", "pth"])
def test_a_pickle_is_refused_unread(folder, suffix):
    (folder / WEIGHTS).unlink()
    (folder / f"open_clip_pytorch_model.{suffix}").write_bytes(pickle.dumps(Bomb(folder / "touched")))
    with pytest.raises(
        InvalidCheckpointError, match=r"no code of it is run: poise convert model .*--architecture NAME"
    ):
        load_model(f"local-dir:{folder}", device="cpu")
    assert not (folder / "touched").exists()


def test_the_advised_conversion_works(folder, tmp_path):
    from poise.backbones.convert import convert_model

    source, before = folder / "open_clip_pytorch_model.bin", load_model(f"local-dir:{folder}", device="cpu")
    torch.save({"state_dict": {f"module.{key}": value for key, value in load_file(folder / WEIGHTS).items()}}, source)
    convert_model(source, str(folder / "open_clip_config.json"), tmp_path / "converted")
    after = load_model(f"local-dir:{tmp_path / 'converted'}", device="cpu")
    assert after.fingerprint() == before.fingerprint()


def test_weights_that_have_no_safetensors_anywhere():
    with pytest.raises(InvalidCheckpointError, match="pickle"):
        named_weights("X/y", {"url": "https://example.org/weights.pt"}, None)


def test_no_weights_at_all(folder):
    (folder / WEIGHTS).unlink()
    with pytest.raises(ModelNotFoundError, match="has no weights"):
        load_model(f"local-dir:{folder}", device="cpu")


def test_several_weights(folder):
    (folder / WEIGHTS).rename(folder / "one.safetensors")
    assert load_model(f"local-dir:{folder}", device="cpu").scale > 0
    (folder / "two.safetensors").write_bytes((folder / "one.safetensors").read_bytes())
    with pytest.raises(InvalidCheckpointError, match=r"one\.safetensors, two\.safetensors"):
        load_model(f"local-dir:{folder}", device="cpu")


@pytest.mark.parametrize("cut", [0, 4, 100, -1000])
def test_truncated_weights(folder, cut):
    data = (folder / WEIGHTS).read_bytes()
    (folder / WEIGHTS).write_bytes(data[:cut])
    with pytest.raises(InvalidCheckpointError, match="not a readable safetensors"):
        load_model(f"local-dir:{folder}", device="cpu")


def test_a_flipped_header(folder):
    data = bytearray((folder / WEIGHTS).read_bytes())
    data[12] ^= 0xFF
    (folder / WEIGHTS).write_bytes(bytes(data))
    with pytest.raises(InvalidCheckpointError, match="not a readable safetensors"):
        load_model(f"local-dir:{folder}", device="cpu")


def test_missing_and_spare_keys(folder):
    rewrite(folder / WEIGHTS, lambda tensors: tensors.pop("logit_scale"))
    with pytest.raises(InvalidCheckpointError, match=r"no trained logit scale"):
        load_model(f"local-dir:{folder}", device="cpu")
    rewrite(folder / WEIGHTS, lambda tensors: tensors.update(logit_scale=torch.tensor(1.0), spare=torch.zeros(1)))
    with pytest.raises(InvalidCheckpointError, match="spare"):
        load_model(f"local-dir:{folder}", device="cpu")


def test_a_scale_that_is_not_finite(folder):
    rewrite(folder / WEIGHTS, lambda tensors: tensors.update(logit_scale=torch.tensor(float("nan"))))
    with pytest.raises(InvalidCheckpointError, match="scale of nan"):
        load_model(f"local-dir:{folder}", device="cpu")


def test_a_wrong_width_names_both(folder):
    configure(folder, lambda config: config["model_cfg"].update(embed_dim=24))
    with pytest.raises(InvalidCheckpointError, match=r"\[32, 16\].*\[32, 24\]"):
        load_model(f"local-dir:{folder}", device="cpu")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda config: config.pop("model_cfg"), "no 'model_cfg'"),
        (lambda config: config["model_cfg"].pop("embed_dim"), "no 'model_cfg.embed_dim'"),
        (lambda config: config["model_cfg"].update(unheard_of=1), "unknown key model_cfg.'unheard_of'.*Known: "),
        (lambda config: config["model_cfg"]["text_cfg"].update(heads=0), "heads is 0.*a whole number from 1 to"),
        (lambda config: config["model_cfg"]["vision_cfg"].update(width=-3), "vision_cfg.width is -3"),
    ],
)
def test_hostile_configurations(folder, change, words):
    configure(folder, change)
    with pytest.raises(InvalidCheckpointError, match=words):
        load_model(f"local-dir:{folder}", device="cpu")


@pytest.mark.parametrize("text", ["", "{", "[1, 2]", "\x00"])
def test_a_configuration_that_is_not_json(folder, text):
    (folder / "open_clip_config.json").write_text(text)
    with pytest.raises(InvalidCheckpointError, match="JSON"):
        load_model(f"local-dir:{folder}", device="cpu")


def test_coca_without_a_decoder_is_refused():
    with pytest.raises(InvalidCheckpointError, match="CoCa"):
        build({"multimodal_cfg": {}}, None)


def test_pictures_that_are_not_square(folder):
    configure(folder, lambda config: config["preprocess_cfg"].update(resize_mode="longest"))
    with pytest.raises(InvalidOptionError, match="longest"):
        load_model(f"local-dir:{folder}", device="cpu")


def test_quick_gelu_follows_the_weights():
    assert uses_quick_gelu("ViT-B-16/openai", {"quick_gelu": False}, {"quick_gelu": True})
    assert not uses_quick_gelu("ViT-B-16/laion", {}, {})
    with pytest.raises(InvalidCheckpointError, match=r"quick_gelu=True.*quick_gelu=False"):
        uses_quick_gelu("ViT-B-16-quickgelu/laion", {"quick_gelu": True}, {})
    assert "ViT-B-16/openai" in known_names()


def test_pictures_of_a_wrong_shape():
    encoder = load_model("tiny", device="cpu")
    for shape in [(3, 32, 32), (1, 1, 3, 32, 16), (1, 1, 1, 32, 32), (1, 1, 3, 64, 32)]:
        with pytest.raises(InvalidOptionError, match="32, 32"):
            encoder.encode_images(torch.zeros(shape))


def test_transformers_errors(tmp_path):
    save_siglip(tmp_path)
    good = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(good | {"model_type": "bert"}))
    with pytest.raises(InvalidOptionError, match=r"'bert'.*clip, metaclip_2, siglip"):
        load_model(f"transformers:{tmp_path}", device="cpu")
    (tmp_path / "config.json").write_text(json.dumps(good))
    rewrite(tmp_path / "model.safetensors", lambda tensors: tensors.pop("logit_bias"))
    with pytest.raises(InvalidCheckpointError, match="logit_bias: missing"):
        load_model(f"transformers:{tmp_path}", device="cpu")
    rewrite(tmp_path / "model.safetensors", lambda tensors: tensors.update(logit_bias=torch.zeros(3)))
    with pytest.raises(InvalidCheckpointError, match=r"\[3\] in the file, \[1\] in the model"):
        load_model(f"transformers:{tmp_path}", device="cpu")
    (tmp_path / "model.safetensors").write_bytes(b"nothing")
    with pytest.raises(InvalidCheckpointError, match="not a readable safetensors"):
        load_model(f"transformers:{tmp_path}", device="cpu")
    (tmp_path / "model.safetensors").rename(tmp_path / "pytorch_model.bin")
    with pytest.raises(InvalidCheckpointError, match="pickle"):
        load_model(f"transformers:{tmp_path}", device="cpu")


def test_a_transformers_folder_without_a_tokenizer(tmp_path):
    save_clip(tmp_path)
    for file in tmp_path.glob("*token*"):
        file.unlink()
    with pytest.raises(InvalidCheckpointError, match="tokenizer"):
        load_model(f"transformers:{tmp_path}", device="cpu")
