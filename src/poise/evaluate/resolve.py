"""What a configuration means on this machine: devices, methods and datasets in place of their names."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import torch

import poise.data
from poise import backbones, methods
from poise.data import ImageSet
from poise.errors import ModelNotFoundError
from poise.evaluate.config import ALL_METHODS, RunConfig
from poise.inits.kinds import check_template, init_file
from poise.methods import Method
from poise.tuning.frameworks import frameworks


def resolve(config: RunConfig) -> RunConfig:
    """``config`` with "auto" and "all" replaced by what they mean on this machine."""
    place = backbones.resolve(config.device, config.dtype)
    engine = config.view_engine
    if engine == "auto":
        engine = "batched" if place.device.type == "cuda" else "pil"
    names = tuple(methods.names()) if config.methods == (ALL_METHODS,) else config.methods
    return replace(
        config,
        device=str(place.device),
        dtype=str(place.dtype).removeprefix("torch."),
        view_engine=engine,
        methods=names,
        batch_size=config.batch_size or _batch_size(place.device),
    )


def open_set(name: str, root: str, config: RunConfig) -> ImageSet:
    """The dataset under the protocol that the configuration asks for."""
    return poise.data.open(name, root, protocol="c-tpt" if config.augmix == "c-tpt" else "tpt")


def make_methods(config: RunConfig, *, shift: bool = False) -> list[Method]:
    """The configured methods; on shifted data with the weights published for it, unless the weight was given."""
    for name in config.options:
        if name != ALL_METHODS:
            methods.get(name)
    made = []
    for name in config.methods:
        options = {**config.options.get(ALL_METHODS, {}), **config.options.get(name, {})}
        method = methods.get(name, **options)
        made.append(method.on_shift() if shift and "weight" not in options else method)
    return made


def check_init(config: RunConfig) -> None:
    """Refuse an init or a framework's option that can't be, before any data is read."""
    frameworks.get(config.framework).parse(config.framework_options)
    check_template(config.init, config.template)
    file = init_file(config.init)
    if file is not None and not Path(file).is_file():
        raise ModelNotFoundError(
            f"The init '{config.init}' is no file.",
            hint="Give 'template', 'fpp', or a prompt that `poise fit` or `poise convert` wrote.",
        )


def is_ordered(config: RunConfig) -> bool:
    """Whether answers depend on the images before: such a stream is one unit, and never split."""
    return frameworks.get(config.framework).ordered


def reads_apart(config: RunConfig) -> bool:
    """Whether pictures are read in other processes: where threads would hold up those that feed an accelerator."""
    return config.view_engine == "batched" and config.device.startswith("cuda")


def _batch_size(device: torch.device) -> int:
    """Images at a time: what 64 views of a ViT-B/16 leave room for."""
    if device.type != "cuda":
        return 4
    gibibytes = torch.cuda.get_device_properties(device).total_memory / 2**30
    return max(1, min(32, int(gibibytes // 2)))
