"""Converts a checkpoint of CLIP's kind to a folder in open_clip's format, which `local-dir:` loads.

Many models are published as pickles only, whose tensors have the names of open_clip, of OpenAI's code or of
transformers, after prefixes of the program that trained them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import open_clip
import torch
from open_clip.model import convert_to_custom_text_state_dict
from safetensors.torch import load_file, save
from torch import Tensor

from poise.backbones.loaders.checkpoint import OPEN_CLIP_WEIGHTS, library_errors, read_config, read_shapes
from poise.backbones.loaders.openclip_load import CONFIG_NAME, TEXT_CONFIG, empty_model
from poise.backbones.loaders.pickles import read_pickle
from poise.backbones.loaders.tokenizer_files import FILES
from poise.errors import InvalidCheckpointError, InvalidOptionError, UnknownNameError
from poise.files import write_atomic

_PREFIXES = ("module.", "_orig_mod.", "model.", "clip_model.", "clip.", "net.", "student.")
_NOT_WEIGHTS = ("input_resolution", "context_length", "vocab_size", "attn_mask", "text.attn_mask")
_IDS = re.compile(r".*position_ids")
# transformers' name -> open_clip's, before and inside of a layer
_TOWERS = {
    "text_model.embeddings.token_embedding.weight": "token_embedding.weight",
    "text_model.embeddings.position_embedding.weight": "positional_embedding",
    "text_model.final_layer_norm.": "ln_final.",
    "text_model.encoder.layers.": "transformer.resblocks.",
    "vision_model.embeddings.class_embedding": "visual.class_embedding",
    "vision_model.embeddings.patch_embedding.weight": "visual.conv1.weight",
    "vision_model.embeddings.position_embedding.weight": "visual.positional_embedding",
    "vision_model.pre_layrnorm.": "visual.ln_pre.",
    "vision_model.post_layernorm.": "visual.ln_post.",
    "vision_model.encoder.layers.": "visual.transformer.resblocks.",
}
_LAYERS = {
    ".self_attn.out_proj.": ".attn.out_proj.",
    ".layer_norm1.": ".ln_1.",
    ".layer_norm2.": ".ln_2.",
    ".mlp.fc1.": ".mlp.c_fc.",
    ".mlp.fc2.": ".mlp.c_proj.",
}
_PROJECTIONS = {"text_projection.weight": "text_projection", "visual_projection.weight": "visual.proj"}


@dataclass(frozen=True)
class Converted:
    """What was written, and what could not be matched."""

    folder: Path
    tensors: int
    names: str  # whose names the checkpoint has: "open_clip" or "transformers"
    prefix: str  # that was removed
    unused: tuple[str, ...]  # tensors of the checkpoint that the architecture does not have
    tokenizer: str  # command that gets the files of its tokenizer; "" if it is CLIP's own


def convert_model(
    file: str | Path, architecture: str, out: str | Path, *, logit_scale: float | None = None
) -> Converted:
    """Convert a checkpoint; no code of it is run.

    Args:
        file: a pickle (.pt, .pth, .bin, .ckpt) or safetensors file.
        architecture: a name of ``open_clip.list_models()``, or the path of an open_clip_config.json.
        out: the folder to write.
        logit_scale: the factor from cosine to logit, for a checkpoint that has none.

    Raises:
        InvalidCheckpointError: The file can't be read, or does not have all tensors of the architecture.
    """
    source, folder = Path(file).expanduser(), Path(out).expanduser()
    config = _config(architecture)
    if (folder / OPEN_CLIP_WEIGHTS[0]).exists():
        raise InvalidOptionError(f"'{folder}' has a model already.", hint="Give another folder with --out.")
    if source.suffix == ".safetensors":
        read_shapes(source)
        with library_errors(source):
            state = load_file(source)
    else:
        state = read_pickle(source)
    state, prefix = _without_prefix(state)
    names = "transformers" if any(name.startswith("text_model.") for name in state) else "open_clip"
    if names == "transformers":
        state = _from_transformers(state)
    _check_tower(config, folder)
    expected = {name: list(tensor.shape) for name, tensor in empty_model(config["model_cfg"], folder).items()}
    state = _as_custom_text(state, expected)
    if logit_scale is not None and "logit_scale" not in state:
        state["logit_scale"] = torch.tensor(logit_scale).log()
    _check(state, expected, source, architecture)
    kept = {name: state[name].clone().contiguous() for name in expected}
    write_atomic(folder / OPEN_CLIP_WEIGHTS[0], save(kept, metadata={"format": "pt"}))
    write_atomic(folder / CONFIG_NAME, f"{json.dumps(config, indent=2)}\n".encode())
    unused = tuple(sorted(name for name in state if name not in expected and not _is_setting(name)))
    command = _tokenizer_command(config["model_cfg"]["text_cfg"], folder)
    return Converted(folder, len(kept), names, prefix, unused, command)


def _config(architecture: str) -> dict[str, Any]:
    path = Path(architecture).expanduser()
    if path.suffix == ".json":
        return read_config(path)
    model = open_clip.get_model_config(architecture)
    if model is None:
        raise UnknownNameError.of("architecture", architecture, open_clip.list_models())
    tags = [
        open_clip.get_pretrained_cfg(architecture, tag) for tag in open_clip.list_pretrained_tags_by_model(architecture)
    ]
    keys = ("mean", "std", "interpolation", "resize_mode")
    found = [{key: tag[key] for key in keys if tag.get(key) is not None} for tag in tags]
    same = found[0] if found and all(one == found[0] for one in found) else {}
    return {"model_cfg": model, "preprocess_cfg": json.loads(json.dumps(same))}


def _check_tower(config: Mapping[str, Any], folder: Path) -> None:
    tower = config["model_cfg"]["text_cfg"].get("hf_model_name") if "model_cfg" in config else None
    if tower and not (folder / TEXT_CONFIG).is_file():
        raise InvalidCheckpointError(
            f"The text tower of this architecture is {tower}, whose configuration is not in '{folder / TEXT_CONFIG}'.",
            hint=f"Get it first: hf download {tower} config.json --local-dir '{(folder / TEXT_CONFIG).parent}'",
        )


def _without_prefix(state: Mapping[str, Tensor]) -> tuple[dict[str, Tensor], str]:
    """Return the tensors without a prefix that most of them have, such as ``module.model.``."""
    removed, current = "", dict(state)
    while True:
        common = [prefix for prefix in _PREFIXES if sum(name.startswith(prefix) for name in current) > len(current) / 2]
        if not common:
            return current, removed
        removed += common[0]
        current = {name.removeprefix(common[0]): tensor for name, tensor in current.items()}


def _from_transformers(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the tensors of transformers' CLIPModel under open_clip's names."""
    found: dict[str, Tensor] = {}
    for name, tensor in state.items():
        if name in _PROJECTIONS:
            found[_PROJECTIONS[name]] = tensor.T
            continue
        for old, new in _TOWERS.items():
            if name.startswith(old):
                name = new + name.removeprefix(old)
                break
        for old, new in _LAYERS.items():
            name = name.replace(old, new)
        found[name] = tensor
    for name in [name for name in found if name.endswith(".self_attn.q_proj.weight")]:
        layer = name.removesuffix(".self_attn.q_proj.weight")
        for kind in ("weight", "bias"):
            parts = [found.pop(f"{layer}.self_attn.{part}_proj.{kind}", None) for part in "qkv"]
            if all(part is not None for part in parts):
                found[f"{layer}.attn.in_proj_{kind}"] = torch.cat([part for part in parts if part is not None])
    return found


