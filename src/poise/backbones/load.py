"""Loads models by name."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

import torch

from poise.backbones.encoder import Encoder
from poise.backbones.placement import FLOAT8, OPENVINO, Placement, resolve
from poise.errors import InvalidOptionError, UnknownNameError
from poise.registry import Registry
from poise.threads import check_process
from poise.types import DualEncoder

Loader = Callable[[str, Placement], DualEncoder]


@dataclass(frozen=True)
class ModelRow:
    """One kind of model name that `load_model` accepts."""

    form: str  # a name ("pocket"), or a scheme and its argument ("local-dir:PATH")
    about: str
    load: Loader  # called with the argument of the scheme, or ""
    download: bool = False  # whether files are downloaded on first use
    recommended: str = ""  # use for which it is recommended
    marker: str = ""  # file that identifies a folder of this kind

    def describe(self) -> str:
        """Return a description in one line."""
        download = "downloaded on first use" if self.download else ""
        recommended = f"recommended for {self.recommended}" if self.recommended else ""
        return "; ".join(filter(None, [self.about, download, recommended]))


log = logging.getLogger(__name__)
models: Registry[ModelRow] = Registry("kind of model", of=ModelRow)
_WITHOUT_SCALE = ("local-dir", "hf-hub", "transformers")  # schemes whose models may have no trained logit scale
_NAMED = "open_clip"  # scheme of names that have none
_RECOMMENDED = {"ViT-B-16/openai": "the published tables"}


def load_model(
    name: str,
    *,
    device: str | torch.device = "auto",
    dtype: str | torch.dtype = "auto",
    cache_dir: str | None = None,
    logit_scale: float | None = None,
) -> DualEncoder:
    """Load a model as an encoder of images and texts.

    Args:
        name: ``pocket``, ``tiny``, an open_clip name (``ViT-B-16/openai``), ``hf-hub:ORG/REPO``,
            ``local-dir:PATH`` (a folder in open_clip's format), ``transformers:ORG/REPO`` or ``transformers:PATH``,
            ``onnx:FILE`` (a file of `poise export onnx`).
        device: "auto" chooses CUDA, else MPS, else the CPU. "openvino" is the CPU, where OpenVINO computes the image
            tower: faster, as exact, and seconds slower to load.
        dtype: "auto" is float16 on CUDA and float32 elsewhere; bfloat16 and float64 on CUDA and float64 on the CPU are
            also accepted. "float8" on CUDA is float16 with the image tower's large matrix products in 8 bits, and
            "bfloat16" with OpenVINO is float32 with the image tower in bfloat16: faster, and less exact
            (docs/speed.md).
        cache_dir: Folder for downloaded files; by default the cache of the Hugging Face hub.
        logit_scale: The factor from cosine to logit, of a model whose checkpoint has none; it is never guessed.

    Example:
        >>> load_model("tiny", device="cpu").name
        'tiny'
    """
    if not isinstance(name, str) or not name.strip():
        raise InvalidOptionError(f"A model name must be a string, got {name!r}.", hint="Try 'ViT-B-16/openai'.")
    check_process()
    place, began = replace(resolve(device, dtype, cache_dir), logit_scale=logit_scale), time.perf_counter()
    encoder = _loaded(name, place)
    seconds = time.perf_counter() - began
    log.info("model %s: loaded in %.2f s, on %s in %s", name, seconds, place.device_name, place.dtype_name)
    return encoder


def _loaded(name: str, place: Placement) -> DualEncoder:
    scheme, _, rest = name.partition(":")
    if scheme in models:
        row = models.get(scheme)
        if bool(rest) != (":" in row.form):
            raise UnknownNameError(f"'{name}' is not a model name.", hint=f"Write {row.form}.")
        if place.logit_scale is not None and scheme not in _WITHOUT_SCALE:
            raise InvalidOptionError(f"'{name}' has a logit scale of its own.", hint="Leave logit_scale out.")
        return _with_image_engine(check_encoder(row.load(rest, place), f"The model '{name}'"), place)
    _refuse_folder(name)
    if place.logit_scale is not None:
        raise InvalidOptionError(f"'{name}' has a logit scale of its own.", hint="Leave logit_scale out.")
    return _with_image_engine(models.get(_NAMED).load(name, place), place)


def check_encoder(encoder: object, owner: str = "The model") -> DualEncoder:
    """Return an encoder that others made; raise an error that names what it lacks of `poise.types.DualEncoder`."""
    members = [*DualEncoder.__annotations__, *(name for name in vars(DualEncoder) if not name.startswith("_"))]
    if missing := [name for name in members if not hasattr(encoder, name)]:
        raise InvalidOptionError(
            f"{owner} is of the type {type(encoder).__name__}, which has no {', '.join(missing)}.",
            hint="Give a name, or an object with all members of poise.types.DualEncoder.",
        )
    return cast(DualEncoder, encoder)


def _with_image_engine(encoder: DualEncoder, place: Placement) -> DualEncoder:
    """Return the encoder, with its image tower in float8 or in OpenVINO where the placement says so."""
    engine = FLOAT8 if place.dtype_name == FLOAT8 else place.device_name
    if engine not in (FLOAT8, OPENVINO):
        return encoder
    if not isinstance(encoder, Encoder):
        raise InvalidOptionError(f"'{encoder.name}' can't run with {engine}.", hint="Leave the option out.")
    if engine == FLOAT8:
        encoder.use_float8()
    else:
        encoder.use_openvino(place.dtype_name)
    return encoder


def is_downloaded(name: str) -> bool:
    """Return whether loading this model may contact other machines.

    >>> is_downloaded("pocket"), is_downloaded("ViT-B-16/openai"), is_downloaded("transformers:.")
    (False, True, False)
    """
    scheme, _, rest = name.partition(":")
    row = models.get(scheme if scheme in models else _NAMED)
    return row.download and not (row.marker and os.path.isdir(os.path.expanduser(rest)))


def list_models() -> list[str]:
    """Return the names that `poise.load_model` and ``poise.Classifier(model=...)`` accept.

    Capital letters stand for a folder or repository: ``local-dir:PATH``, ``hf-hub:ORG/REPO``.
    """
    return [name for name, _ in describe_models()]


def describe_models() -> list[tuple[str, str]]:
    """Return the names that `load_model` accepts with their descriptions."""
    from poise.backbones.loaders.openclip_load import known_names

    rows = [models.get(scheme) for scheme in models if scheme != _NAMED]
    named = models.get(_NAMED)
    rows += [replace(named, form=name, recommended=_RECOMMENDED.get(name, "")) for name in known_names()]
    return [(row.form, row.describe()) for row in rows]


def folder_name(name: str) -> str:
    """Return the model name of a folder that is of one kind; any other name as it is."""
    schemes = list(_kinds_of(name) or {})
    return f"{schemes[0]}:{name}" if len(schemes) == 1 else name


def _kinds_of(name: str) -> dict[str, str] | None:
    """Return the schemes that a folder may be loaded with, and the file that says so; None if it is not a folder."""
    try:
        folder = Path(name).expanduser()
        if not folder.is_dir():
            return None
    except (OSError, RuntimeError, ValueError):  # too long, the home of an unknown user, a null character
        return None
    markers = {scheme: models.get(scheme).marker for scheme in models}
    return {scheme: file for scheme, file in markers.items() if file and (folder / file).is_file()}


def _refuse_folder(name: str) -> None:
    """Raise an error that suggests a scheme if ``name`` is a folder."""
    found = _kinds_of(name)
    if found is None:
        return
    kinds = {scheme: models.get(scheme).marker for scheme in models if models.get(scheme).marker}
    names = [f"{scheme}:{name} (it has {file})" for scheme, file in found.items()]
    missing = f"It has none of {', '.join(kinds.values())}, so poise can't load it."
    hint = f"Write {' or '.join(names)}." if names else missing
    raise UnknownNameError(f"Unknown model '{name}': it is a folder.", hint=hint)


def _options(place: Placement) -> dict[str, Any]:
    return {name: getattr(place, name) for name in ("device", "dtype", "cache_dir", "logit_scale")}


# Loaders are imported when they are used, since their libraries take seconds to import.
def _pocket(_: str, place: Placement) -> DualEncoder:
    from poise.backbones.loaders.pocket import load_pocket

    return load_pocket(device=place.device, dtype=place.dtype)


def _pocket_1(path: str, place: Placement) -> DualEncoder:
    from poise.backbones.loaders.pocket import load_pocket_1

    return load_pocket_1(Path(path).expanduser(), device=place.device, dtype=place.dtype)


def _tiny(_: str, place: Placement) -> DualEncoder:
    from poise.backbones.loaders.tiny import load_tiny

    return load_tiny(device=place.device, dtype=place.dtype)


def _local_dir(path: str, place: Placement) -> DualEncoder:
    from poise.backbones.loaders.openclip_load import load_folder

    return load_folder(path, device=place.device, dtype=place.dtype, logit_scale=place.logit_scale)


def _hf_hub(repo: str, place: Placement) -> DualEncoder:
    from poise.backbones.loaders.openclip_load import load_hub

    return load_hub(repo, **_options(place))


def _transformers(source: str, place: Placement) -> DualEncoder:
    from poise.backbones.loaders.transformers import load_transformers

    return load_transformers(source, **_options(place))


def _onnx(path: str, place: Placement) -> DualEncoder:
    from poise.backbones.loaders.onnx_file import load_onnx

    return load_onnx(path, device=place.device, dtype=place.dtype)


def _open_clip(name: str, place: Placement) -> DualEncoder:
    from poise.backbones.loaders.openclip_load import load_named

    return load_named(name, device=place.device, dtype=place.dtype, cache_dir=place.cache_dir)


for _row in (
    ModelRow(
        "pocket", "the embedded model: small, trained; the default", _pocket, recommended="first steps, and for CPUs"
    ),
    ModelRow("tiny", "seeded random weights: its answers mean nothing", _tiny, recommended="tests"),
    ModelRow("pocket-1:PATH", "a folder with the first weights of pocket, whose token vectors were larger", _pocket_1),
    ModelRow("local-dir:PATH", "a folder in open_clip's format", _local_dir, marker="open_clip_config.json"),
    ModelRow("hf-hub:ORG/REPO", "an open_clip model on the Hugging Face hub", _hf_hub, download=True),
    ModelRow(
        "transformers:ORG/REPO or PATH",
        "a CLIP or SigLIP model of transformers, on the hub or in a folder",
        _transformers,
        download=True,
        marker="config.json",
    ),
    ModelRow("onnx:FILE", "a classifier that `poise export onnx` wrote, with its own labels, on a CPU", _onnx),
    ModelRow("open_clip:ARCHITECTURE/WEIGHTS", "open_clip", _open_clip, download=True),
):
    models.add(_row.form.partition(":")[0])(_row)
