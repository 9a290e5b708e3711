"""A model's name becomes an encoder on a device, in a dtype."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from poise.errors import InvalidOptionError, UnknownNameError
from poise.registry import Registry
from poise.types import DualEncoder

_DTYPES = {
    "float32": torch.float32,
    "fp32": torch.float32,
    "float16": torch.float16,
    "fp16": torch.float16,
    "bfloat16": torch.bfloat16,
    "bf16": torch.bfloat16,
    "float64": torch.float64,
    "fp64": torch.float64,
}


@dataclass(frozen=True)
class Placement:
    """Where and how a model is loaded."""

    device: torch.device
    dtype: torch.dtype
    cache_dir: str | None = None


Loader = Callable[[str, Placement], DualEncoder]


@dataclass(frozen=True)
class ModelRow:
    """One kind of name that `load_model` takes."""

    form: str  # as it is written: a bare name ("pocket"), or a scheme and what follows it ("local-dir:PATH")
    about: str
    load: Loader  # from what follows the scheme
    download: bool = False  # whether files are fetched on first use
    recommended: str = ""  # for what
    marker: str = ""  # the file by which a folder of this kind is known

    def describe(self) -> str:
        """A line about it."""
        notes = ["downloaded on first use"] * self.download + [f"recommended for {self.recommended}"] * bool(
            self.recommended
        )
        return "; ".join([self.about, *notes])


models: Registry[ModelRow] = Registry("kind of model")
_NAMED = "open_clip"  # the scheme of names without one
_RECOMMENDED = {"ViT-B-16/openai": "the published tables"}


def load_model(
    name: str, *, device: str | torch.device = "auto", dtype: str | torch.dtype = "auto", cache_dir: str | None = None
) -> DualEncoder:
    """Load a model as an encoder of images and texts.

    Args:
        name: ``pocket``, ``tiny``, an open_clip name (``ViT-B-16/openai``), ``hf-hub:ORG/REPO``,
            ``local-dir:PATH`` (a folder in open_clip's format), ``transformers:ORG/REPO`` or ``transformers:PATH``.
        device: "auto" takes CUDA, else MPS, else the CPU.
        dtype: "auto" is float16 on CUDA and float32 elsewhere; bfloat16 on CUDA and float64 on the CPU are options.
        cache_dir: where downloaded files are kept; the hub's own cache by default.

    Example:
        >>> load_model("tiny", device="cpu").name
        'tiny'
    """
    if not isinstance(name, str) or not name.strip():
        raise InvalidOptionError(f"A model's name must be a string, got {name!r}.", hint="Try 'ViT-B-16/openai'.")
    place = resolve(device, dtype, cache_dir)
    scheme, _, rest = name.partition(":")
    if scheme in models:
        row = models.get(scheme)
        if bool(rest) != (":" in row.form):
            raise UnknownNameError(f"'{name}' is not a model's name.", hint=f"Write {row.form}.")
        return row.load(rest, place)
    _refuse_folder(name)
    return models.get(_NAMED).load(name, place)


def list_models() -> list[str]:
    """The names that `poise.load_model` and ``poise.Classifier(model=...)`` take.

    In those with capital letters put your own folder or repository: ``local-dir:PATH``, ``hf-hub:ORG/REPO``.
    """
    return [name for name, _ in describe_models()]


def describe_models() -> list[tuple[str, str]]:
    """The names that `load_model` takes, each with a line about it."""
    from poise.backbones.loaders.openclip_load import known_names

    rows = [models.get(scheme) for scheme in models if scheme != _NAMED]
    named = models.get(_NAMED)
    rows += [replace(named, form=name, recommended=_RECOMMENDED.get(name, "")) for name in known_names()]
    return [(row.form, row.describe()) for row in rows]


def _refuse_folder(name: str) -> None:
    """Say how a folder is written, where a name without a scheme is one."""
    try:
        folder = Path(name).expanduser()
        exists = folder.is_dir()
    except (OSError, RuntimeError, ValueError):  # too long, the home of an unknown user, a null character
        return
    if not exists:
        return
    kinds = {scheme: models.get(scheme).marker for scheme in models if models.get(scheme).marker}
    found = [f"{scheme}:{name} (it has {file})" for scheme, file in kinds.items() if (folder / file).is_file()]
    missing = f"It has none of {', '.join(kinds.values())}, so poise can't load it."
    raise UnknownNameError(
        f"Unknown model '{name}': it is a folder.", hint=f"Write {' or '.join(found)}." if found else missing
    )


def resolve(device: str | torch.device, dtype: str | torch.dtype, cache_dir: str | None = None) -> Placement:
    """The device and dtype that two options stand for, or an error where this machine can't do them."""
    chosen = _device(device)
    if isinstance(dtype, str) and dtype != "auto" and dtype not in _DTYPES:
        raise InvalidOptionError(f"dtype={dtype!r} is not accepted.", hint=f"Accepted: auto, {', '.join(_DTYPES)}.")
    if dtype == "auto":
        number = torch.float16 if chosen.type == "cuda" else torch.float32
    else:
        number = _DTYPES[dtype] if isinstance(dtype, str) else dtype
    allowed = {"cuda": set(_DTYPES.values()), "cpu": {torch.float32, torch.float64}}.get(chosen.type, {torch.float32})
    if number not in allowed:
        names = ", ".join(sorted(str(each).removeprefix("torch.") for each in allowed))
        raise InvalidOptionError(f"dtype={dtype} is not accepted on {chosen.type}.", hint=f"Accepted there: {names}.")
    return Placement(chosen, number, cache_dir)


def _device(device: str | torch.device) -> torch.device:
    if device == "auto":
        if torch.cuda.is_available():
            return torch.device("cuda")
        return torch.device("mps" if torch.backends.mps.is_available() else "cpu")
    try:
        chosen = torch.device(device)
    except (RuntimeError, TypeError) as error:
        raise InvalidOptionError(
            f"device={device!r} is not accepted.", hint="Accepted: auto, cpu, cuda, cuda:1 and so on, mps."
        ) from error
    counts = {"cpu": 1, "cuda": torch.cuda.device_count(), "mps": int(torch.backends.mps.is_available())}
    if (chosen.index or 0) >= counts.get(chosen.type, 0):
        here = [kind for kind, count in counts.items() if count]
        raise InvalidOptionError(f"The device '{device}' is not available.", hint=f"Here: auto, {', '.join(here)}.")
    return chosen


def _model(
    form: str, about: str, *, download: bool = False, recommended: str = "", marker: str = ""
) -> Callable[[Loader], Loader]:
    def add(load: Loader) -> Loader:
        row = ModelRow(form, about, load, download=download, recommended=recommended, marker=marker)
        models.add(form.partition(":")[0])(row)
        return load

    return add


@_model("pocket", "the embedded model: small, trained; the default", recommended="first steps, and for CPUs")
def _pocket(_: str, place: Placement) -> DualEncoder:
    from poise.backbones.loaders.pocket import load_pocket

    return load_pocket(device=place.device, dtype=place.dtype)


@_model("tiny", "seeded random weights: its answers mean nothing", recommended="tests")
def _tiny(_: str, place: Placement) -> DualEncoder:
    from poise.backbones.loaders.tiny import load_tiny

    return load_tiny(device=place.device, dtype=place.dtype)


@_model("local-dir:PATH", "a folder in open_clip's format", marker="open_clip_config.json")
def _local_dir(path: str, place: Placement) -> DualEncoder:
    from poise.backbones.loaders.openclip_load import load_folder

    return load_folder(path, device=place.device, dtype=place.dtype)


@_model("hf-hub:ORG/REPO", "an open_clip model on the Hugging Face hub", download=True)
def _hf_hub(repo: str, place: Placement) -> DualEncoder:
    from poise.backbones.loaders.openclip_load import load_hub

    return load_hub(repo, device=place.device, dtype=place.dtype, cache_dir=place.cache_dir)


@_model(
    "transformers:ORG/REPO or PATH",
    "a CLIP or SigLIP model of transformers, on the hub or in a folder",
    download=True,
    marker="config.json",
)
def _transformers(source: str, place: Placement) -> DualEncoder:
    from poise.backbones.loaders.transformers import load_transformers

    return load_transformers(source, device=place.device, dtype=place.dtype, cache_dir=place.cache_dir)


@_model("open_clip:ARCHITECTURE/WEIGHTS", "open_clip", download=True)
def _open_clip(name: str, place: Placement) -> DualEncoder:
    from poise.backbones.loaders.openclip_load import load_named

    return load_named(name, device=place.device, dtype=place.dtype, cache_dir=place.cache_dir)
