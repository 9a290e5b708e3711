"""The log of requests: one line of JSON for each, and one for each failure of the server itself.

JSON escapes what a client sent, so that no text of it can look like another line. The logger is not one of poise's
others: `poise serve --verbose` shows those, and ``--access-log`` this one.
"""

from __future__ import annotations

import json
import logging
import traceback
from datetime import UTC, datetime
from typing import Any

from starlette.types import Scope

_log = logging.getLogger("poise_access")
_MOST = 200  # characters of a path or a message
_FRAMES = 8  # of a traceback, the last ones


def to_stderr() -> None:
    """Write a line for each request; failures are written always."""
    if not _log.handlers:
        _log.addHandler(logging.StreamHandler())
        _log.propagate = False
    _log.setLevel(logging.INFO)


def answered(scope: Scope, status: int, seconds: float) -> None:
    """Log a request that was answered, or that its client has given up."""
    state = scope["state"]
    _write(
        logging.INFO,
        request_id=state["request_id"],
        client=(scope.get("client") or ("",))[0],
        method=scope["method"][:_MOST],
        path=scope["path"][:_MOST],
        status=status,
        code=state.get("code"),
        seconds=round(seconds, 4),
        images=state.get("images"),
    )


def refused(client: str, request_id: str, status: int, code: str) -> None:
    """Log what was refused before it was a request."""
    _write(logging.INFO, request_id=request_id, client=client, status=status, code=code)


def failed(request_id: str, error: BaseException) -> None:
    """Log an error that poise does not know, with the place where it was raised."""
    frames = [f"{row.filename}:{row.lineno} {row.name}" for row in traceback.extract_tb(error.__traceback__)]
    _write(
        logging.ERROR,
        request_id=request_id,
        code="internal_error",
        exception=f"{type(error).__name__}: {error}"[:_MOST],
        frames=frames[-_FRAMES:],
    )


def _write(level: int, **fields: Any) -> None:
    if _log.isEnabledFor(level):
        now = datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
        _log.log(level, "%s", json.dumps({"time": now, **fields}))
