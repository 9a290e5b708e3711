"""Loads open_clip models by name, from folders and from hub repositories."""

from __future__ import annotations

import copy
import difflib
import json
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import open_clip
import torch
from open_clip.model import CLIP, CustomTextCLIP
from open_clip.tokenizer import HFTokenizer, SimpleTokenizer
from safetensors import safe_open
from torch import nn

from poise.backbones.check import check_model
from poise.backbones.encoder import Encoder
from poise.backbones.loaders import hub, schema
from poise.backbones.loaders.checkpoint import OPEN_CLIP_WEIGHTS as WEIGHTS
from poise.backbones.loaders.checkpoint import (
    check_logit_scale,
    check_patches,
    check_weights,
    find_weights,
    library_errors,
    read_config,
    read_shapes,
    refuse_pickle,
)
from poise.backbones.loaders.known_keys import HUGGING_FACE_TEXT, OPEN_CLIP_FILE, OPEN_CLIP_MODEL
from poise.backbones.loaders.new_keys import take_new_keys
from poise.backbones.loaders.openclip import wrap
from poise.backbones.loaders.tokenizer_files import FILES, check_tokenizer, clean_copy
from poise.errors import InvalidCheckpointError, ModelNotFoundError, UnknownNameError

CONFIG_NAME = "open_clip_config.json"
TEXT_CONFIG = (
    "text/config.json"  # beside it: configuration of a Hugging Face text tower, which it names by hf_model_name
)
_DECODER = "text_decoder."  # weights of CoCa that only captions need


def load_folder(path: str, *, device: torch.device, dtype: torch.dtype, logit_scale: float | None = None) -> Encoder:
    """Load a folder with open_clip_config.json and weights in safetensors (``local-dir:``), without the network."""
    folder = Path(path).expanduser()
    if not folder.is_dir():
        raise ModelNotFoundError(f"'{path}' is not a folder.", hint=f"Give a folder with {CONFIG_NAME} and weights.")
    config = _read_config(folder / CONFIG_NAME, local=True)
    model = build(config["model_cfg"], find_weights(folder), folder=folder, logit_scale=logit_scale)
    tokenizer = make_tokenizer(config["model_cfg"]["text_cfg"], lambda _: folder)
    read = config["model_cfg"], config["preprocess_cfg"]
    return _wrap(model, tokenizer, *read, name=f"local-dir:{path}", device=device, dtype=dtype)


def load_hub(
    repo: str,
    *,
    device: torch.device,
    dtype: torch.dtype,
    cache_dir: str | None = None,
    logit_scale: float | None = None,
) -> Encoder:
    """Load a Hugging Face hub repository in open_clip's format (``hf-hub:``)."""
    config = _read_config(hub.fetch(repo, [CONFIG_NAME], cache_dir))
    model = build(config["model_cfg"], hub.fetch(repo, WEIGHTS, cache_dir), cache_dir, logit_scale=logit_scale)
    tokenizer = make_tokenizer(config["model_cfg"]["text_cfg"], partial(_fetch_tokenizer, cache_dir=cache_dir))
    read = config["model_cfg"], config["preprocess_cfg"]
    return _wrap(model, tokenizer, *read, name=f"hf-hub:{repo}", device=device, dtype=dtype)


def _fetch_tokenizer(repo: str, cache_dir: str | None) -> Path:
    return hub.fetch_folder(repo, FILES, cache_dir, needs="tokenizer_config.json")


def _read_config(path: Path, *, local: bool = False) -> dict[str, Any]:
    """Read open_clip_config.json; ``local``: refuse what would need the network."""
    content = read_config(path)
    new: dict[str, dict[str, Any]] = {}
    if isinstance(model := content.get("model_cfg"), dict):
        content["model_cfg"], new = take_new_keys(_dual_encoder(model))
    config = schema.read(OPEN_CLIP_FILE, content, path)
    for section, values in new.items():
        (config["model_cfg"][section] if section else config["model_cfg"]).update(values)
    tower = path.parent / TEXT_CONFIG
    for section, key in (
        ("text_cfg", "hf_model_name"),
        ("text_cfg", "hf_model_pretrained"),
        ("vision_cfg", "timm_model_pretrained"),
    ):
        value = config["model_cfg"][section].get(key)
        if local and value and not (key == "hf_model_name" and tower.is_file()):
            hint = "Models in folders are loaded without the network: remove it, or load the model by a hub name."
            if key == "hf_model_name":
                hint = (
                    f"Put the config.json of {value} beside it, as {TEXT_CONFIG}: "
                    f"hf download {value} config.json --local-dir '{tower.parent}'."
                )
            raise InvalidCheckpointError(
                f"'{path}': model_cfg.{section}.{key} is {value!r}, which needs a download.", hint=hint
            )
    return {"preprocess_cfg": {}, **config}


