"""`poise serve`: an HTTP server."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Annotated

import typer

from poise.cli.input.option_parameters import FIXED_VIEWS, Chosen, takes_options
from poise.cli.input.server_start import say_ready, server_modules, settings_from
from poise.cli.input.shared_options import (
    AllowedHosts,
    EngineName,
    LabelsFile,
    Port,
    Threads,
    labels_from,
)
from poise.cli.output.verbose import Verbose, remark
from poise.cli.typer_app import option_name
from poise.errors import InvalidOptionError, UnknownNameError, reason_of
from poise.files import read_bounded
from poise.serve.limits import Limits

_MAX_TOKEN = 1 << 20  # bytes of a token file
_TOKEN = "POISE_SERVE_TOKEN"
_SERVICE_LINK = re.compile(r".*_(SERVICE_HOST|SERVICE_PORT(_\w+)?|PORT_\d+_(TCP|UDP)(_(PROTO|PORT|ADDR))?)")


@takes_options("serve", views=FIXED_VIEWS, method={"help": "Comma-separated methods of requests that give none."})
def serve(
    *,
    ctx: typer.Context,
    labels: Annotated[
        str | None, typer.Option(help="Comma-separated labels of requests that give none.", show_default="none")
    ] = None,
    labels_file: LabelsFile = None,
    options: Chosen,
    threads: Threads = None,
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Port = 8000,
    allowed_host: AllowedHosts = None,
    token_file: Annotated[
        Path | None,
        typer.Option(help="File with the token of requests; or set POISE_SERVE_TOKEN.", show_default="none"),
    ] = None,
    allow_anonymous: Annotated[bool, typer.Option(help="Serve other machines without a token.")] = False,
    limits: Chosen,
    batch_wait: Annotated[float, typer.Option(min=0, help="Seconds that an image waits for others.")] = 0.005,
    access_log: Annotated[bool, typer.Option(help="Log each request to stderr, as a line of JSON.")] = False,
    verbose: Verbose = False,
    demo: Annotated[bool, typer.Option(help="Add the page of `poise demo`, at /demo.")] = False,
    docs: Annotated[bool, typer.Option(help="Add a page to try the routes on, at /docs.")] = False,
    engine: Annotated[EngineName, typer.Option(help="Where to run: here or on Ray Serve.")] = EngineName.local,
    ray_address: Annotated[
        str, typer.Option("--address", help="Ray address (auto or host:port); omit to start Ray locally.")
    ] = "",
    replicas: Annotated[int, typer.Option(min=1, help="With --engine ray: processes with a model each.")] = 1,
) -> None:
    """Serve a model over HTTP, with batching, limits and metrics."""
    _check_engine(engine, ray_address, replicas, demo or docs)
    _warn_of_variables(ctx)
    token = read_token(token_file)
    http_app, uvicorn_server = server_modules("`poise serve`", "serve")
    uvicorn_server.check_exposure(host, token, allow_anonymous)
    names = labels_from(labels, labels_file) if labels is not None or labels_file is not None else None
    settings = settings_from(
        ctx,
        options,
        names,
        batch_wait=batch_wait,
        limits=Limits(**limits),
        token=token,
        hosts=uvicorn_server.allowed_hosts(host, allowed_host or ()),
    )
    address = uvicorn_server.Address(host=host, port=port, access_log=access_log)
    if engine is EngineName.ray:
        from poise.serve import ray_serve

        ray_serve.run(settings, address, ray_address, replicas, ready=lambda url: say_ready(url, settings.model))
        return
    app = http_app.create_app(settings, page=docs)
    if demo:
        from poise.demo import mount

        mount(app)
    pages = [name for name, asked in {"/demo": demo, "/docs": docs}.items() if asked]

    def ready(url: str) -> None:
        say_ready(url, settings.model, "".join(f"; the page is at {url}{name}" for name in pages))

    uvicorn_server.run(app, address, ready=ready, say=remark)


def _warn_of_variables(ctx: typer.Context) -> None:
    """Say which variables look like options of this command and are none: they are easily misspelled."""
    known = {_TOKEN}
    for option in ctx.command.params:
        own = option.envvar or f"{ctx.auto_envvar_prefix}_{option_name(option).upper()}"  # POISE_THREADS is one
        known.update([own] if isinstance(own, str) else own)
    for name in sorted(name for name in os.environ if name.startswith(f"{ctx.auto_envvar_prefix}_")):
        # Kubernetes sets the others for a service that is named poise-serve.
        if name not in known and not _SERVICE_LINK.fullmatch(name):
            remark(f"{UnknownNameError.of('variable', name, known).message} It is ignored.")


def _check_engine(engine: EngineName, ray_address: str, replicas: int, pages: bool) -> None:
    if engine is EngineName.ray and pages:
        raise InvalidOptionError("--demo and --docs are for one process.", hint="Leave out --engine ray.")
    if engine is not EngineName.ray and (ray_address or replicas != 1):
        raise InvalidOptionError("--address and --replicas require --engine ray.", hint="Add it, or leave them out.")


def read_token(file: Path | None) -> str:
    """Return the token, which is never an option: other users of the machine can read a process's options."""
    if file is None:
        return os.environ.get(_TOKEN, "").strip()
    try:
        token = read_bounded(file, _MAX_TOKEN).decode("utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidOptionError(
            f"The token file '{file}' can't be read: {reason_of(error)}.", hint="Give a text file."
        ) from None
    if not token:
        raise InvalidOptionError(f"The file '{file}' contains no token.", hint="Write one line of random text to it.")
    return token
