"""Rows of hostile models: a small valid folder, one change to it, and words of the error that must follow."""

from __future__ import annotations

import base64
import json
import os
import pickle
import struct
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

Change = Callable[[Path], None]
REMOVED = object()
HUGE = 10**9
CONFIGS = {
    "oc": "open_clip_config.json",
    "tf": "config.json",
    "pre": "preprocessor_config.json",
    "tok": "tokenizer_config.json",
    "special": "special_tokens_map.json",
}
WEIGHTS = {
    "vit": "open_clip_model.safetensors",
    "timm": "open_clip_model.safetensors",
    "hf": "open_clip_model.safetensors",
}


@dataclass(frozen=True)
class Attack:
    """One hostile folder."""

    name: str
    base: str  # vit, timm, hf (open_clip with a tokenizer of transformers), clip, siglip, siglip2
    change: Change
    words: str  # of the error


def replace_file(path: Path, content: bytes) -> None:
    """Write a new file; the old one may be a hard link to the base."""
    if path.exists() or path.is_symlink():
        path.unlink()
    path.write_bytes(content)


def edit(file: str, where: str, value: object) -> Change:
    """Set the key ``a.b.c`` of a JSON file."""

    def change(folder: Path) -> None:
        path = folder / CONFIGS[file]
        config = json.loads(path.read_text()) if path.exists() else {}
        *parents, last = where.split(".")
        part = config
        for key in parents:
            part = part.setdefault(key, {})
        if value is REMOVED:
            del part[last]
        else:
            part[last] = value
        replace_file(path, json.dumps(config).encode())

    return change


def raw(name: str, content: bytes) -> Change:
    return lambda folder: replace_file(folder / name, content)


def both(*changes: Change) -> Change:
    def change(folder: Path) -> None:
        for each in changes:
            each(folder)

    return change


def made(name: str, make: Callable[[Path], object]) -> Change:
    """Replace a file by what ``make`` creates there."""

    def change(folder: Path) -> None:
        (folder / name).unlink(missing_ok=True)
        make(folder / name)

    return change


def tensors(name: str, update: Callable[[dict[str, torch.Tensor]], object]) -> Change:
    def change(folder: Path) -> None:
        state = load_file(folder / name)
        update(state)
        (folder / name).unlink()
        save_file(state, folder / name, metadata={"format": "pt"})

    return change


def header(entries: object, size: int = 8) -> bytes:
    text = json.dumps(entries).encode()
    return struct.pack("<Q", len(text)) + text + bytes(size)


def tokenizer_json(update: Callable[[dict[str, Any]], object]) -> Change:
    def change(folder: Path) -> None:
        content = json.loads((folder / "tokenizer.json").read_text())
        update(content)
        replace_file(folder / "tokenizer.json", json.dumps(content).encode())

    return change


def sequence(rules: list[object]) -> dict[str, Any]:
    return {"type": "Sequence", "normalizers": rules}


def nested(rule: dict[str, Any], depth: int) -> dict[str, Any]:
    for _ in range(depth):
        rule = sequence([rule])
    return rule


def replaced(old: str, new: str) -> dict[str, Any]:
    return {"type": "Replace", "pattern": {"String": old}, "content": new}


def charsmap(size: int, table: bytes) -> str:
    return base64.b64encode(struct.pack("<I", size) + table).decode()


def template(pieces: int, ids: int = 1) -> dict[str, Any]:
    text: list[dict[str, Any]] = [{"Sequence": {"id": "A", "type_id": 0}}] * pieces
    token = {"id": "</s>", "ids": [1] * ids, "tokens": ["</s>"] * ids}
    return {"type": "TemplateProcessing", "single": text, "pair": text, "special_tokens": {"</s>": token}}


class Bomb:
    """Runs code when it is unpickled: it writes the file that the tests look for."""

    def __reduce__(self) -> tuple[object, ...]:
        return os.system, ("touch ran",)


def rows(base: str, file: str, table: list[tuple[str, object, str]]) -> list[Attack]:
    return [
        Attack(f"{base}-{file}-{where}-{_label(value)}", base, edit(file, where, value), words)
        for where, value, words in table
    ]


