"""`poise demo`: a page in the browser to try images and labels on."""

from __future__ import annotations

import threading
import webbrowser
from pathlib import Path
from typing import Annotated

import typer

from poise.cli.input.option_parameters import FIXED_VIEWS, Chosen, takes_options
from poise.cli.input.server_start import say_ready, server_modules, settings_from
from poise.cli.input.shared_options import AllowedHosts, Port, Threads
from poise.cli.output.verbose import Verbose
from poise.serve.limits import Limits


@takes_options("demo", views=FIXED_VIEWS, method={"help": "Comma-separated methods that the page starts with."})
def demo(
    *,
    ctx: typer.Context,
    options: Chosen,
    threads: Threads = None,
    limits: Chosen,
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

    address = uvicorn_server.Address(port=port)
    settings = settings_from(
        ctx,
        options,
        None,
        limits=Limits(**limits),
        hosts=uvicorn_server.allowed_hosts(address.host, allowed_host or ()),
    )
    app = mount(http_app.create_app(settings), path="/", runs=runs)

    def ready(url: str) -> None:
        say_ready(url, settings.model, " (stop with Ctrl+C)")
        if browser:  # in a thread, because a browser in the terminal would block the server
            threading.Thread(target=webbrowser.open, args=(url,), daemon=True).start()

    uvicorn_server.run(app, address, ready=ready)
