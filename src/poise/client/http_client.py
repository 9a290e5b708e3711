"""Clients of `poise serve` over HTTP, with and without ``await``."""

from __future__ import annotations

import asyncio
import inspect
import json
import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, TypeVar

from poise.client.replies import RemoteModel, Reply, read_batch, read_error, read_models, read_reply
from poise.errors import (
    InvalidLabelsError,
    MissingDependencyError,
    RemoteError,
    ServiceUnavailableError,
    reason_of,
)
from poise.options import check_names, request_rows

if TYPE_CHECKING:
    import httpx2 as httpx

Image = bytes | str | PathLike[str]  # an encoded image, or the path of its file

_BUSY = (429, 503)  # statuses after which a request is sent again; the others would not change
_LONGEST_WAIT = 30.0  # seconds
_SHOWN = 100  # characters of an answer that can't be read

T = TypeVar("T")
F = TypeVar("F", bound=Callable[..., Any])


def _takes_options(call: F) -> F:
    """Give a call the signature with all options, for people and editors."""
    signature = inspect.signature(call)
    named = [parameter for parameter in signature.parameters.values() if parameter.name != "options"]
    added = [
        inspect.Parameter(row.about.request, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=row.kind)
        for row in request_rows()
    ]
    call.__signature__ = signature.replace(parameters=[*named, *added])  # type: ignore[attr-defined]
    return call


class _Calls:
    """What both clients share: requests, responses, and when to send a request again."""

    def __init__(self, url: str, *, token: str = "", timeout: float = 120.0, retries: int = 3) -> None:
        self._retries = retries
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        self._session: dict[str, Any] = {"base_url": url.rstrip("/"), "headers": headers, "timeout": timeout}

    @staticmethod
    def _classify(image: Image, options: dict[str, Any]) -> dict[str, Any]:
        return {"url": "/v1/classify", "data": _form(options), "files": [("image", _file(image))]}

    @staticmethod
    def _batch(images: Sequence[Image], options: dict[str, Any]) -> dict[str, Any]:
        return {"url": "/v1/batch", "data": _form(options), "files": [("images", _file(image)) for image in images]}

    def _waits(self) -> Iterator[bool]:
        """Yield for each try whether another one may follow it."""
        return iter([True] * self._retries + [False])


class Client(_Calls):
    """Classifies images on a server.

    Args:
        url: of the server, such as "http://127.0.0.1:8000".
        token: that the server asks for, if it does.
        timeout: seconds to wait for the server.
        retries: how often a request is sent again if the server is busy or starting; a request has no side effects, so
            that a second one does no harm.
    """

    def __init__(self, url: str, *, token: str = "", timeout: float = 120.0, retries: int = 3) -> None:
        super().__init__(url, token=token, timeout=timeout, retries=retries)
        self._http = _library().Client(**self._session)

    @_takes_options
    def classify(self, image: Image, **options: Any) -> Reply:
        """Classify one image.

        Args:
            image: an encoded image, or the path of its file.
            options: what a request may ask for; those that are left out are the server's. `poise.options` says what
                they mean.

        Raises:
            RemoteError: The server refused the request or could not answer it; ``code`` says why.
            ServiceUnavailableError: The server can't be reached, or does not answer within ``timeout``.
        """
        return self._send(read_reply, "POST", **self._classify(image, options))

    @_takes_options
    def batch(self, images: Sequence[Image], **options: Any) -> list[Reply | RemoteError]:
        """Classify several images in one request.

        Args:
            images: encoded images, or the paths of their files.
            options: as of `classify`.

        Returns:
            One reply per image; an image without an answer gives an error in its place.
        """
        return self._send(read_batch, "POST", **self._batch(images, options))

    def models(self) -> list[RemoteModel]:
        """Return the server's models."""
        return self._send(read_models, "GET", url="/v1/models")

    def ready(self) -> bool:
        """Return whether the server accepts images."""
        with _connection_errors(self._session["base_url"]):
            return bool(self._http.get("/ready").status_code == 200)

    def close(self) -> None:
        """Close the connections."""
        self._http.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _send(self, read: Callable[[Any], T], method: str, **request: Any) -> T:
        for again in self._waits():
            with _connection_errors(self._session["base_url"]):
                response = self._http.request(method, **request)
            if response.status_code not in _BUSY or not again:
                break
            time.sleep(_pause(response))
        return _read(response, read)


