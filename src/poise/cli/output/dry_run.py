"""What `poise bench run --dry-run` prints: the configuration of a run, with its names checked."""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer

from poise.text import counted

if TYPE_CHECKING:
    from poise.evaluate.config import RunConfig, Settings


def show_configuration(config: RunConfig, settings: Settings) -> None:
    """Check and print the configuration of a run; data are not read, and weights only for a relative lr."""
    from poise.data import catalog
    from poise.data.opening import has_scheme
    from poise.errors import ModelNotFoundError
    from poise.evaluate.engines import engines
    from poise.evaluate.held_out import remaining
    from poise.evaluate.learning_rates import absolute_rates
    from poise.evaluate.resolve import check_init, make_methods, resolve
    from poise.prompts import DEFAULT_TEMPLATE

    engines.get(settings.engine)
    resolved = resolve(config)
    rows = {name: catalog.row(name) for name in resolved.datasets if not has_scheme(name)}
    templates = {row.template for row in rows.values()}
    templates |= {DEFAULT_TEMPLATE} if len(rows) < len(resolved.datasets) else set()
    typer.echo(f"{config.run_id}  {config.title}".rstrip())
    for key, value in resolved.hashed().items():
        shown = ", ".join(map(str, value)) if isinstance(value, list) else value
        typer.echo(f"  {key} = {shown}")
    for name in resolved.datasets if resolved.calibrate else ():
        images = min(rows[name].images, resolved.limit or rows[name].images) if name in rows else 0
        others = f"other {remaining(resolved, name, images)}" if images else "others"
        typer.echo(f"  {name}: {counted(resolved.calibrate, 'image')} for calibration, metrics are of the {others}")
    for method in (chosen := make_methods(resolved)):
        typer.echo(f"  {method.name}: {method.describe()}")
    try:
        check_init(resolved)
        for name, rates in absolute_rates(resolved, chosen, templates).items():
            for template, rate in rates.items():
                typer.echo(f"  {name}: lr {rate:g} for {template!r}")
    except ModelNotFoundError as problem:  # it may be fitted before the run
        typer.echo(f"  not there yet: {problem}")
