"""The header of a run: everything needed to repeat it, or to refuse to resume it."""

from __future__ import annotations

import hashlib
import platform
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from poise import __version__
from poise.errors import RunConflictError
from poise.evaluate.config import RunConfig
from poise.evaluate.learning_rates import absolute_rates
from poise.evaluate.resolve import init_kind, is_ordered, uses_augmix
from poise.text import file_name

if TYPE_CHECKING:
    from poise.data import ImageSet
    from poise.methods import Method

FORMAT = "poise-run/1"
MODEL = "model_fingerprint"  # None until the model is loaded, or if the encoder has no fingerprint
_PACKAGES = ("torch", "torchvision", "open_clip_torch", "transformers", "numpy", "pillow", "pyarrow")


def header(
    config: RunConfig,
    methods: Sequence[Method],
    sets: Mapping[str, ImageSet],
    chosen: Mapping[str, Sequence[int]],
) -> dict[str, Any]:
    """Return the content of ``run.json``; ``chosen`` are the positions of the images that take part, by dataset."""
    rates = absolute_rates(config, methods, {images.template for images in sets.values()})
    return {
        "format": FORMAT,
        "run": config.run_id,
        "title": config.title,
        "config": config.hashed(),
        "ordered": is_ordered(config, methods),
        "init_kind": init_kind(config),
        MODEL: None,  # see `RunFolder.identify`
        "config_hash": config.digest(),
        "methods": {method.name: {**method.settings(), **_chosen(method, sets, rates)} for method in methods},
        "datasets": {images.name: describe(config, images, chosen[name]) for name, images in sets.items()},
        "trees": {images.name: list(images.parents) for images in sets.values() if images.parents},
        "versions": versions(),
        "commit": commit(),
        "device": device_name(config.device),
    }


def check_fingerprint(run: str, stored: str | None, found: str | None) -> None:
    """Raise an error if a run was begun with another model; None: it is not known."""
    if stored is not None and stored != found:
        raise RunConflictError(
            f"The run '{run}' was begun with a model of the fingerprint {stored}; this model's is {found}.",
            hint="Its weights, tokenizer or preprocessing changed. Restore them, or give the run another --name.",
        )


def _chosen(method: Method, sets: Mapping[str, ImageSet], rates: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings that follow from the model or the datasets: absolute learning rates, and published values."""
    published = {name: method.on_dataset(name) for name in sets}
    values = {name: dict(on.rule_options) for name, on in published.items() if on is not method}
    found = {"absolute_lr": rates.get(method.name), "published": values}
    return {name: value for name, value in found.items() if value}


def describe(config: RunConfig, images: ImageSet, chosen: Sequence[int]) -> dict[str, Any]:
    """Return what identifies a dataset: its classes in order, and the ids and labels of the images that take part."""
    items = [images.items[position] for position in chosen]
    return {
        "folder": file_name(images.name),
        "classes": list(images.classes),
        "classes_hash": _sha256(images.classes),
        "images": len(items),
        "available": len(images.items),
        "images_hash": _sha256(f"{item.label} {item.id}" for item in items),
        **({"independent": True} if images.independent else {}),
        "template": images.template,
        "augmix": uses_augmix(config, images),
        "shift": images.shift,
    }


def _sha256(texts: Iterable[str]) -> str:
    """Return the SHA-256 of texts in order."""
    state = hashlib.sha256()
    for text in texts:
        state.update(text.encode() + b"\0")
    return state.hexdigest()


def versions() -> dict[str, str]:
    """Return the versions of Python, poise, and the packages that numbers depend on."""
    result = {"python": platform.python_version(), "poise": __version__}
    for package in _PACKAGES:
        try:
            result[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            result[package] = "absent"
    return result


def commit() -> str | None:
    """Return the commit of this checkout of poise, marked if files differ from it; None outside a checkout."""
    root = Path(__file__).resolve().parents[4]
    if not (root / ".git").exists():
        return None
    try:
        head = _git(root, "rev-parse", "HEAD")
        return f"{head}+changes" if _git(root, "status", "--porcelain", "--", "src") else head
    except (OSError, subprocess.SubprocessError):
        return None


def device_name(device: str) -> str:
    """Return the GPU's name, or the processor's architecture."""
    if device.startswith("cuda"):
        return str(torch.cuda.get_device_name(torch.device(device)))
    return f"{device} ({platform.machine()})"


def _git(root: Path, *arguments: str) -> str:
    command = ["git", "-C", str(root), *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True, timeout=20).stdout.strip()
