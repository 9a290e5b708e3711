"""Loads open_clip models by name, from folders and from hub repositories."""

from __future__ import annotations

import copy
import difflib
from pathlib import Path
from typing import Any

import open_clip
import torch
from open_clip.model import CLIP, CustomTextCLIP
from torch import nn

from poise.backbones.encoder import Encoder
from poise.backbones.loaders import hub
from poise.backbones.loaders.checkpoint import OPEN_CLIP_WEIGHTS as WEIGHTS
from poise.backbones.loaders.checkpoint import check_readable, find_weights, read_config, refuse_pickle
from poise.backbones.loaders.openclip import wrap
from poise.errors import InvalidCheckpointError, InvalidOptionError, ModelNotFoundError, UnknownNameError

CONFIG_NAME = "open_clip_config.json"


def load_folder(path: str, *, device: torch.device, dtype: torch.dtype) -> Encoder:
    """Load a folder with open_clip_config.json and weights in safetensors (``local-dir:``)."""
    folder = Path(path).expanduser()
    if not folder.is_dir():
        raise ModelNotFoundError(f"'{path}' is not a folder.", hint=f"Give a folder with {CONFIG_NAME} and weights.")
    config = _read_config(folder / CONFIG_NAME)
    model = build(config["model_cfg"], find_weights(folder))
    tokenizer = open_clip.get_tokenizer(f"local-dir:{folder}")
    return wrap(model, tokenizer, config["preprocess_cfg"], name=f"local-dir:{path}", device=device, dtype=dtype)


def load_hub(repo: str, *, device: torch.device, dtype: torch.dtype, cache_dir: str | None = None) -> Encoder:
    """Load a Hugging Face hub repository in open_clip's format (``hf-hub:``)."""
    config = _read_config(hub.fetch(repo, [CONFIG_NAME], cache_dir))
    model = build(config["model_cfg"], hub.fetch(repo, WEIGHTS, cache_dir))
    tokenizer = open_clip.get_tokenizer(f"hf-hub:{repo}", cache_dir=cache_dir)
    return wrap(model, tokenizer, config["preprocess_cfg"], name=f"hf-hub:{repo}", device=device, dtype=dtype)


def _read_config(path: Path) -> dict[str, Any]:
    config = read_config(path)
    if not isinstance(config.get("model_cfg"), dict):
        raise InvalidCheckpointError(f"'{path}' has no 'model_cfg'.", hint="It must describe an open_clip model.")
    return {"preprocess_cfg": {}, **config}


def load_named(name: str, *, device: torch.device, dtype: torch.dtype, cache_dir: str | None = None) -> Encoder:
    """Load a model of open_clip's list by ``architecture/weights``, such as ViT-B-16/openai."""
    architecture, _, tag = name.rpartition("/")
    source = open_clip.get_pretrained_cfg(architecture, tag)
    if not source:
        raise _unknown(name)
    config = copy.deepcopy(open_clip.get_model_config(architecture))
    config["quick_gelu"] = uses_quick_gelu(name, config, source)
    model = build(config, named_weights(name, source, cache_dir))
    tokenizer = open_clip.get_tokenizer(architecture, cache_dir=cache_dir)
    return wrap(model, tokenizer, source, name=name, device=device, dtype=dtype)


def known_names() -> list[str]:
    """Return all ``architecture/weights`` names of the installed open_clip."""
    return [f"{architecture}/{tag}" for architecture, tag in open_clip.list_pretrained()]


def build(config: dict[str, Any], weights: Path | None) -> nn.Module:
    """Create the model of ``config`` and load ``weights``, without changing the global random state."""
    config = copy.deepcopy(config)
    if "multimodal_cfg" in config:
        raise InvalidOptionError("CoCa models are not supported.", hint="Use a CLIP or SigLIP model.")
    text, vision = config.get("text_cfg", {}), config.get("vision_cfg", {})
    custom = bool(config.pop("custom_text", False)) or "hf_model_name" in text
    if "hf_model_name" in text:
        text["hf_model_pretrained"] = False
    if "timm_model_name" in vision:
        vision["timm_model_pretrained"] = False
    if weights is not None:
        check_readable(weights)
    try:
        with torch.random.fork_rng(devices=[]):
            model: nn.Module = (CustomTextCLIP if custom else CLIP)(**config)
    except (TypeError, ValueError, KeyError, RuntimeError, AssertionError, ZeroDivisionError) as error:
        raise InvalidCheckpointError(f"The model can't be built: {error}.", hint="Check model_cfg.") from error
    if weights is not None:
        _fill(model, weights)
    return model


def _fill(model: nn.Module, weights: Path) -> None:
    try:
        open_clip.load_checkpoint(model, str(weights), strict=True)
    except (RuntimeError, KeyError, ValueError, AttributeError) as error:
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        raise InvalidCheckpointError(
            f"'{weights}' does not fit its configuration: {' '.join(lines[1:6]) or lines}",
            hint="The weights and the configuration must come from the same model.",
        ) from error


def uses_quick_gelu(name: str, config: dict[str, Any], source: dict[str, Any]) -> bool:
    """Return whether weights were trained with QuickGELU, which depends on the tag, not on the architecture."""
    trained, stated = bool(source.get("quick_gelu", False)), bool(config.get("quick_gelu", False))
    if stated and not trained:
        raise InvalidCheckpointError(
            f"'{name}' pairs an architecture with quick_gelu={stated} and weights trained with quick_gelu={trained}.",
            hint="Use the architecture's name without '-quickgelu'.",
        )
    return trained


def named_weights(name: str, source: dict[str, Any], cache_dir: str | None) -> Path:
    """Return the file of the weights in open_clip's configuration ``source``; download it if it is not cached."""
    location = str(source.get("hf_hub", ""))
    if not location:
        raise refuse_pickle(str(source.get("url", name)).rsplit("/", 1)[-1], WEIGHTS[0])
    repo, _, file = location.rpartition("/")
    if not file:
        return hub.fetch(repo, WEIGHTS[:2], cache_dir)
    return hub.fetch(repo, [f"{file.rsplit('.', 1)[0]}.safetensors"], cache_dir)


def _unknown(name: str) -> UnknownNameError:
    near = difflib.get_close_matches(name, known_names(), n=3, cutoff=0.5)
    guess = f" Did you mean {' or '.join(map(repr, near))}?" if near else ""
    return UnknownNameError(
        f"Unknown model '{name}'.{guess}",
        hint="Accepted: a name that `poise list models` shows, such as pocket or ViT-B-16/openai, or local-dir:PATH.",
    )
