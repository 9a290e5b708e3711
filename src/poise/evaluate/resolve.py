"""Resolves a configuration on this machine: devices, methods and datasets instead of their names."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import poise.data
from poise import backbones, methods
from poise.data import ImageSet
from poise.errors import InvalidDatasetError, InvalidOptionError, ModelNotFoundError
from poise.evaluate.config import ALL_METHODS, RunConfig
from poise.evaluate.pairs import composed, is_composed
from poise.evaluate.streams import is_mixed, leave_out, mixed
from poise.inference.batch_sizes import default_batch_size
from poise.inference.independent import independent_method
from poise.inits.kinds import check_template, init_file, inits
from poise.methods import Method
from poise.prompts import Template
from poise.prompts.files import load
from poise.registry import check_options
from poise.tuning.frameworks import frameworks
from poise.views import DEFAULT_ENGINE


def resolve(config: RunConfig) -> RunConfig:
    """Return ``config`` with "auto" and "all" replaced by what they mean on this machine."""
    place = backbones.resolve(config.device, config.dtype)
    return replace(
        config,
        device=place.device_name,
        dtype=place.dtype_name,
        view_engine=DEFAULT_ENGINE if config.view_engine == "auto" else config.view_engine,
        methods=tuple(methods.expand(config.methods)),
        batch_size=config.batch_size or default_batch_size(place.device, config.views),
    )


def open_set(name: str, root: str, config: RunConfig) -> ImageSet:
    """Open a dataset under the configured protocol."""
    protocol: poise.data.catalog.Protocol = "c-tpt" if config.augmix == "c-tpt" else "tpt"

    def one(part: str) -> ImageSet:
        return poise.data.open_dataset(part, root, protocol=protocol)

    if is_composed(name):
        check_composed(name, config)
        return composed(name, one)
    images = mixed(name, one) if is_mixed(name) else one(name)
    if len(images.classes) < 2:
        raise InvalidDatasetError(
            f"'{name}' has the class '{images.classes[0]}' alone, so that every answer would be right.",
            hint="Give images of two classes or more, with one folder per class.",
        )
    return leave_out(images, config.unknown)


def check_composed(name: str, config: RunConfig) -> None:
    """Refuse what independent labels have no meaning for."""
    independent_method(methods.expand(config.methods))
    if config.unknown or config.framework != RunConfig.framework:
        raise InvalidOptionError(
            f"Labels of '{name}' are independent: 'unknown' and frameworks that tune are for labels of which one "
            "applies.",
            hint="Leave them out, or run it by itself.",
        )


def make_methods(config: RunConfig, *, dataset: str = "", shift: bool = False) -> list[Method]:
    """Return the configured methods.

    Args:
        config: the run.
        dataset: for which rules that are told to use published values get them; none by default.
        shift: whether methods without a configured weight get the one published for distribution shifts.
    """
    names = methods.expand(config.methods)
    given = {methods.canonical(name): options for name, options in config.options.items()}
    for name in given:
        if name not in (ALL_METHODS, *names, *(full.partition(methods.BAR)[0] for full in names)):
            methods.get(name)
            raise InvalidOptionError(
                f"There are options for the method '{name}', which is not run.",
                hint=f"Leave them out, or add it to the methods: {', '.join(config.methods)}.",
            )
    idle = {name: methods.get(name).idle for name in names}
    result = []
    for name in names:
        # The options of a method also hold where post-hoc steps follow it.
        own = dict.fromkeys((ALL_METHODS, name.partition(methods.BAR)[0], name))
        options = {option: value for key in own for option, value in given.get(key, {}).items()}
        # What is set for all methods may have no effect on some of them, where it is recorded as well.
        others = [option for option in given.get(ALL_METHODS, {}) if any(option not in idle[each] for each in names)]
        own_options = {option for key in own if key != ALL_METHODS for option in given.get(key, {})}
        unused = {option: options.pop(option) for option in others if option in {*idle[name]} - own_options}
        check_options(Method, unused, f"'{name}'")
        method = replace(methods.get(name, **options), **unused)
        method = method.on_dataset(dataset) if dataset else method
        result.append(method.on_shift() if shift and "weight" not in options else method)
    return result


def check_init(config: RunConfig) -> list[Method]:
    """Return the methods; reject an init, a template, methods or an option of the framework that can't be used."""
    framework = frameworks.get(config.framework)
    framework.parse(config.framework_options)
    framework.check(chosen := make_methods(config))
    for method in chosen:
        method.check_views(config.views)
        method.objective()  # so that a term that can't be made is refused before there is a run folder
    if framework.own_templates and config.template:
        raise InvalidOptionError(
            f"The framework '{config.framework}' has its own templates.", hint="Leave out the template."
        )
    if config.template:
        Template.parse(config.template)
    check_template(config.init, config.template)
    file = init_file(config.init)
    if file is not None and not Path(file).is_file():
        names = ", ".join(name for name in inits if init_file(name) is None)
        raise ModelNotFoundError(
            f"The init '{config.init}' is neither a name nor a file.",
            hint=f"Give {names}, or a prompt that `poise fit` or `poise convert` wrote.",
        )
    return chosen


def init_kind(config: RunConfig) -> str:
    """Return the kind of prompt that tuning starts from, by the init's name or its file."""
    file = init_file(config.init)
    if file is None:
        return config.init
    return config.init.partition(":")[0] if file != config.init else load(file).facts.kind


def is_ordered(config: RunConfig, chosen: Sequence[Method]) -> bool:
    """Return whether answers depend on earlier images: such a stream is one unit, and never split."""
    return frameworks.get(config.framework).ordered or any(method.ordered for method in chosen)


def uses_augmix(config: RunConfig, images: ImageSet) -> bool:
    """Return whether the views of a dataset are mixed with AugMix in this run."""
    return config.augmix == "on" if config.augmix in ("on", "off") else images.augmix
