"""Finds and checks weights and configurations on disk, without running code from them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open

from poise.errors import InvalidCheckpointError, ModelNotFoundError

OPEN_CLIP_WEIGHTS = ("open_clip_model.safetensors", "open_clip_pytorch_model.safetensors", "model.safetensors")
_PICKLES = (".bin", ".pt", ".pth", ".ckpt", ".pkl")


def conversion(source: str, target: str) -> str:
    """Return a command that converts a pickle checkpoint to safetensors."""
    return (
        'python -c "import torch, safetensors.torch as st; '
        f"s = torch.load('{source}', map_location='cpu', weights_only=True); s = s.get('state_dict', s); "
        "st.save_file({k.removeprefix('module.'): v.clone().contiguous() for k, v in s.items() if torch.is_tensor(v)}, "
        f"'{target}', metadata={{'format': 'pt'}})\""
    )


def refuse_pickle(source: Path | str, target: Path | str) -> InvalidCheckpointError:
    """Return the error for a pickle checkpoint, which could run code when it is read."""
    return InvalidCheckpointError(
        f"'{source}' is a pickle checkpoint, which can run code when it is loaded; only safetensors are accepted.",
        hint=f"If you trust the file, convert it once: {conversion(str(source), str(target))}",
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
        raise refuse_pickle(pickles[0], folder / preferred[0])
    raise ModelNotFoundError(f"'{folder}' has no weights.", hint=f"Put {preferred[0]} there.")


def check_readable(weights: Path) -> None:
    """Raise an error if a safetensors file is damaged or empty."""
    try:
        with safe_open(weights, framework="pt") as file:
            keys = list(file.keys())
    except (SafetensorError, OSError, ValueError) as error:
        message = f"'{weights}' is not a readable safetensors file: {error}."
        raise InvalidCheckpointError(message, hint="Download it again.") from error
    if not keys:
        raise InvalidCheckpointError(f"'{weights}' contains no tensors.", hint="Download it again.")


def read_config(path: Path) -> dict[str, Any]:
    """Read a JSON object from ``path``."""
    if not path.is_file():
        raise ModelNotFoundError(f"'{path}' is missing.", hint="Give the folder with the model's configuration.")
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise InvalidCheckpointError(f"'{path}' is not valid JSON: {error}.", hint="Download it again.") from error
    if not isinstance(config, dict):
        raise InvalidCheckpointError(f"'{path}' is not a JSON object.", hint="Download it again.")
    return config