def _as_custom_text(state: dict[str, Tensor], expected: Mapping[str, object]) -> dict[str, Tensor]:
    """Move the text tower below ``text.``, or out of it, as the architecture has it."""
    wanted = any(name.startswith("text.") for name in expected)
    if wanted and "text_projection" in state:
        return dict(convert_to_custom_text_state_dict(state))
    if not wanted:
        return {name.removeprefix("text."): tensor for name, tensor in state.items()}
    return state


def _check(state: Mapping[str, Tensor], expected: Mapping[str, list[int]], source: Path, architecture: str) -> None:
    if "logit_scale" in expected and "logit_scale" not in state:
        raise InvalidCheckpointError(
            f"'{source}' has no trained logit scale, without which its confidence has no meaning.",
            hint="If its authors state the scale, or the temperature 1 / scale, give --logit-scale.",
        )
    state = {**state, **{name: state[name].reshape(()) for name in ("logit_scale",) if state[name].numel() == 1}}
    missing = [f"{name}: missing" for name in expected if name not in state]
    wrong = [
        f"{name}: {list(state[name].shape)} in the file, {shape} in {architecture}"
        for name, shape in expected.items()
        if name in state and list(state[name].shape) != shape and name != "logit_scale"
    ]
    if missing or wrong:
        shown = [*wrong, *missing]
        more = f", and {len(shown) - 10} more" if len(shown) > 10 else ""
        raise InvalidCheckpointError(
            f"'{source}' does not fit {architecture}: {'; '.join(shown[:10])}{more}.",
            hint="Give the --architecture that it was trained with: its authors name it, or the widths and numbers of "
            "layers show it. `python -c 'import open_clip; print(open_clip.list_models())'` lists all.",
        )


def _is_setting(name: str) -> bool:
    return name in _NOT_WEIGHTS or _IDS.fullmatch(name) is not None


def _tokenizer_command(text: Mapping[str, Any], folder: Path) -> str:
    name = text.get("hf_tokenizer_name")
    return f"hf download {name} --include {' '.join(map(repr, FILES))} --local-dir '{folder}'" if name else ""
