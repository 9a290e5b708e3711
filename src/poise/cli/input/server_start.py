"""What `poise serve` and `poise demo` share: from their options to a server that has started."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

import typer

from poise.cli.input.shared_options import given
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
    ctx: typer.Context, calibration: Path | None, answers: Mapping[str, Any], **others: Any
) -> ServiceSettings:
    """Return the settings of a server.

    Args:
        ctx: of the command.
        calibration: file of `poise calibrate`, or None.
        answers: options that a calibration knows, by the names of the command's options; those that the user did not
            give are then the calibration's.
        others: all other settings.
    """
    from poise import methods
    from poise.calibration import Calibration
    from poise.inference.options import check_counts
    from poise.serve.settings import ServiceSettings

    check_counts(answers["views"], others["batch_size"])
    chosen = dict(answers, method=tuple(methods.expand(answers["method"])))
    known = None if calibration is None else Calibration.load(calibration)
    if known is not None:
        chosen = given(ctx, chosen)
    if "method" in chosen:
        chosen["methods"] = chosen.pop("method")
    return (
        ServiceSettings(**chosen, **others)
        if known is None
        else ServiceSettings.of_calibration(known, **chosen, **others)
    )


def say_ready(url: str, model: str, more: str = "") -> None:
    """Print the one line that says where the server is."""
    typer.echo(f"poise: ready at {url} with the model {model}{more}", err=True)
