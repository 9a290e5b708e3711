"""Finds and checks weights and configurations on disk, without running code from them."""

from __future__ import annotations

import json
import math
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from torch import nn

from poise.backbones.loaders.known_keys import LARGEST_MODEL, MOST_PATCHES
from poise.errors import (
    InvalidCheckpointError,
    InvalidOptionError,
    MissingDependencyError,
    ModelNotFoundError,
    PoiseError,
    reason_of,
)

OPEN_CLIP_WEIGHTS = ("open_clip_model.safetensors", "open_clip_pytorch_model.safetensors", "model.safetensors")
_PICKLES = (".bin", ".pt", ".pth", ".ckpt", ".pkl")
_LARGEST_JSON = 128 * 2**20  # the largest tokenizer.json in use has 34 MB
_MOST_TENSORS = 100_000
_LARGEST_SCALE = 10_000
_DTYPES = ("F64", "F32", "F16", "BF16", "I64", "I32", "BOOL")
_SAME_MODEL = "The weights and the configuration must come from the same model."


def refuse_pickle(source: Path | str) -> InvalidCheckpointError:
    """Return the error for a pickle checkpoint, which could run code when it is read."""
    return InvalidCheckpointError(
        f"'{source}' is a pickle checkpoint, which can run code when it is loaded; only safetensors are accepted.",
        hint=f"Convert it once; no code of it is run: poise convert model '{source}' --architecture NAME --out FOLDER, "
        "where NAME is the architecture in open_clip, or the path of its open_clip_config.json.",
    )


def find_weights(folder: Path, preferred: Sequence[str] = OPEN_CLIP_WEIGHTS) -> Path:
    """Return the safetensors file in ``folder``: the first that exists of ``preferred``, or else the only one."""
    for name in preferred:
        if (folder / name).is_file():
            return folder / name
    files = sorted(folder.glob("*.safetensors"))
    if len(files) == 1:
        return files[0]
    if files:
        raise InvalidCheckpointError(
            f"'{folder}' has several safetensors files: {', '.join(file.name for file in files)}.",
            hint=f"Name the one to load {preferred[0]}.",
        )
    pickles = sorted(file for file in folder.iterdir() if file.suffix in _PICKLES)
    if pickles:
        raise refuse_pickle(pickles[0])
    raise ModelNotFoundError(f"'{folder}' has no weights.", hint=f"Put {preferred[0]} there.")


def read_shapes(weights: Path) -> dict[str, list[int]]:
    """Return the shape of each tensor from the header; raise an error if the file is damaged, empty or foreign."""
    try:
        if not weights.is_file():
            raise ValueError("it is not a file")
        with safe_open(weights, framework="pt") as file:
            names = list(file.keys())
            slices = {name: file.get_slice(name) for name in names[:_MOST_TENSORS]}
            shapes = {name: list(part.get_shape()) for name, part in slices.items()}
            dtypes = {str(part.get_dtype()) for part in slices.values()}
    except (SafetensorError, OSError, ValueError, OverflowError) as error:
        message = f"'{weights}' is not a readable safetensors file: {reason_of(error)}."
        raise InvalidCheckpointError(message, hint="Download it again.") from error
    if not names or len(names) > _MOST_TENSORS:
        raise InvalidCheckpointError(
            f"'{weights}' contains {len(names)} tensors.", hint=f"Accepted: 1-{_MOST_TENSORS}."
        )
    if dtypes - {*_DTYPES}:
        found = ", ".join(sorted(dtypes - {*_DTYPES}))
        raise InvalidCheckpointError(f"'{weights}' has tensors of the dtype {found}.", hint=f"Accepted: {_DTYPES}.")
    return shapes


