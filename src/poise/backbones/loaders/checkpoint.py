"""Weights on disk: which file a folder offers, and loading it without ever running code from it."""

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
    """The command that turns a pickle checkpoint, which the user trusts, into safetensors."""
    return (
        'python -c "import torch, safetensors.torch as st; '
        f"s = torch.load('{source}', map_location='cpu', weights_only=True); s = s.get('state_dict', s); "
        "st.save_file({k.removeprefix('module.'): v.clone().contiguous() for k, v in s.items() if torch.is_tensor(v)}, "
        f"'{target}', metadata={{'format': 'pt'}})\""
    )


def refuse_pickle(source: Path | str, target: Path | str) -> InvalidCheckpointError:
    """The error for a checkpoint that could run code when it is read."""
    return InvalidCheckpointError(
        f"'{source}' is a pickle checkpoint, which can run code when it is loaded; only safetensors are accepted.",
        hint=f"If you trust the file, convert it once: {conversion(str(source), str(target))}",
    )


def find_weights(folder: Path, preferred: Sequence[str] = OPEN_CLIP_WEIGHTS) -> Path:
    """The safetensors file in ``folder``."""
    for name in preferred:
        if (folder / name).is_file():
            return folder / name
    found = sorted(folder.glob("*.safetensors"))
    if len(found) == 1:
        return found[0]
    if found:
        raise InvalidCheckpointError(
            f"'{folder}' has several safetensors files: {', '.join(file.name for file in found)}.",
            hint=f"Name the one to load {preferred[0]}.",
        )
    pickles = sorted(file for file in folder.iterdir() if file.suffix in _PICKLES)
    if pickles:
        raise refuse_pickle(pickles[0], folder / preferred[0])
    raise ModelNotFoundError(f"'{folder}' has no weights.", hint=f"Put {preferred[0]} there.")


def check_readable(weights: Path) -> None:
    """Fail early, with the file's name, where a safetensors file is damaged."""
    try:
        with safe_open(weights, framework="pt") as file:
            keys = list(file.keys())
    except (SafetensorError, OSError, ValueError) as error:
        raise InvalidCheckpointError(
            f"'{weights}' is not a readable safetensors file: {error}.", hint="Get it again."
        ) from error
    if not keys:
        raise InvalidCheckpointError(f"'{weights}' holds no tensors.", hint="Get it again.")


def read_config(path: Path) -> dict[str, Any]:
    """A JSON object from ``path``."""
    if not path.is_file():
        raise ModelNotFoundError(f"'{path}' is missing.", hint="Give the folder that holds the model's configuration.")
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise InvalidCheckpointError(f"'{path}' is not valid JSON: {error}.", hint="Get it again.") from error
    if not isinstance(config, dict):
        raise InvalidCheckpointError(
            f"'{path}' holds {type(config).__name__}, not a JSON object.", hint="Get it again."
        )
    return config
