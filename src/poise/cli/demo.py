"""`poise demo`: a page in the browser to try images and labels on."""

from __future__ import annotations

import threading
import webbrowser
from pathlib import Path
from typing import Annotated, Any

import typer

from poise.cli.shared_options import Device, Dtype, FixedViews, Model, Seed, Threads, given
from poise.errors import MissingDependencyError


def demo(
    ctx: typer.Context,
    model: Model = "pocket",
    views: FixedViews = 64,
    seed: Seed = 0,
    device: Device = "auto",
    dtype: Dtype = "auto",
    threads: Threads = None,
    calibration: Annotated[
        Path | None,
        typer.Option(help="File of `poise calibrate`, for guarantees; the model, views and seed are its."),
    ] = None,
    coverage: Annotated[
        float | None, typer.Option(help="With --calibration: coverage of prediction sets.", show_default="0.9")
    ] = None,
    max_error: Annotated[
        float | None, typer.Option(help="With --calibration: say when to abstain, so that few answers are wrong.")
    ] = None,
    runs: Annotated[Path | None, typer.Option(help="Folder of `poise bench run`, for a second tab.")] = None,
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port on this machine; 0 for any that is free.")] = 8000,
    browser: Annotated[bool, typer.Option("--browser/--no-browser", help="Open the page.")] = True,
) -> None:
    """Try images and labels in the browser: answers, what they are worth, and the same call as code.

    The page is on this machine only, and nothing leaves it. The HTTP interface of `poise serve` is on the same port.
    """
    try:
        from poise.serve import http_app, uvicorn_server
    except ModuleNotFoundError as error:
        raise MissingDependencyError.of("`poise demo`", str(error.name), "demo") from None
    from poise.calibration import Calibration
    from poise.demo import mount
    from poise.inference.options import check_counts
    from poise.serve.settings import ServiceSettings

    check_counts(views, None)
    known = None if calibration is None else Calibration.load(calibration)
    options: dict[str, Any] = {"model": model, "views": views, "seed": seed}
    fixed: dict[str, Any] = {"device": device, "dtype": dtype, "coverage": coverage, "max_error": max_error}
    if known is None:
        settings = ServiceSettings(**options, **fixed)
    else:
        settings = ServiceSettings.of_calibration(known, **given(ctx, options), **fixed)
    app = mount(http_app.create_app(settings), path="/", runs=runs)

    def say(text: str) -> None:
        typer.echo(f"poise: {text} (stop with Ctrl+C)", err=True)
        if browser:  # in a thread, because a browser in the terminal would block the server
            threading.Thread(target=webbrowser.open, args=(text.split()[-1],), daemon=True).start()

    uvicorn_server.run(app, uvicorn_server.Address(port=port), say=say)