def load_named(name: str, *, device: torch.device, dtype: torch.dtype, cache_dir: str | None = None) -> Encoder:
    """Load a model of open_clip's list by ``architecture/weights``, such as ViT-B-16/openai."""
    architecture, _, tag = name.rpartition("/")
    source = open_clip.get_pretrained_cfg(architecture, tag)
    if not source:
        raise _unknown(name)
    config = copy.deepcopy(open_clip.get_model_config(architecture))
    config["quick_gelu"] = uses_quick_gelu(name, config, source)
    model = build(config, named_weights(name, source, cache_dir), cache_dir)
    text = config["text_cfg"]
    if not text.get("hf_tokenizer_name") and "siglip" in architecture.lower():  # from open_clip's own list
        tokenizer: object = open_clip.get_tokenizer(architecture, cache_dir=cache_dir)
    else:
        tokenizer = make_tokenizer(text, partial(_fetch_tokenizer, cache_dir=cache_dir))
    return _wrap(model, tokenizer, config, source, name=name, device=device, dtype=dtype)


def _wrap(
    model: nn.Module, tokenizer: object, config: dict[str, Any], preprocess: dict[str, Any], *, name: str, **place: Any
) -> Encoder:
    new = take_new_keys(_dual_encoder(config))[1]
    with library_errors(name):
        encoder = wrap(model, tokenizer, preprocess, name=name, **place)
        encoder.token_ids(["a photo of a cat."])  # raises an error if the tokenizer is for another text tower
    if new and not check_model(encoder).equal:
        keys = ", ".join(sorted(key for values in new.values() for key in values))
        raise InvalidCheckpointError(
            f"The configuration of {name} has keys that poise does not know, and they change what is computed: {keys}.",
            hint="Use a version of poise that knows them, or another model.",
        )
    return encoder


def make_tokenizer(text: dict[str, Any], find: Callable[[str], Path]) -> object:
    """Return open_clip's tokenizer of a checked text_cfg; ``find`` returns the folder of a tokenizer's files."""
    options = dict(text.get("tokenizer_kwargs") or {})
    length = text.get("context_length", 77)
    source = text.get("hf_tokenizer_name")
    if not source:
        with library_errors("tokenizer_kwargs"):
            return SimpleTokenizer(context_length=length, **options) if options else _clip_tokenizer(length)
    folder = find(source)
    mode = text.get("tokenizer_mode")
    with clean_copy(folder, {}) as clean, library_errors(folder):
        safe = {"local_files_only": True, "trust_remote_code": False}
        tokenizer = HFTokenizer(str(clean), length, tokenizer_mode=mode, **options, **safe)
        check_tokenizer(tokenizer.tokenizer, folder)
        return tokenizer


@lru_cache(2)  # making one takes longer than loading a small model
def _clip_tokenizer(length: int) -> SimpleTokenizer:
    return SimpleTokenizer(context_length=length)


def known_names() -> list[str]:
    """Return all ``architecture/weights`` names of the installed open_clip."""
    return [f"{architecture}/{tag}" for architecture, tag in open_clip.list_pretrained()]


def _dual_encoder(model: dict[str, Any]) -> dict[str, Any]:
    """Return a ``model_cfg`` of CoCa without its decoder; any other as it is."""
    if "multimodal_cfg" not in model:
        return model
    if not isinstance(model["multimodal_cfg"], dict) or not model["multimodal_cfg"]:
        raise InvalidCheckpointError(
            "model_cfg.multimodal_cfg, the decoder of CoCa, has no keys.", hint="Download the configuration again."
        )
    return {key: value for key, value in model.items() if key != "multimodal_cfg"} | {"custom_text": True}


def build(
    config: dict[str, Any],
    weights: Path | None,
    cache_dir: str | None = None,
    *,
    folder: Path | None = None,
    logit_scale: float | None = None,
) -> nn.Module:
    """Create the model of a ``model_cfg`` and load ``weights``, without changing the global random state.

    Of CoCa, the two encoders are created. A Hugging Face text tower's configuration is read from ``folder``, or from
    the hub. ``logit_scale`` is that of a model whose weights have none.
    """
    with _making(config, cache_dir, folder) as make:
        if weights is not None:
            _check_before(make, weights, timm="timm_model_name" in config["vision_cfg"])
        model: nn.Module = make()
    if weights is None:
        return model
    names = read_shapes(weights)
    check_logit_scale(names, logit_scale, weights)
    with library_errors(weights):
        if logit_scale is None and not any(name.startswith(_DECODER) for name in names):
            open_clip.load_checkpoint(model, str(weights), strict=True)
        else:
            given = {} if logit_scale is None else {"logit_scale": torch.tensor(logit_scale).log()}
            model.load_state_dict(_without_decoder(weights) | given)
    return model


