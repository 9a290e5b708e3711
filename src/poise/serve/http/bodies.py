"""Reads the body of a request: JSON with base64, or multipart with files."""

from __future__ import annotations

import base64
import binascii
import json
import sys
from typing import Any, TypeVar, get_args, get_origin

from fastapi import Request
from pydantic import BaseModel, ValidationError
from starlette.datastructures import FormData, UploadFile
from starlette.formparsers import MultiPartException, MultiPartParser

from poise.errors import InvalidLabelsError, PoiseError
from poise.serve.http import problems
from poise.text import printable

B = TypeVar("B", bound=BaseModel)


class _FormParser(MultiPartParser):
    """Keeps files in memory, where the body is already: images of clients are never written to a temporary folder."""

    spool_max_size = sys.maxsize


async def read_json(request: Request, kind: type[B], images: str = "") -> B:
    """Return a JSON body, checked; ``images`` is the field of files of routes that also take forms."""
    if _media_type(request) != "application/json":
        form = f"a form (curl -F {images}=@cat.jpg) or " if images else ""
        raise PoiseError(
            f"The content type is {_media_type(request)[:100]!r}.",
            hint=f"Send {form}JSON (Content-Type: application/json).",
            code="unsupported_media_type",
        )
    try:
        return kind.model_validate_json(await request.body())
    except ValidationError as error:
        raise problems.invalid(error) from None


async def read_form(request: Request, kind: type[B], images: str, max_fields: int) -> tuple[B, list[bytes]]:
    """Return a multipart body, checked, and the files in the field ``images``.

    Lists are repeated fields. Numbers and booleans are written as in JSON.
    """
    try:
        form = await _FormParser(request.headers, request.stream(), max_files=max_fields, max_fields=max_fields).parse()
    except MultiPartException as error:
        raise PoiseError(f"{error.message.rstrip('.')}.", code="bad_request") from None
    try:
        files, values = await _parts(form, kind, images)
    finally:
        await form.close()
    if len(labels := values.get("labels", ())) == 1 and "," in labels[0]:
        hint = "Repeat the field for each label: -F labels=cat -F labels=dog."
        raise InvalidLabelsError(f"The field 'labels' is given once, as {labels[0][:100]!r}.", hint=hint)
    placeholders: Any = ["" for _ in files]
    if kind.model_fields[images].annotation is str:
        if len(files) != 1:
            raise PoiseError(f"The body has {len(files)} files in the field {images!r}, not 1.", code="invalid_request")
        placeholders = ""
    try:
        return kind.model_validate({**values, images: placeholders}), files
    except ValidationError as error:
        raise problems.invalid(error) from None


async def _parts(form: FormData, kind: type[BaseModel], images: str) -> tuple[list[bytes], dict[str, Any]]:
    """Return the files of a form, and its other fields by name."""
    kinds = {name: row.annotation for name, row in kind.model_fields.items()}
    lists = {name for name, annotation in kinds.items() if get_origin(annotation) is list}
    texts = {name for name, annotation in kinds.items() if str in get_args(annotation)}
    files, values = [], dict[str, Any]()
    for name, value in form.multi_items():
        if isinstance(value, UploadFile):
            if name != images:
                raise PoiseError(f"Files belong into the field {images!r}.", code="invalid_request")
            files.append(await value.read())
        elif name == images:
            hint = f"Send the file itself; with curl: -F {images}=@{printable(value)[:100]} (with @)."
            raise PoiseError(f"The field {images!r} has text instead of a file.", hint=hint, code="invalid_request")
        elif name in lists:
            values.setdefault(name, []).append(value)
        elif name in values:
            raise PoiseError(f"{name[:100]!r} is given twice.", code="invalid_request")
        else:
            values[name] = value if name in texts else _plain(value)
    return files, values


def is_form(request: Request) -> bool:
    """Whether a body is multipart."""
    return _media_type(request) == "multipart/form-data"


def decode(text: str) -> bytes:
    """Return the bytes of an image in base64."""
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        raise PoiseError(
            "The image is not in base64.",
            hint="Send the file itself; addresses and paths are not read.",
            code="bad_base64",
        ) from None


def _media_type(request: Request) -> str:
    return request.headers.get("content-type", "").partition(";")[0].strip().lower()


def _plain(value: str) -> Any:
    try:
        return json.loads(value)
    except (ValueError, RecursionError):
        return value  # of a type that the check refuses
