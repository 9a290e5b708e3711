"""What `poise serve` and `poise demo` share: from their options to a server that has started."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import ModuleType
from typing import TYPE_CHECKING, Any

import typer

from poise.cli.input.shared_options import stored_options
from poise.errors import MissingDependencyError

if TYPE_CHECKING:
    from poise.serve.settings import ServiceSettings


def server_modules(feature: str, extra: str) -> tuple[ModuleType, ModuleType]:
    """Return the app and what runs it; they are imported here, because they need packages of an extra."""
    try:
        from poise.serve.http import app as http_app
        from poise.serve.http import uvicorn_server
    except ModuleNotFoundError as error:
        raise MissingDependencyError.of(feature, str(error.name), extra) from None
    return http_app, uvicorn_server


def settings_from(
    ctx: typer.Context, options: Mapping[str, Any], labels: Sequence[str] | None, **others: Any
) -> ServiceSettings:
    """Return the settings of a server.

    Args:
        ctx: of the command.
        options: those of `poise.options`; where the user gave none, they are the calibration's, if there is one.
        labels: of requests without labels; None: those of the calibration.
        others: all other settings.
    """
    from poise import methods
    from poise.inference.option_checks import check_counts
    from poise.serve.settings import ServiceSettings

    check_counts(options["views"], options["batch_size"])
    options = {**options, "method": tuple(methods.expand(options["method"]))}
    return ServiceSettings(**stored_options(ctx, options, labels), **others)


def say_ready(url: str, model: str, more: str = "") -> None:
    """Print the one line that says where the server is."""
    typer.echo(f"poise: ready at {url} with the model {model}{more}", err=True)
