"""What `poise bench run --dry-run` prints: the plan of a run, and what it lacks."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

import typer

from poise.text import counted

if TYPE_CHECKING:
    from poise.data.catalog import DatasetRow
    from poise.evaluate.config import RunConfig, Settings
    from poise.evaluate.prepare import PreparedRun


_UNSET = {"template": "(by dataset)", "limit": "all"}  # what no value means; elsewhere: none


def show_plan(config: RunConfig, settings: Settings) -> bool:
    """Print a run's settings, methods, datasets, model and units; return whether it could begin.

    No image is read, and nothing is downloaded.
    """
    from poise.evaluate.engines import engines
    from poise.evaluate.prepare import prepare
    from poise.evaluate.resolve import make_methods

    engines.get(settings.engine)
    prepared = prepare(config, settings.data, make_methods(config))
    typer.echo(f"{config.run_id}  {config.title}".rstrip())
    for key, value in prepared.config.hashed().items():
        shown = ", ".join(map(str, value)) if isinstance(value, list) else value
        unset = value is None or value in ("", {}) or (key == "limit" and not value)
        typer.echo(f"  {key} = {_UNSET.get(key, '(none)') if unset else shown}")
    for method in prepared.methods:
        typer.echo(f"  {method.name}: {method.describe()}")
    lacking = [*_show_datasets(prepared), *_show_init(config, prepared), *_show_model(prepared.config)]
    units = prepared.units()
    images = sum(len(unit.items) for unit in units)
    most = max((len(unit.items) for unit in units), default=0)
    chunks = f"{counted(len(units), 'chunk')} of at most {counted(most, 'image')}"
    beside = ", beside those of missing datasets" * bool(prepared.missing)
    work = f"{chunks}, {counted(images, 'image')} over all seeds{beside}" if units else "not known without a dataset"
    typer.echo(f"  work: {work}")
    typer.echo(f"  missing: {', '.join(lacking)}" if lacking else "  nothing is missing")
    return not lacking


def _show_datasets(prepared: PreparedRun) -> list[str]:
    """Print each dataset with its images and classes; return the names of those that can't be opened."""
    from poise.evaluate.held_out import remaining

    config = prepared.config
    for name in config.datasets:
        row = _row(name)
        if name in prepared.sets:
            images, classes = prepared.sets[name], len(prepared.sets[name].classes)
            number, state = len(prepared.chosen[name]), f"{len(images)} there"
            state = state if row is None or len(images) == row.images else f"{state}, {row.images} published"
        else:
            number, classes = (min(row.images, config.limit or row.images), row.classes) if row else (0, 0)
            state = f"MISSING: {prepared.missing[name]}"
        size = f"{counted(number, 'image')}, {counted(classes, 'class')}" if classes else "unknown size"
        typer.echo(f"  dataset {name}: {size}; {state}")
        if config.calibrate:
            others = f"other {remaining(config, name, number)}" if number else "others"
            typer.echo(f"  {name}: {counted(config.calibrate, 'image')} for calibration, metrics are of the {others}")
    return [f"dataset {name}" for name in prepared.missing]


def _show_init(config: RunConfig, prepared: PreparedRun) -> list[str]:
    """Print the absolute learning rates; return what is missing for the init."""
    from poise.backbones.loaders.hub import cache_only
    from poise.errors import ModelNotFoundError
    from poise.evaluate.learning_rates import absolute_rates
    from poise.evaluate.resolve import check_init

    try:
        check_init(config)
    except ModelNotFoundError as problem:  # it may be fitted before the run
        typer.echo(f"  not there yet: {problem}")
        return [f"init {config.init}"]
    templates = {images.template for images in prepared.sets.values()}
    templates |= {row.template for row in map(_row, prepared.missing) if row}
    with cache_only(), suppress(ModelNotFoundError):  # `_show_model` says what is wrong with the model
        for name, rates in absolute_rates(prepared.config, prepared.methods, templates).items():
            for template, rate in rates.items():
                typer.echo(f"  {name}: lr {rate:g} for {template!r}")
    return []


def _show_model(config: RunConfig) -> list[str]:
    """Print whether the model can be loaded without a download; return its name if it can't."""
    from poise.backbones import load_model
    from poise.backbones.loaders.hub import cache_only
    from poise.errors import PoiseError

    try:
        with cache_only():
            encoder = load_model(config.model, device="cpu", dtype="float32", logit_scale=config.logit_scale)
    except PoiseError as problem:
        typer.echo(f"  model {config.model}: MISSING: {problem}")
        return [f"model {config.model}"]
    typer.echo(f"  model {config.model}: loaded, images of {encoder.image.size} x {encoder.image.size} pixels")
    return []


def _row(dataset: str) -> DatasetRow | None:
    """Return what is published about a dataset; None for a folder or another source."""
    from poise.data import catalog
    from poise.errors import UnknownNameError

    try:
        return catalog.row(dataset)
    except UnknownNameError:
        return None