class AsyncClient(_Calls):
    """Classifies images on a server, with ``await``; see `Client` for the arguments.

    Example::

        async with AsyncClient("http://127.0.0.1:8000") as client:
            replies = await asyncio.gather(*(client.classify(path, labels=labels) for path in paths))
    """

    def __init__(self, url: str, *, token: str = "", timeout: float = 120.0, retries: int = 3) -> None:
        super().__init__(url, token=token, timeout=timeout, retries=retries)
        self._http = _library().AsyncClient(**self._session)

    @_takes_options
    async def classify(self, image: Image, **options: Any) -> Reply:
        """Classify one image; see `Client.classify`."""
        return await self._send(read_reply, "POST", **self._classify(image, options))

    @_takes_options
    async def batch(self, images: Sequence[Image], **options: Any) -> list[Reply | RemoteError]:
        """Classify several images in one request; see `Client.batch`."""
        return await self._send(read_batch, "POST", **self._batch(images, options))

    async def models(self) -> list[RemoteModel]:
        """Return the server's models."""
        return await self._send(read_models, "GET", url="/v1/models")

    async def ready(self) -> bool:
        """Return whether the server accepts images."""
        with _connection_errors(self._session["base_url"]):
            return bool((await self._http.get("/ready")).status_code == 200)

    async def close(self) -> None:
        """Close the connections."""
        await self._http.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.close()

    async def _send(self, read: Callable[[Any], T], method: str, **request: Any) -> T:
        for again in self._waits():
            with _connection_errors(self._session["base_url"]):
                response = await self._http.request(method, **request)
            if response.status_code not in _BUSY or not again:
                break
            await asyncio.sleep(_pause(response))
        return _read(response, read)


def _library() -> Any:
    try:
        import httpx2
    except ImportError:
        raise MissingDependencyError.of("The client", "httpx2", "client") from None
    return httpx2


@contextmanager
def _connection_errors(url: str) -> Iterator[None]:
    """Raise errors of the connection as one of poise's."""
    try:
        yield
    except _library().HTTPError as error:  # also of a body that is not compressed as its header says
        raise ServiceUnavailableError(
            f"The server at '{url}' did not answer: {reason_of(error)}.",
            hint="Check that it runs, the address and the timeout.",
        ) from error


def _file(image: Image) -> tuple[str, bytes]:
    # The file's name stays here: the server has no use for it.
    return "image", image if isinstance(image, bytes) else Path(image).read_bytes()


def _form(options: dict[str, Any]) -> dict[str, Any]:
    """Return the fields of a form: lists are repeated fields, and numbers are written as in JSON."""
    check_names(options, (row.about.request for row in request_rows()))
    if isinstance(labels := options.get("labels"), str):
        raise InvalidLabelsError(f"labels is the text {labels[:100]!r}.", hint="Give a list: labels=['cat', 'dog'].")
    return {name: _field(value) for name, value in options.items() if value is not None}


def _field(value: Any) -> Any:
    if isinstance(value, bool):
        return str(value).lower()
    return list(value) if isinstance(value, Sequence) and not isinstance(value, str) else str(value)


def _pause(response: httpx.Response) -> float:
    """Return the seconds that the server asks to wait, within bounds."""
    try:
        seconds = float(response.headers.get("Retry-After", 1))
    except ValueError:
        seconds = math.nan
    return 1.0 if math.isnan(seconds) else min(max(seconds, 0.1), _LONGEST_WAIT)


def _read(response: httpx.Response, read: Callable[[Any], T]) -> T:
    """Return what a response says, or raise the error that it contains."""
    try:
        body = json.loads(response.content.decode("utf-8"))  # whatever charset the answer names
        if response.status_code == 200:
            return read(body)
        error = read_error(body["error"], response.status_code)
    except Exception:  # values of any type and depth
        shown = response.content[: 4 * _SHOWN].decode("utf-8", "replace")[:_SHOWN]
        raise RemoteError(
            f"The answer of '{response.url}' (status {response.status_code}) is not one of `poise serve`: {shown!r}.",
            hint="Check the address, and that server and client have the same version.",
            status=response.status_code,
        ) from None
    raise error
