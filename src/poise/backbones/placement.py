"""Where a model runs and in which number format: the options ``device`` and ``dtype``."""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass

import torch

from poise import triton_support
from poise.errors import InvalidOptionError

FLOAT8, OPENVINO = "float8", "openvino"
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
_FLOAT8 = (FLOAT8, "fp8")
_ALLOWED = {  # dtypes by device
    "cuda": set(_DTYPES.values()),
    "cpu": {torch.float32, torch.float64},
    OPENVINO: {torch.float32, torch.bfloat16},
    "mps": {torch.float32},
}
_FLOAT8_CAPABILITY = (8, 9)  # of the first GPUs with float8 matrix products


@dataclass(frozen=True)
class Placement:
    """Device, dtype and cache folder of a model, and the names of both as users write them."""

    device: torch.device
    dtype: torch.dtype  # of the weights in torch
    device_name: str  # "openvino" if it computes the image tower, else that of ``device``
    dtype_name: str  # that of the image tower: also "float8", and "bfloat16" with OpenVINO
    cache_dir: str | None = None
    logit_scale: float | None = None  # factor from cosine to logit, of a model whose weights have none


def resolve(device: str | torch.device, dtype: str | torch.dtype, cache_dir: str | None = None) -> Placement:
    """Return the placement for two options; raise an error if this machine does not support them."""
    if device == OPENVINO:
        chosen = _dtype(OPENVINO, dtype)
        return Placement(torch.device("cpu"), torch.float32, OPENVINO, dtype_name(chosen), cache_dir)
    place = _device(device)
    if dtype in _FLOAT8:
        return Placement(_float8_device(place), torch.float16, str(place), FLOAT8, cache_dir)
    chosen = _dtype(place.type, dtype)
    return Placement(place, chosen, str(place), dtype_name(chosen), cache_dir)


def dtype_name(dtype: torch.dtype) -> str:
    """Return the name of a dtype, such as "float32"."""
    return str(dtype).removeprefix("torch.")


def _dtype(kind: str, dtype: str | torch.dtype) -> torch.dtype:
    """Return the dtype that an option means on a kind of device."""
    options = {"auto": torch.float16 if kind == "cuda" else torch.float32, **_DTYPES}
    if isinstance(dtype, str) and dtype not in options and dtype not in _FLOAT8:
        accepted = ", ".join([*options, *_FLOAT8])
        raise InvalidOptionError(f"dtype={dtype!r} is not accepted.", hint=f"Accepted: {accepted}.")
    chosen, allowed = options.get(dtype) if isinstance(dtype, str) else dtype, _ALLOWED.get(kind, {torch.float32})
    if chosen is None or chosen not in allowed:
        names = ", ".join(sorted(map(dtype_name, allowed)))
        raise InvalidOptionError(f"dtype={dtype} is not accepted on {kind}.", hint=f"Accepted there: {names}.")
    return chosen


def _float8_device(place: torch.device) -> torch.device:
    supported = place.type == "cuda" and torch.cuda.get_device_capability(place) >= _FLOAT8_CAPABILITY
    if not supported or not triton_support.available:
        where = torch.cuda.get_device_name(place) if place.type == "cuda" else f"'{place.type}'"
        raise InvalidOptionError(
            f"dtype='float8' is not accepted on {where}.",
            hint="It needs an NVIDIA GPU of compute capability 8.9 or higher, and Triton. Leave the option out.",
        )
    return place


def _device(device: str | torch.device) -> torch.device:
    if device == "auto":
        if torch.cuda.is_available():
            return torch.device("cuda")
        return torch.device("mps" if torch.backends.mps.is_available() else "cpu")
    try:
        chosen = torch.device(device)
    except (RuntimeError, TypeError) as error:
        raise InvalidOptionError(
            f"device={device!r} is not accepted.", hint="Accepted: auto, cpu, cuda, cuda:1 and so on, mps, openvino."
        ) from error
    counts = {"cpu": 1, "cuda": torch.cuda.device_count(), "mps": int(torch.backends.mps.is_available())}
    if (chosen.index or 0) >= counts.get(chosen.type, 0):
        here = [kind for kind, count in counts.items() if count]
        here += [OPENVINO] * (importlib.util.find_spec(OPENVINO) is not None)
        raise InvalidOptionError(f"The device '{device}' is not available.", hint=f"Here: auto, {', '.join(here)}.")
    return chosen
