"""`poise demo`: a page in the browser to try images and labels on."""

from __future__ import annotations

import threading
import webbrowser
from pathlib import Path
from typing import Annotated, Any

import typer

from poise.cli.input.server_start import say_ready, server_modules, settings_from
from poise.cli.input.shared_options import (
    AllowedHosts,
    AugMix,
    BatchSize,
    CalibrationFile,
    Coverage,
    Device,
    Dtype,
    FixedViews,
    Init,
    LongLabel,
    MaxBody,
    MaxError,
    MaxPixels,
    Model,
    OnLongLabel,
    Port,
    Seed,
    Template,
    Threads,
)
from poise.cli.output.verbose import Verbose
from poise.defaults import DEFAULT_METHOD, DEFAULT_MODEL, DEFAULT_VIEWS
from poise.serve.limits import Limits


def demo(
    ctx: typer.Context,
    model: Model = DEFAULT_MODEL,
    method: Annotated[str, typer.Option(help="Comma-separated methods that the page starts with.")] = DEFAULT_METHOD,
    template: Template = None,
    init: Init = "template",
    views: FixedViews = DEFAULT_VIEWS,
    augmix: AugMix = False,
    seed: Seed = 0,
    device: Device = "auto",
    dtype: Dtype = "auto",
    batch_size: BatchSize = None,
    on_long_label: OnLongLabel = LongLabel.error,
    threads: Threads = None,
    calibration: CalibrationFile = None,
    coverage: Coverage = None,
    max_error: MaxError = None,
    max_pixels: MaxPixels = Limits.pixels,
    max_body: MaxBody = Limits.body,
    runs: Annotated[Path | None, typer.Option(help="Folder of `poise bench run`, for a second tab.")] = None,
    port: Port = 8000,
    allowed_host: AllowedHosts = None,
    browser: Annotated[bool, typer.Option("--browser/--no-browser", help="Open the page.")] = True,
    verbose: Verbose = False,
) -> None:
    """Try images and labels in the browser: answers, what they are worth, and the same call as code.

    The page is on this machine only, and nothing leaves it. The HTTP interface of `poise serve` is on the same port.
    """
    http_app, uvicorn_server = server_modules("`poise demo`", "demo")
    from poise.demo import mount

    answers: dict[str, Any] = {
        "model": model,
        "method": method,
        "template": template,
        "init": init,
        "views": views,
        "augmix": augmix,
        "seed": seed,
    }
    address = uvicorn_server.Address(port=port)
    settings = settings_from(
        ctx,
        calibration,
        answers,
        device=device,
        dtype=dtype,
        batch_size=batch_size,
        coverage=coverage,
        max_error=max_error,
        on_long_label=on_long_label.value,
        limits=Limits(pixels=max_pixels, body=max_body),
        hosts=uvicorn_server.allowed_hosts(address.host, allowed_host or ()),
    )
    app = mount(http_app.create_app(settings), path="/", runs=runs)

    def ready(url: str) -> None:
        say_ready(url, settings.model, " (stop with Ctrl+C)")
        if browser:  # in a thread, because a browser in the terminal would block the server
            threading.Thread(target=webbrowser.open, args=(url,), daemon=True).start()

    uvicorn_server.run(app, address, ready=ready)
