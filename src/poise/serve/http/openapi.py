"""The description of request bodies that routes read themselves."""

from __future__ import annotations

import copy
from collections.abc import Collection
from typing import Any

from pydantic import BaseModel

from poise.serve.http.problems import STATUSES
from poise.serve.http.schemas import ErrorResponse

_MEANINGS = {
    400: "The body can't be parsed.",
    401: "The token is missing or wrong.",
    408: "The body arrived too slowly.",
    413: "The body is too large.",
    415: "The content type is not accepted.",
    421: "The Host header is not a name of this server.",
    422: "Something in the request is not acceptable, or exceeds a limit.",
    429: "The queue is full.",
    500: "The image could not be classified.",
    503: "The server is starting or shutting down.",
    504: "The deadline passed.",
}


def errors(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """Return the description of these error responses; of all of them without arguments."""
    assert set(STATUSES.values()) - {404, 405, 499} <= set(_MEANINGS)
    return {status: {"model": ErrorResponse, "description": _MEANINGS[status]} for status in statuses or _MEANINGS}


def describe_token(document: dict[str, Any], free: Collection[str], *, needed: bool) -> None:
    """Say in the description how the token is sent; the paths in ``free`` need none, nor does a server without one."""
    scheme = {"type": "http", "scheme": "bearer", "description": "The server's token, if it has one."}
    document["components"]["securitySchemes"] = {"token": scheme}
    for path, operations in document["paths"].items():
        for operation in operations.values():
            choices: list[dict[str, list[str]]] = [{"token": []}, *([] if needed else [{}])]
            operation["security"] = [] if path in free else choices


def request_body(kind: type[BaseModel], images: str = "") -> dict[str, Any]:
    """Return the description of a body in JSON, and with ``images`` as multipart whose files are in that field."""
    schema = kind.model_json_schema()
    definitions = schema.pop("$defs", {})
    for value in schema["properties"].values():  # the only references: one level of parts
        if "$ref" in value:
            value.update(definitions[value.pop("$ref").rpartition("/")[2]])
    content = {"application/json": {"schema": schema}}
    if images:
        content["multipart/form-data"] = {"schema": _form(schema, images)}
    return {"requestBody": {"required": True, "content": content}}


def _form(schema: dict[str, Any], images: str) -> dict[str, Any]:
    """Return the schema of a form: files instead of base64, and no null, which a form can't contain."""
    form = {name: value for name, value in copy.deepcopy(schema).items() if name != "examples"}
    for name, value in form["properties"].items():
        for choice in value.pop("anyOf", []):
            if choice["type"] != "null":
                value.update(choice)
        value.pop("default", None)
        if name == images:
            target = value["items"] if value["type"] == "array" else value
            target["format"] = "binary"
            value["description"] = "Image files."
    return form