def empty_model(config: dict[str, Any], folder: Path) -> dict[str, torch.Tensor]:
    """Return the weights of a ``model_cfg`` as tensors without values."""
    with _making(config, None, folder) as make:
        try:
            with torch.device("meta"):
                return dict(make().state_dict())
        except (NotImplementedError, RuntimeError):  # some of timm's architectures compute values while they are built
            return dict(make().state_dict())


@contextmanager
def _making(config: dict[str, Any], cache_dir: str | None, folder: Path | None) -> Iterator[Callable[[], nn.Module]]:
    """Yield what creates the model of a ``model_cfg``, after checking it."""
    content, new = take_new_keys(copy.deepcopy(_dual_encoder(config)))
    config = schema.read(OPEN_CLIP_MODEL, content, "model_cfg")
    for section, values in new.items():
        (config[section] if section else config).update(values)
    text, vision = config["text_cfg"], config["vision_cfg"]
    custom = bool(config.pop("custom_text", False)) or "hf_model_name" in text
    check_patches(vision.get("image_size", 224), vision.get("patch_size"), "model_cfg.vision_cfg")
    if "timm_model_name" in vision:
        vision["timm_model_pretrained"] = False
        _check_architecture(vision["timm_model_name"])
    errors = library_errors("model_cfg", "Check model_cfg.")
    with _text_config(text, cache_dir, folder), errors, torch.random.fork_rng([]):
        yield partial(CustomTextCLIP if custom else CLIP, **config)


def _without_decoder(weights: Path) -> dict[str, torch.Tensor]:
    with safe_open(weights, framework="pt") as file:
        return {name: file.get_tensor(name) for name in file.keys() if not name.startswith(_DECODER)}  # noqa: SIM118


def _check_before(make: Callable[[], nn.Module], weights: Path, *, timm: bool) -> None:
    """Compare the weights with the configuration before memory for the model is allocated."""
    read_shapes(weights)
    try:
        with torch.device("meta"):
            empty = make()
    except (NotImplementedError, RuntimeError):
        if not timm:
            raise
        return  # some of timm's architectures compute values while they are built; their sizes are timm's own
    check_weights([weights], empty, flexible=("position", "logit_"))


def _check_architecture(name: str) -> None:
    import timm

    if not timm.is_model(name):
        raise InvalidCheckpointError(
            f"model_cfg.vision_cfg.timm_model_name is {name!r}.", hint="Accepted: a name of timm.list_models()."
        )


@contextmanager
def _text_config(text: dict[str, Any], cache_dir: str | None, local: Path | None) -> Iterator[None]:
    """Replace the hub name of a Hugging Face text tower by a folder with its checked configuration."""
    if "hf_model_name" not in text:
        yield
        return
    file = local / TEXT_CONFIG if local else hub.fetch(text["hf_model_name"], ["config.json"], cache_dir)
    config = schema.read(HUGGING_FACE_TEXT, read_config(file), file)
    with tempfile.TemporaryDirectory(prefix="poise-model-") as folder:
        (Path(folder) / "config.json").write_text(json.dumps(config), encoding="utf-8")
        text.update(hf_model_name=folder, hf_model_pretrained=False)
        yield


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
        raise refuse_pickle(str(source.get("url", name)).rsplit("/", 1)[-1])
    repo, _, file = location.rpartition("/")
    if not file:
        return hub.fetch(repo, WEIGHTS[:2], cache_dir)
    return hub.fetch(repo, [f"{file.rsplit('.', 1)[0]}.safetensors"], cache_dir)


def _unknown(name: str) -> UnknownNameError:
    from poise.backbones.load import models

    scheme, colon, _ = name.partition(":")
    names = known_names()
    known = {known.lower(): known for known in names}
    forms = {row: models.get(row).form for row in models}  # pocket, local-dir:PATH and so on
    near = [forms[row] for row in difflib.get_close_matches(scheme.lower(), forms, n=1, cutoff=0.6)]
    if not near and not colon:
        tags = [known for known in names if known.lower().startswith(f"{name.lower()}/")]  # the weights are missing
        close = difflib.get_close_matches(name.lower(), known, n=3, cutoff=0.7)
        near = tags[:3] or [known[found] for found in close]
    organisation, slash, repository = name.partition("/")
    if not near and not colon and slash and repository and organisation not in open_clip.list_models():
        return UnknownNameError(
            f"Unknown model '{name}'.",
            hint=f"For a repository of the Hugging Face hub, write transformers:{name} (it has config.json) or "
            f"hf-hub:{name} (it has {CONFIG_NAME}).",
        )
    guess = f" Did you mean {' or '.join(map(repr, near))}?" if near else ""
    return UnknownNameError(
        f"Unknown model '{name}'.{guess}",
        hint="Accepted: a name that `poise list models` shows, such as pocket or ViT-B-16/openai, or local-dir:PATH.",
    )
