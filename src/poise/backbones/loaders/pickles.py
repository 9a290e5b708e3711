"""Reads the tensors of a pickle checkpoint (.pt, .pth, .bin, .ckpt) without running code from it.

torch's reader for weights accepts a short list of names and runs none of them; everything else in the file ends in an
error. What it returns is checked, too: tensors may claim more elements than the file holds.
"""

from __future__ import annotations

import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from poise.errors import InvalidCheckpointError, ModelNotFoundError, reason_of

_MOST_TENSORS = 100_000
_DEEPEST = 4  # of dictionaries in dictionaries
_MAKE_SURE = "Nothing of it was run. Make sure that it is a checkpoint, and download it again."


def read_pickle(file: Path) -> dict[str, Tensor]:
    """Return the tensors of a checkpoint by name: of the part of it that has the most weights (``state_dict``)."""
    if not file.is_file():
        raise ModelNotFoundError(f"'{file}' is not a file.", hint="Give a checkpoint (.pt, .pth, .bin, .ckpt).")
    _check_archive(file)
    try:
        content = torch.load(file, map_location="cpu", weights_only=True)
    except Exception as error:  # unpicklers raise all kinds of errors on files that are not checkpoints
        raise InvalidCheckpointError(
            f"'{file}' is refused: it is not a checkpoint of tensors only ({type(error).__name__}: {_line(error)}).",
            hint=_MAKE_SURE,
        ) from None
    parts = [part for part in _parts(content, 0) if part]
    if not parts:
        raise InvalidCheckpointError(f"'{file}' contains no tensors.", hint=_MAKE_SURE)
    state = max(parts, key=lambda part: sum(tensor.numel() for tensor in part.values()))
    for name, tensor in state.items():
        _check(name, tensor, file)
    return state


def _check_archive(file: Path) -> None:
    """Refuse archives that would be larger when unpacked, and TorchScript, which is code."""
    if not zipfile.is_zipfile(file):
        return
    try:
        with zipfile.ZipFile(file) as archive:
            entries = archive.infolist()
    except (zipfile.BadZipFile, OSError, ValueError, NotImplementedError) as error:
        raise InvalidCheckpointError(f"'{file}' can't be read: {reason_of(error)}.", hint=_MAKE_SURE) from None
    if any(Path(entry.filename).name == "constants.pkl" for entry in entries):
        raise InvalidCheckpointError(
            f"'{file}' is a TorchScript archive, which is a program.",
            hint="OpenAI's models are such: use their names, such as ViT-B-16/openai. Of others, save the state_dict.",
        )
    if len(entries) > _MOST_TENSORS or any(entry.file_size > entry.compress_size for entry in entries):
        raise InvalidCheckpointError(f"'{file}' is refused: it is compressed.", hint=_MAKE_SURE)


def _parts(content: object, depth: int) -> Iterator[dict[str, Tensor]]:
    """Yield the tensors of each dictionary in a checkpoint."""
    if not isinstance(content, dict) or depth > _DEEPEST or len(content) > _MOST_TENSORS:
        return
    yield {name: value for name, value in content.items() if isinstance(name, str) and isinstance(value, Tensor)}
    for value in content.values():
        yield from _parts(value, depth + 1)


def _check(name: str, tensor: Tensor, file: Path) -> None:
    plain: Any = tensor.layout == torch.strided and tensor.device.type == "cpu" and not tensor.is_quantized
    if not plain or tensor.numel() * tensor.element_size() > tensor.untyped_storage().nbytes():
        raise InvalidCheckpointError(
            f"'{file}' is refused: {name[:80]!r} is not a plain tensor with all its values.", hint=_MAKE_SURE
        )


def _line(error: BaseException) -> str:
    return " ".join(str(error).split())[:200]
