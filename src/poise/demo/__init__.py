"""A page on which people try poise: `mount` adds it to the HTTP server, whose queue and model it uses."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from poise.errors import InvalidOptionError, MissingDependencyError

if TYPE_CHECKING:
    from fastapi import FastAPI

__all__ = ["mount"]

# The page loads nothing from elsewhere and sends nothing elsewhere; browsers are told to hold it to that. gradio's
# own scripts are inline in part, and render templates with `Function`.
POLICY = (
    "default-src 'self' data: blob:; script-src 'self' 'unsafe-inline' 'unsafe-eval' blob:; "
    "style-src 'self' 'unsafe-inline'; frame-ancestors 'self'; form-action 'self'"
)


def mount(app: FastAPI, *, path: str = "/demo", runs: str | Path | None = None) -> FastAPI:
    """Add the page to a server.

    Args:
        app: what `poise.serve.http.app.create_app` returned; its service answers the images.
        path: where the page is.
        runs: folder of benchmark runs that the page shows; None for none.

    Raises:
        InvalidOptionError: The folder does not exist, or the server has a token, for which the page does not ask.
        MissingDependencyError: gradio is not installed.
    """
    service = app.state.service
    if service.settings.token:
        raise InvalidOptionError(
            "The demo page can't ask for the server's token.",
            hint="Serve the page without one, on this machine only.",
        )
    folder = None if runs is None else Path(runs).resolve()
    if folder is not None and not folder.is_dir():
        raise InvalidOptionError(f"'{runs}' is not a folder.", hint="Give the folder of `poise bench run --out`.")
    # Read when gradio is imported. Some of its calls home ask only this variable.
    os.environ["GRADIO_ANALYTICS_ENABLED"] = "False"
    try:
        import gradio
    except ImportError:
        raise MissingDependencyError.of("The demo page", "gradio", "demo") from None
    from poise.demo import layout
    from poise.demo.example_rows import EXAMPLES

    _add_policy(app, path)
    return gradio.mount_gradio_app(
        app,
        layout.build(service, folder),
        path,
        allowed_paths=[str(row.path) for row in EXAMPLES],
        max_file_size=service.settings.limits.body,
        show_error=False,
        run_history=False,
        footer_links=[],
        ssr_mode=False,
        mcp_server=False,
        pwa=False,
        enable_monitoring=False,
        theme=layout.theme(),
        css=layout.css(),
    )


def _add_policy(app: FastAPI, path: str) -> None:
    """Send the page's security policy with all that is below its path."""
    from starlette.datastructures import MutableHeaders

    class ContentPolicy:
        def __init__(self, inner: Any) -> None:
            self.inner = inner

        async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
            async def send_on(message: Any) -> None:
                if message["type"] == "http.response.start" and scope["path"].startswith(path):
                    MutableHeaders(scope=message).setdefault("content-security-policy", POLICY)
                await send(message)

            await self.inner(scope, receive, send_on)

    app.add_middleware(ContentPolicy)