def _label(value: object) -> str:
    text = "removed" if value is REMOVED else "big" if isinstance(value, int) and value > HUGE else json.dumps(value)
    return text[:30]


TEXT, VISION, CODE = "model_cfg.text_cfg.", "model_cfg.vision_cfg.", "runs no code"
ATTACKS: list[Attack] = [
    *rows(
        "vit",
        "oc",
        [
            ("model_cfg", REMOVED, "no 'model_cfg'"),
            ("model_cfg", None, "no 'model_cfg'"),
            ("model_cfg", [], "model_cfg is list"),
            ("model_cfg", "x", "Accepted: an object"),
            ("model_cfg.text_cfg", REMOVED, "no 'model_cfg.text_cfg'"),
            ("model_cfg.vision_cfg", 3, "vision_cfg is 3"),
            ("model_cfg.embed_dim", 0, "embed_dim is 0"),
            ("model_cfg.embed_dim", HUGE, "embed_dim is 1000000000"),
            ("model_cfg.embed_dim", 16.5, "embed_dim is 16.5"),
            ("model_cfg.embed_dim", True, "embed_dim is True"),
            ("model_cfg.embed_dim", "16", "embed_dim is '16'"),
            ("model_cfg.embed_dim", 10**400, "more than 30 digits"),
            ("model_cfg.embed_dim", 17, "in the file"),
            ("model_cfg.cast_dtype", "x", "unknown key"),
            ("model_cfg.multimodal_cfg", {}, "CoCa"),
            ("model_cfg.quick_gelu", "yes", "quick_gelu is 'yes'"),
            ("model_cfg.custom_text", 1, "custom_text is 1"),
            ("model_cfg.init_logit_bias", 1e300, "init_logit_bias"),
            ("model_cfg.__class__", {}, "unknown key"),
            (TEXT + "layers", HUGE, "layers is 1000000000"),
            (VISION + "layers", HUGE, "layers is 1000000000"),
            (VISION + "layers", [HUGE] * 4, "layers is list"),
            (VISION + "layers", [], "layers is list"),
            (TEXT + "layers", 200, "in the model|Missing key"),
            (TEXT + "width", HUGE, "width is"),
            (TEXT + "heads", 0, "heads is 0"),
            (TEXT + "heads", 3, "can't be loaded"),
            (TEXT + "heads", 10**6, "heads is"),
            (VISION + "head_width", 10, "can't be loaded"),
            (VISION + "head_width", 16384, "can't be loaded"),
            (VISION + "mlp_ratio", 1e300, "mlp_ratio"),
            (VISION + "mlp_ratio", -4, "mlp_ratio is -4"),
            (VISION + "image_size", HUGE, "image_size is"),
            (VISION + "image_size", [HUGE, 1], "image_size is"),
            (VISION + "image_size", [32, 64], "32 x 64|can't be loaded"),
            (VISION + "patch_size", 0, "patch_size is 0"),
            (VISION + "patch_size", HUGE, "patch_size is"),
            (VISION + "patch_size", 64, "in the file"),
            (TEXT + "context_length", HUGE, "context_length is"),
            (TEXT + "context_length", -1, "context_length is"),
            (TEXT + "vocab_size", HUGE, "vocab_size is"),
            (TEXT + "vocab_size", 2_000_000, "in the file"),
            (TEXT + "vocab_size", 10, "in the file"),
            (TEXT + "pool_type", "evil", "pool_type is 'evil'"),
            (VISION + "pos_embed_type", 3, "pos_embed_type is 3"),
            (TEXT + "act_kwargs", {"inplace": True}, "act_kwargs"),
            (TEXT + "norm_kwargs", {"eps": 0}, "norm_kwargs"),
            (TEXT + "norm_kwargs", {"device": "cuda"}, "norm_kwargs"),
            (TEXT + "no_causal_mask", "no", "no_causal_mask"),
            (VISION + "timm_model_name", "hf-hub:evil/model", "timm_model_name is 'hf-hub:evil/model'"),
            (VISION + "timm_model_name", "local-dir:/tmp/evil", "timm_model_name"),
            (VISION + "timm_model_name", "no_such_model", "timm.list_models"),
            (VISION + "timm_model_pretrained", True, "timm_model_pretrained is True, which needs a download"),
            (TEXT + "hf_model_name", "evil/model", "hf_model_name is 'evil/model', which needs a download"),
            (TEXT + "hf_model_name", "../evil", "hf_model_name is '../evil'"),
            (TEXT + "hf_model_pretrained", True, "hf_model_pretrained is True"),
            (TEXT + "hf_tokenizer_name", "evil/tokenizer", "has no tokenizer"),
            (TEXT + "hf_tokenizer_name", ["x"], "hf_tokenizer_name"),
            (TEXT + "tokenizer_kwargs", {"trust_remote_code": True}, CODE),
            (TEXT + "tokenizer_kwargs", {"bpe_path": "/etc/passwd"}, "unknown key model_cfg.text_cfg.tokenizer_kwargs"),
            (TEXT + "tokenizer_kwargs", {"clean": "eval"}, "clean is 'eval'"),
            (TEXT + "tokenizer_kwargs", {"strip_sep_token": True}, "can't be loaded"),
            (TEXT + "tokenizer_kwargs", "x", "tokenizer_kwargs is 'x'"),
            ("preprocess_cfg", [], "preprocess_cfg is list"),
            ("preprocess_cfg.mean", [0.5, 0.5], "mean is list"),
            ("preprocess_cfg.mean", "half", "mean is 'half'"),
            ("preprocess_cfg.std", [0, 0, 0], "std is list"),
            ("preprocess_cfg.std", [True, 1, 1], "std is list"),
            ("preprocess_cfg.interpolation", "x", "interpolation"),
            ("preprocess_cfg.resize_mode", 3, "resize_mode is 3"),
            ("preprocess_cfg.code", "x", "unknown key"),
        ],
    ),
    *rows(
        "timm",
        "oc",
        [
            (VISION + "timm_model_name", "hf-hub:evil/model", "timm_model_name is 'hf-hub:evil/model'"),
            (VISION + "timm_model_name", "resnet10t.evil", "can't be loaded|timm"),
            (VISION + "timm_model_name", "vit_giant_patch14_224", "in the model|can't be loaded"),
            (VISION + "timm_pool", "evil", "timm_pool is 'evil'"),
            (VISION + "timm_proj", 3, "timm_proj is 3"),
            (VISION + "image_size", HUGE, "image_size is"),
        ],
    ),
    *rows(
        "hf",
        "oc",
        [
            (TEXT + "tokenizer_kwargs", {"trust_remote_code": True}, CODE),
            (TEXT + "tokenizer_kwargs", {"code_revision": "x"}, "unknown key"),
            (TEXT + "tokenizer_mode", "clips", "'clips'"),
        ],
    ),
    *[
        attack
        for base in ("hf", "clip", "siglip")
        for attack in rows(
            base,
            "tok",
            [
                ("auto_map", {"AutoTokenizer": ["tokenization_evil.Evil", None]}, CODE),
                ("auto_map", ["tokenization_evil.Evil", None], CODE),
                ("auto_map", {"AutoTokenizer": ["evil/repo--tokenization_evil.Evil", None]}, CODE),
                ("tokenizer_class", "Evil", "tokenizer_class is 'Evil'"),
                ("tokenizer_class", 3, "tokenizer_class is 3"),
                ("added_tokens_decoder", {"x": {}}, "added_tokens_decoder"),
                ("padding_side", "up", "padding_side is 'up'"),
                ("model_max_length", "long", "model_max_length"),
                ("eos_token", {"content": 3}, "eos_token"),
            ],
        )
    ],
    Attack(
        "both-doors",
        "hf",
        both(
            edit("oc", TEXT + "tokenizer_kwargs", {"trust_remote_code": True}),
            edit("tok", "auto_map", {"AutoTokenizer": ["tokenization_evil.Evil", None]}),
        ),
        CODE,
    ),
    *rows("siglip", "special", [("auto_map", {"AutoTokenizer": "x"}, CODE), ("eos_token", 3, "eos_token is 3")]),
    *rows(
        "clip",
        "tf",
        [
            ("model_type", "evil", "family 'evil'"),
            ("model_type", REMOVED, "family 'None'"),
            ("model_type", [], "family"),
            ("auto_map", {"AutoModel": "modeling_evil.Evil", "AutoConfig": "configuration_evil.Evil"}, CODE),
            ("text_config.auto_map", {"AutoModel": "modeling_evil.Evil"}, CODE),
            ("quantization_config", {"quant_method": "x"}, "plain safetensors"),
            ("text_config", None, "no 'text_config'"),
            ("text_config", [], "text_config is list"),
            ("vision_config", "x", "vision_config is 'x'"),
            ("text_config.hidden_size", HUGE, "hidden_size is"),
            ("text_config.hidden_size", 0, "hidden_size is 0"),
            ("text_config.hidden_size", "32", "hidden_size is '32'"),
            ("text_config.hidden_size", 64, "in the file"),
            ("text_config.num_hidden_layers", HUGE, "num_hidden_layers is"),
            ("vision_config.num_hidden_layers", HUGE, "num_hidden_layers is"),
            ("text_config.num_hidden_layers", 3, "missing"),
            ("text_config.num_attention_heads", 3, "can't be loaded"),
            ("text_config.num_attention_heads", 0, "num_attention_heads is 0"),
            ("vision_config.intermediate_size", 10**12, "intermediate_size"),
            ("text_config.hidden_act", "evil", "hidden_act is 'evil'"),
            ("text_config.layer_norm_eps", 0, "layer_norm_eps is 0"),
            ("text_config.vocab_size", HUGE, "vocab_size is"),
            ("text_config.vocab_size", 2_000_000, "in the file"),
            ("text_config.max_position_embeddings", HUGE, "max_pos"),
            ("vision_config.image_size", HUGE, "image_size is"),
            ("vision_config.patch_size", 0, "patch_size is 0"),
            ("vision_config.num_channels", 4, "num_channels is 4"),
            ("projection_dim", HUGE, "projection_dim is"),
            ("text_config_dict.hidden_size", HUGE, "hidden_size is"),
            ("text_config.eos_token_id", "x", "eos_token_id"),
        ],
    ),
    *rows(
        "siglip2",
        "tf",
        [
            ("vision_config.num_patches", HUGE, "num_patches is"),
            ("vision_config.patch_size", 4096, "patch_size is 4096"),
            ("vision_config.vision_use_head", False, "vision_use_head is False"),
        ],
    ),
    *rows(
        "clip",
        "pre",
        [
            ("auto_map", {"AutoImageProcessor": "image_processing_evil.Evil"}, CODE),
            ("image_mean", REMOVED, "image_mean"),
            ("image_mean", [0.5], "image_mean is list"),
            ("image_std", [0, 0, 0], "image_std is list"),
            ("resample", 9, "resample is 9"),
            ("resample", "x", "resample is 'x'"),
            ("resample", [], "resample is list"),
            ("do_normalize", False, "do_normalize is False"),
            ("rescale_factor", 1, "rescale_factor is 1"),
        ],
    ),
    *[
        Attack(f"json-{base}-{name}", base, raw(CONFIGS[file], content), words)
        for base, file in (("vit", "oc"), ("clip", "tf"))
        for name, content, words in (
            ("empty", b"", "not valid JSON"),
            ("nan", b'{"model_cfg": NaN}', "NaN is not a JSON number"),
            ("deep-lists", b"[" * 10**5, "not valid JSON"),
            ("deep-objects", b'{"a":' * 10**5, "not valid JSON"),
            ("not-utf8", b"\xff\xfe{}", "not valid JSON"),
            ("digits", b'{"a": ' + b"9" * 10**5 + b"}", "not valid JSON"),
            ("list", b"[]", "not a JSON object"),
            ("null", b"\0" * 100, "not valid JSON"),
        )
    ],
    *[
        Attack(f"config-{name}", "vit", made(CONFIGS["oc"], make), words)
        for name, make, words in (
            ("folder", Path.mkdir, "is missing"),
            ("pipe", os.mkfifo, "is missing"),
            ("device", lambda path: path.symlink_to("/dev/zero"), "is missing"),
            ("loop", lambda path: path.symlink_to(path), "is missing"),
            ("sparse", lambda path: os.truncate(os.open(path, os.O_CREAT | os.O_WRONLY), 2**28), "268,435,456 bytes"),
        )
    ],
    *[
        Attack(f"weights-{base}-{name}", base, raw(WEIGHTS.get(base, "model.safetensors"), content), words)
        for name, content, words in (
            ("pickle", pickle.dumps(Bomb()), "not a readable safetensors"),
            ("empty", b"", "not a readable safetensors"),
            ("long-header", struct.pack("<Q", 2**63) + b"{}", "not a readable"),
            ("no-tensors", header({}, 0), "0 tensors"),
            (
                "overflow",
                header({"a": {"dtype": "F32", "shape": [2**62, 4], "data_offsets": [0, 8]}}),
                "not a readable",
            ),
            ("negative", header({"a": {"dtype": "F32", "shape": [-1], "data_offsets": [0, 8]}}), "not a readable"),
            ("offsets", header({"a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 2**40]}}), "not a readable"),
            ("float8", header({"a": {"dtype": "F8_E4M3", "shape": [8], "data_offsets": [0, 8]}}), "dtype F8_E4M3"),
            ("foreign", header({"a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}}), "fit|Missing|missing"),
            (
                "many",
                header({f"t{i}": {"dtype": "F32", "shape": [0], "data_offsets": [0, 0]} for i in range(100_001)}, 0),
                "100001 tensors",
            ),
        )
        for base in ("vit", "clip")
    ],
    *[
        Attack(f"weights-{name}", base, tensors(WEIGHTS.get(base, "model.safetensors"), update), words)
        for name, base, update, words in (
            ("nan-scale", "vit", lambda state: state.update(logit_scale=torch.tensor(torch.nan)), "scale of nan"),
            ("huge-scale", "vit", lambda state: state.update(logit_scale=torch.tensor(1e9)), "scale of inf"),
            ("long-scale", "vit", lambda state: state.update(logit_scale=torch.zeros(3)), "can't be loaded"),
            ("nan-scale-2", "clip", lambda state: state.update(logit_scale=torch.tensor(torch.nan)), "scale of nan"),
            ("nan-bias", "siglip", lambda state: state.update(logit_bias=torch.tensor([torch.nan])), "bias of nan"),
            ("missing", "vit", lambda state: state.pop("ln_final.weight"), "ln_final.weight"),
            ("spare", "vit", lambda state: state.update(spare=torch.zeros(1)), "spare"),
            (
                "positions",
                "vit",
                lambda state: state.update({"positional_embedding": torch.zeros(3)}),
                "can't be loaded",
            ),
        )
    ],
    Attack(
        "weights-bin",
        "vit",
        both(
            made(WEIGHTS["vit"], lambda path: None),
            raw("pytorch_model.bin", pickle.dumps(Bomb())),
        ),
        "pickle checkpoint",
    ),
    Attack(
        "weights-bin-2",
        "clip",
        both(
            made("model.safetensors", lambda path: None),
            raw("pytorch_model.bin", pickle.dumps(Bomb())),
        ),
        "pickle checkpoint",
    ),
    Attack("weights-pipe", "vit", made(WEIGHTS["vit"], os.mkfifo), "has no weights|not a readable"),
    Attack("weights-folder", "clip", made("model.safetensors", Path.mkdir), "has no weights|not a readable"),
    *[
        Attack(
            f"index-{name}",
            "clip",
            both(
                made("model.safetensors", lambda path: None),
                raw("model.safetensors.index.json", json.dumps({"weight_map": value}).encode()),
            ),
            words,
        )
        for name, value, words in (
            ("outside", {"logit_scale": "../../model.safetensors"}, "'../../model"),
            ("list", [], "weight_map"),
            ("absolute", {"logit_scale": "/etc/passwd"}, "'/etc/passwd'"),
            ("absent", {"logit_scale": "model-00001-of-00002.safetensors"}, "00001-of-00002"),
            ("number", {"a": 3}, "3"),
        )
    ],
    *[
        Attack(f"tokenizer-{base}-{name}", base, raw("tokenizer.json", content), words)
        for base in ("hf", "clip", "siglip")
        for name, content, words in (
            ("garbage", b"\x00\x01", "not valid JSON"),
            ("empty", b"{}", "can't be loaded|no tokens"),
            ("type", json.dumps({"version": "1.0", "model": {"type": "Evil"}}).encode(), "can't be loaded"),
            (
                "no-words",
                json.dumps({"model": {"type": "WordLevel", "vocab": {}, "unk_token": ""}}).encode(),
                "can't be loaded|no tokens",
            ),
        )
    ],
    Attack(
        "tokenizer-regex",
        "siglip",
        tokenizer_json(
            lambda content: content.update(
                pre_tokenizer={
                    "type": "Split",
                    "pattern": {"Regex": "(a+)+$"},
                    "behavior": "Isolated",
                    "invert": False,
                },
            )
        ),
        "regular expression",
    ),
    Attack(
        "tokenizer-other-words",
        "siglip",
        tokenizer_json(
            lambda content: content["model"]["vocab"].extend(
                [[f"x{number}", -9.0] for number in range(500)] + [["\u2581cat", -0.5]],
            )
        ),
        "text tower has 300 tokens",
    ),
    *[
        Attack(f"tokenizer-rules-{name}", base, tokenizer_json(lambda content, new=rules: content.update(new)), words)
        for base in ("siglip", "clip")
        for name, rules, words in (
            ("replace", {"normalizer": sequence([replaced("a", "a" * 64)] * 6)}, "times as long"),
            ("replace-long", {"normalizer": replaced("a", "a" * 10**6)}, "inserts 1,000,000 characters"),
            ("prepend", {"normalizer": sequence([{"type": "Prepend", "prepend": "ab" * 40}] * 20)}, "times as long"),
            ("many", {"normalizer": sequence([{"type": "Lowercase"}] * 10**4)}, "more than 32 rules"),
            ("deep", {"normalizer": nested({"type": "Lowercase"}, 200)}, "more than 32 rules"),
            ("unknown", {"normalizer": {"type": "Evil"}}, "the rule 'Evil'"),
            (
                "charsmap",
                {"normalizer": {"type": "Precompiled", "precompiled_charsmap": charsmap(2**32 - 4, b"")}},
                "precompiled_charsmap is damaged",
            ),
            (
                "charsmap-long",
                {"normalizer": {"type": "Precompiled", "precompiled_charsmap": charsmap(0, b"a" * 10**6)}},
                "times as long",
            ),
            ("charsmap-text", {"normalizer": {"type": "Precompiled", "precompiled_charsmap": "???"}}, "is damaged"),
            ("template", {"post_processor": template(10**5)}, "pieces"),
            ("special-ids", {"post_processor": template(1, ids=10**6)}, "1,000,000 ids"),
            ("decoder", {"decoder": {"type": "Evil"}}, "the rule 'Evil'"),
        )
    ],
    Attack(
        "tokenizer-dropout",
        "clip",
        tokenizer_json(lambda content: content["model"].update(dropout=0.5)),
        "tokens would be random",
    ),
    *rows(
        "vit",
        "oc",
        [
            (VISION + "image_size", 4096, "image_size is 4096"),
            (VISION + "patch_size", 1, "in the file"),
        ],
    ),
    Attack(
        "vit-many-patches",
        "vit",
        both(edit("oc", VISION + "image_size", 1024), edit("oc", VISION + "patch_size", 8)),
        "at most 4,096 patches",
    ),
    Attack("clip-many-patches", "clip", edit("tf", "vision_config.image_size", 1024), "at most 4,096 patches"),
    Attack("tokenizer-folder", "siglip", made("tokenizer.json", Path.mkdir), "not a vocabulary"),
    Attack("tokenizer-absent", "hf", made("tokenizer.json", lambda path: None), "has no tokenizer"),
]
