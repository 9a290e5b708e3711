"""`poise serve`: an HTTP server."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Any

import typer

from poise.cli.shared_options import (
    AugMix,
    BatchSize,
    CalibrationFile,
    Coverage,
    Device,
    Dtype,
    EngineName,
    FixedViews,
    Init,
    LabelsFile,
    MaxError,
    Model,
    Seed,
    Template,
    Threads,
    given,
    labels_from,
)
from poise.errors import InvalidOptionError, MissingDependencyError
from poise.serve.ceilings import Limits


def serve(
    ctx: typer.Context,
    labels: Annotated[
        str | None, typer.Option(help="Comma-separated labels of requests that give none.", show_default="none")
    ] = None,
    labels_file: LabelsFile = None,
    model: Model = "pocket",
    method: Annotated[str, typer.Option(help="Comma-separated methods of requests that give none.")] = "kld+cats",
    template: Template = None,
    init: Init = "template",
    views: FixedViews = 64,
    augmix: AugMix = False,
    seed: Seed = 0,
    device: Device = "auto",
    dtype: Dtype = "auto",
    batch_size: BatchSize = None,
    threads: Threads = None,
    calibration: CalibrationFile = None,
    coverage: Coverage = None,
    max_error: MaxError = None,
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port to listen on.")] = 8000,
    token_file: Annotated[
        Path | None,
        typer.Option(help="File with the token of requests; or set POISE_SERVE_TOKEN.", show_default="none"),
    ] = None,
    allow_anonymous: Annotated[bool, typer.Option(help="Serve other machines without a token.")] = False,
    max_labels: Annotated[int, typer.Option(help="Most labels of a request.")] = Limits.labels,
    max_views: Annotated[int, typer.Option(help="Most views per image.")] = Limits.views,
    max_methods: Annotated[int, typer.Option(help="Most methods of a request.")] = Limits.methods,
    max_pixels: Annotated[int, typer.Option(help="Most pixels of an image.")] = Limits.pixels,
    max_body: Annotated[int, typer.Option(help="Most bytes of a request.")] = Limits.body,
    max_images: Annotated[int, typer.Option(help="Most images of a batch request.")] = Limits.images,
    max_seconds: Annotated[float, typer.Option(help="Longest time until an answer.")] = Limits.seconds,
    max_queue: Annotated[
        int, typer.Option(help="Most images x views x tuned methods that wait or run; beyond it, 429.")
    ] = Limits.queue,
    max_connections: Annotated[int, typer.Option(help="Most open connections; beyond it, 503.")] = Limits.connections,
    batch_wait: Annotated[float, typer.Option(min=0, help="Seconds that an image waits for others.")] = 0.005,
    access_log: Annotated[bool, typer.Option(help="Log each request.")] = False,
    demo: Annotated[bool, typer.Option(help="Add the page of `poise demo`, at /demo.")] = False,
    engine: Annotated[EngineName, typer.Option(help="Where to run: here or on Ray Serve.")] = EngineName.local,
    ray_address: Annotated[
        str, typer.Option("--address", help="Ray address (auto or host:port); omit to start Ray locally.")
    ] = "",
    replicas: Annotated[int, typer.Option(min=1, help="With --engine ray: processes with a model each.")] = 1,
) -> None:
    """Serve a model over HTTP, with batching, limits and metrics."""
    token = _token(token_file)
    try:
        from poise.serve import http_app, uvicorn_server
    except ModuleNotFoundError as error:
        raise MissingDependencyError.of("`poise serve`", str(error.name), "serve") from None
    from poise import methods
    from poise.calibration import Calibration
    from poise.inference.options import check_counts
    from poise.serve.settings import ServiceSettings

    uvicorn_server.check_exposure(host, token, allow_anonymous)
    check_counts(views, batch_size)
    known = None if calibration is None else Calibration.load(calibration)
    answers: dict[str, Any] = {
        "model": model, "method": tuple(methods.expand(method)), "template": template, "init": init,
        "views": views, "augmix": augmix, "seed": seed,
    }  # fmt: skip
    if known is not None:
        answers = given(ctx, answers)
    if "method" in answers:
        answers["methods"] = answers.pop("method")
    if labels is not None or labels_file is not None:
        answers["labels"] = tuple(labels_from(labels, labels_file))
    limits = Limits(labels=max_labels, views=max_views, methods=max_methods, pixels=max_pixels, body=max_body,
                    images=max_images, seconds=max_seconds, queue=max_queue, connections=max_connections)  # fmt: skip
    options = {
        "device": device, "dtype": dtype, "batch_size": batch_size, "batch_wait": batch_wait, "coverage": coverage,
        "max_error": max_error, "token": token, "limits": limits, **answers,
    }  # fmt: skip
    settings = ServiceSettings(**options) if known is None else ServiceSettings.of_calibration(known, **options)
    address = uvicorn_server.Address(host=host, port=port, access_log=access_log)
    if engine is EngineName.ray:
        if demo:
            raise InvalidOptionError("--demo is for one process.", hint="Leave out --engine ray.")
        from poise.serve import ray_serve

        ray_serve.run(settings, address, ray_address, replicas, say=_say)
        return
    if ray_address or replicas != 1:
        raise InvalidOptionError("--address and --replicas require --engine ray.", hint="Add it, or leave them out.")
    app = http_app.create_app(settings)
    if demo:
        from poise.demo import mount

        mount(app)
    uvicorn_server.run(app, address, say=_say)


def _say(text: str) -> None:
    typer.echo(f"poise: {text}", err=True)


def _token(file: Path | None) -> str:
    """Return the token, which is never an option: other users of the machine can read a process's options."""
    if file is None:
        return os.environ.get("POISE_SERVE_TOKEN", "").strip()
    try:
        token = file.read_text("utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise InvalidOptionError(f"The token file '{file}' can't be read: {why}.", hint="Give a text file.") from None
    if not token:
        raise InvalidOptionError(f"The file '{file}' contains no token.", hint="Write one line of random text to it.")
    return token
