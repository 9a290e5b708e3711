"""Keeps requests to the page from naming files or addresses: only what the browser uploaded is read."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import gradio as gr
from gradio.exceptions import InvalidPathError

Move = Callable[[str | Path | None], Coroutine[Any, Any, str | None]]


def protect(page: gr.Blocks) -> None:
    """Let the page's components read uploads, and nothing else.

    gradio copies what a request names as a file into its cache, from where it can be downloaded, and fetches addresses.
    It checks that a path is one of an upload, but, in version 6.31, not on pages that are mounted in another app.
    """
    page.has_launched = True  # what the check asks for
    for block in page.blocks.values():
        block.async_move_resource_to_block_cache = _without_addresses(  # type: ignore[assignment, method-assign]
            block.async_move_resource_to_block_cache
        )


def _without_addresses(move: Move) -> Move:
    async def checked(source: str | Path | None) -> str | None:
        if source is not None and "://" in str(source):
            raise InvalidPathError("Addresses are not read.")
        return await move(source)

    return checked