def check_weights(files: Sequence[Path], model: nn.Module, *, flexible: Sequence[str] = ()) -> None:
    """Compare weights with a model on the device "meta", before memory for it is allocated.

    Args:
        files: The safetensors files.
        model: The model that the configuration describes, without values.
        flexible: Parts of names whose tensors the library reshapes while loading.
    """
    shapes = {name: shape for file in files for name, shape in read_shapes(file).items()}
    expected = {name: list(tensor.shape) for name, tensor in model.state_dict().items()}
    total = sum(map(math.prod, expected.values()))
    if total > LARGEST_MODEL:
        raise InvalidCheckpointError(f"The configuration has {total:,} weights.", hint=f"Accepted: {LARGEST_MODEL:,}.")
    rigid = [name for name in expected if name in shapes and not any(part in name for part in flexible)]
    wrong = [
        f"{name}: {shapes[name]} in the file, {expected[name]} in the model"
        for name in rigid
        if shapes[name] != expected[name]
    ]
    stored = sum(map(math.prod, shapes.values()))
    if not wrong and total > 2 * stored + 10_000_000:
        wrong = [f"{stored:,} weights in the file, {total:,} in the model"]
    if wrong:
        message = f"'{files[0]}' does not fit its configuration: {'; '.join(wrong[:5])}."
        raise InvalidCheckpointError(message, hint=_SAME_MODEL)


def check_patches(size: int | Sequence[int], patch: int | None, where: str) -> None:
    """Raise an error if an image has so many patches that one forward pass would take minutes."""
    width, height = (size, size) if isinstance(size, int) else tuple(size)
    if patch and (width // patch) * (height // patch) > MOST_PATCHES:
        raise InvalidCheckpointError(
            f"'{where}' has images of {width} x {height} pixels in patches of {patch}.",
            hint=f"Accepted: at most {MOST_PATCHES:,} patches.",
        )


def check_logit_scale(names: Collection[str], given: float | None, where: Path | str) -> None:
    """Raise an error if weights have no trained logit scale and none was given, or if both are there."""
    trained = "logit_scale" in names
    if not trained and given is None:
        raise InvalidCheckpointError(
            f"'{where}' has no trained logit scale (missing key: logit_scale): its confidence has no meaning.",
            hint="If its authors state the scale, or the temperature 1 / scale, give logit_scale (--logit-scale).",
        )
    if trained and given is not None:
        raise InvalidOptionError(
            f"'{where}' has a trained logit scale; logit_scale={given:g} was given.",
            hint="The option is for models that have none. To change confidence, calibrate (`poise calibrate`).",
        )
    if given is not None and not (math.isfinite(given) and 0 < given <= _LARGEST_SCALE):
        raise InvalidOptionError(
            f"logit_scale={given} is not accepted.", hint=f"Accepted: numbers above 0, at most {_LARGEST_SCALE:,}."
        )


def check_scale(name: str, scale: float, bias: float) -> None:
    """Raise an error if the logit scale or the bias is not finite."""
    if not (math.isfinite(scale) and math.isfinite(bias)):
        raise InvalidCheckpointError(
            f"{name} has a logit scale of {scale} and a bias of {bias}.", hint="Both must be finite."
        )


def read_config(path: Path) -> dict[str, Any]:
    """Read a JSON object from ``path``."""
    if not path.is_file():
        raise ModelNotFoundError(f"'{path}' is missing.", hint="Give the folder with the model's configuration.")
    try:
        if path.stat().st_size > _LARGEST_JSON:
            raise ValueError(f"it has {path.stat().st_size:,} bytes")
        config = json.loads(path.read_text(encoding="utf-8"), parse_constant=_no_constant)
    except (ValueError, OSError, RecursionError) as error:
        raise InvalidCheckpointError(
            f"'{path}' is not valid JSON: {reason_of(error)}.", hint="Download it again."
        ) from error
    if not isinstance(config, dict):
        raise InvalidCheckpointError(f"'{path}' is not a JSON object.", hint="Download it again.")
    return config


def _no_constant(name: str) -> object:
    raise ValueError(f"{name} is not a JSON number")


@contextmanager
def library_errors(source: Path | str, hint: str = _SAME_MODEL) -> Iterator[None]:
    """Convert any error of a library that reads ``source`` into `InvalidCheckpointError`.

    Libraries raise all kinds of errors on damaged files; tokenizers' panics are not even exceptions.
    """
    try:
        yield
    except PoiseError:
        raise
    except ImportError as error:
        raise MissingDependencyError(
            f"'{source}' needs a package that is not installed: {_line(error)}.", hint="Install it."
        ) from error
    except Exception as error:
        raise InvalidCheckpointError(f"'{source}' can't be loaded: {_line(error)}.", hint=hint) from error
    except BaseException as error:
        if type(error).__name__ != "PanicException":
            raise
        raise InvalidCheckpointError(f"'{source}' can't be loaded: {_line(error)}.", hint=hint) from error


def _line(error: BaseException) -> str:
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text[:400]}"
