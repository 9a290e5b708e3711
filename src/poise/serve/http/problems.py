"""Errors as HTTP responses: one status for each code, and one shape for all of them."""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse
from pydantic import ValidationError
from starlette.exceptions import HTTPException

from poise.errors import PoiseError, QueueFullError
from poise.serve.http import access_log
from poise.serve.telemetry import Metrics

# Status by code; 422 for all others: the request was understood, and something in it is not acceptable.
STATUSES = {
    "bad_request": 400,
    "unauthorized": 401,
    "not_found": 404,
    "method_not_allowed": 405,
    "body_too_slow": 408,
    "headers_too_slow": 408,
    "too_many_connections": 503,
    "wrong_host": 421,
    "body_too_large": 413,
    "unsupported_media_type": 415,
    "queue_full": 429,
    "too_many_requests": 429,
    "client_left": 499,
    "unavailable": 503,
    "deadline_exceeded": 504,
    "internal_error": 500,
    "non_finite": 500,
    "out_of_memory": 500,
    "reader_lost": 500,
    "error": 500,
}
_INTERNAL = "The server failed to answer this request."


def detail(error: BaseException, request_id: str) -> dict[str, Any]:
    """Return the fields of an error; nothing is told about errors that poise does not know."""
    known = error if isinstance(error, PoiseError) else PoiseError(_INTERNAL, code="internal_error")
    if known is not error:
        access_log.failed(request_id, error)
    return {"code": known.code, "message": known.message, "hint": known.hint, "request_id": request_id}


def response(error: BaseException, request_id: str) -> JSONResponse:
    """Return the response for an error."""
    body = detail(error, request_id)
    headers = {"Retry-After": str(error.retry_after)} if isinstance(error, QueueFullError) else {}
    if body["code"] == "unauthorized":
        headers["WWW-Authenticate"] = "Bearer"
    return JSONResponse({"error": body}, STATUSES.get(body["code"], 422), headers)


def invalid(error: ValidationError) -> PoiseError:
    """Return the error for a body that does not have the right fields; values are not repeated, they may be large."""
    first = error.errors(include_url=False, include_context=False, include_input=False)[0]
    where = ".".join(str(part) for part in first["loc"])[:200]
    more = f" ({error.error_count() - 1} more)" if error.error_count() > 1 else ""
    if first["type"] == "json_invalid":
        return PoiseError(f"The body is not valid JSON: {first['msg']}.", code="bad_request")
    return PoiseError(
        f"{where or 'body'}: {first['msg']}.{more}", hint="/openapi.json describes the body.", code="invalid_request"
    )


def install(app: FastAPI, metrics: Metrics) -> None:
    """Give all errors of an app's routes the same shape."""

    async def known(request: Request, error: Exception) -> JSONResponse:
        answer = response(error, request.state.request_id)
        request.state.code = getattr(error, "code", "internal_error")
        metrics.rejected.labels(request.state.code).inc()
        return answer

    async def http(request: Request, error: Exception) -> JSONResponse:
        assert isinstance(error, HTTPException)
        code = {404: "not_found", 405: "method_not_allowed"}.get(error.status_code, "bad_request")
        hint = "" if code == "bad_request" else "/openapi.json describes the routes."
        answer = await known(request, PoiseError(f"{error.detail}.", hint=hint, code=code))
        answer.headers.update(error.headers or {})
        return answer

    app.add_exception_handler(PoiseError, known)
    app.add_exception_handler(HTTPException, http)
