"""What happens to a request before it reaches a route: its id, the server's name in it, its token, and its body."""

from __future__ import annotations

import asyncio
import hmac
import re
import time
import uuid
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Sequence
from contextlib import suppress
from ipaddress import ip_address, ip_network

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from poise.errors import LimitExceededError, PoiseError, QueueFullError
from poise.serve.http import access_log, problems
from poise.serve.settings import ServiceSettings
from poise.serve.telemetry import Metrics

_HOST = re.compile(r"(\[[^][]*\]|[^][:]*)(?::\d*)?")
_REQUEST_ID = re.compile(r"[A-Za-z0-9_.-]{1,64}")
OPEN = ("/live", "/ready")  # paths that need neither token nor name, and are answered when the server is busy
_LINGER = 5.0  # seconds in which the rest of a refused body is read


class Observe:
    """Gives each request an id, and counts and logs it with its route, status and time."""

    def __init__(self, app: ASGIApp, metrics: Metrics, routes: Collection[str]) -> None:
        self._app, self._metrics, self._routes = app, metrics, routes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle a request."""
        if scope["type"] != "http":
            return await self._app(scope, receive, send)
        given = Headers(scope=scope).get("x-request-id", "")
        request_id = given if _REQUEST_ID.fullmatch(given) else uuid.uuid4().hex
        scope.setdefault("state", {})["request_id"] = request_id
        route = scope["path"] if scope["path"] in self._routes else "other"
        started, status = time.monotonic(), 0

        async def answer(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                MutableHeaders(scope=message)["X-Request-Id"] = request_id
                self._metrics.requests.labels(route, message["status"]).inc()
                self._metrics.request_seconds.labels(route).observe(time.monotonic() - started)
            await send(message)

        try:
            await self._app(scope, receive, answer)
        except Exception as error:  # a defect; the others are responses already
            if status:
                raise
            scope["state"]["code"] = "internal_error"
            self._metrics.rejected.labels("internal_error").inc()
            await problems.response(error, request_id)(scope, receive, answer)
        finally:
            if not status:  # the client left before its request was complete
                scope["state"]["code"], status = "client_left", problems.STATUSES["client_left"]
            access_log.answered(scope, status, time.monotonic() - started)


class Gate:
    """Lets requests with the right token pass, and reads their bodies: bounded in bytes, in time and in total."""

    def __init__(
        self, app: ASGIApp, metrics: Metrics, settings: ServiceSettings, also_open: Sequence[str] = ()
    ) -> None:
        self._app, self._metrics, self._limits = app, metrics, settings.limits
        self._open = {*OPEN, *also_open}
        self._token, self._hosts = settings.token.encode(), frozenset(map(str.lower, settings.hosts))
        self._held = 0  # bytes of all bodies in memory
        self._requests = 0  # that are being read or answered
        self.clients: Counter[str] = Counter()  # the same by address

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle a request."""
        if scope["type"] != "http" or scope["path"] in self._open:  # whose routes read no body
            return await self._app(scope, receive, send)
        try:
            self._check_host(scope)
            self._check_token(scope)
            await self._admit(scope, receive, send)
        except _Refused as refused:
            scope["state"]["code"] = refused.error.code
            self._metrics.rejected.labels(refused.error.code).inc()
            answer = problems.response(refused.error, scope["state"]["request_id"])
            answer.headers["Connection"] = "close"  # otherwise the server would go on reading the body
            rest = self._limits.body if refused.more_body else 0
            await answer(scope, receive, _before_the_end(send, lambda: _discard(receive, rest)))

    async def _admit(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request that may be one; others never take the place of such."""
        if self._requests >= self._limits.connections:
            problem = f"The server is busy with {self._limits.connections} requests."
            raise _Refused(QueueFullError(problem, code="too_many_connections"))
        client, most = _address(scope), self._limits.per_client
        if self.clients[client] >= most:
            problem = f"The server answers {most} requests of one client at a time."
            raise _Refused(QueueFullError(problem, code="too_many_requests"))
        body = bytearray()
        self._requests += 1
        self.clients[client] += 1
        try:
            if await self._read(receive, body):
                await self._app(scope, _replay(bytes(body), receive), send)
        finally:
            self._held -= len(body)
            self._requests -= 1
            self.clients -= Counter([client])  # and forget those that have none

    def _check_host(self, scope: Scope) -> None:
        """Refuse names that are not the server's: a web page may have made its own name an address of this machine."""
        if not self._hosts:
            return
        given = Headers(scope=scope).get("host", "")
        if _without_port(given) not in self._hosts:
            problem = f"The server is not called {given[:100]!r}."
            hint = "Use its own address, or start it with --allowed-host NAME."
            raise _Refused(PoiseError(problem, hint=hint, code="wrong_host"))

    def _check_token(self, scope: Scope) -> None:
        if not self._token:
            return
        kind, _, given = Headers(scope=scope).get("authorization", "").partition(" ")
        sent = kind.lower() == "bearer"
        # Headers are decoded as Latin-1, whatever they contain; encoding gives their bytes back.
        if not sent or not hmac.compare_digest(given.strip().encode("latin-1"), self._token):
            problem = "The token is wrong." if sent and given.strip() else "This server needs a token."
            raise _Refused(PoiseError(problem, hint="Send Authorization: Bearer TOKEN.", code="unauthorized"))

    async def _read(self, receive: Receive, body: bytearray) -> bool:
        """Read the body; False if the client has left."""
        limits = self._limits
        try:
            async with asyncio.timeout(limits.body_seconds):
                while True:
                    message = await receive()
                    if message["type"] == "http.disconnect":
                        return False
                    chunk, more = message.get("body", b""), message.get("more_body", False)
                    if len(body) + len(chunk) > limits.body:
                        problem = f"The body has more than {limits.body:,} bytes."
                        raise _Refused(LimitExceededError(problem, hint="Send less.", code="body_too_large"), more)
                    if self._held + len(chunk) > limits.held:
                        raise _Refused(QueueFullError("The server is busy with large requests."), more)
                    body += chunk
                    self._held += len(chunk)
                    if not more:
                        return True
        except TimeoutError:
            problem = f"The body did not arrive within {limits.body_seconds:g} s."
            raise _Refused(PoiseError(problem, hint="Send it faster.", code="body_too_slow"), False) from None


class _Refused(Exception):
    """A request that does not reach its route; distinct from errors of the routes.

    Args:
        error: the reason.
        more_body: whether the rest of its body is to be expected.
    """

    def __init__(self, error: PoiseError, more_body: bool = True) -> None:
        super().__init__(str(error))
        self.error, self.more_body = error, more_body


def _address(scope: Scope) -> str:
    """Return the address that a request comes from; of IPv6 its network, since one client has many addresses there.

    >>> [_address({"client": (host, 1)}) for host in ("10.0.0.1", "2001:db8::1", "2001:db8::2", "testclient")]
    ['10.0.0.1', '2001:db8::', '2001:db8::', 'testclient']
    """
    host = (scope.get("client") or ("",))[0]
    with suppress(ValueError):
        if (address := ip_address(host.partition("%")[0])).version == 6:
            return str(ip_network((int(address) >> 64 << 64, 64)).network_address)
    return str(host)


def _without_port(host: str) -> str:
    """Return the name of a Host header; addresses of IPv6 are in brackets."""
    found = _HOST.fullmatch(host)
    return found[1].lower().removesuffix(".") if found else ""


def _before_the_end(send: Send, wait: Callable[[], Awaitable[None]]) -> Send:
    """Return a channel that waits after the last byte of a response, before the server closes the connection."""

    async def channel(message: Message) -> None:
        if message["type"] == "http.response.body":
            await send({**message, "more_body": True})
            await wait()
            message = {"type": "http.response.body", "body": b"", "more_body": False}
        await send(message)

    return channel


async def _discard(receive: Receive, most: int) -> None:
    """Read what a client still sends: closing the connection before would reset it, and the client lose the answer."""
    with suppress(TimeoutError):
        async with asyncio.timeout(_LINGER):
            while most > 0:
                message = await receive()
                if not message.get("more_body", False):  # the end of the body, or of the connection
                    return
                most -= len(message["body"])


def _replay(body: bytes, receive: Receive) -> Receive:
    """Return a channel that gives the body once, and then what the server says: that the client has left."""
    first = True

    async def channel() -> Message:
        nonlocal first
        if first:
            first = False
            return {"type": "http.request", "body": body, "more_body": False}
        return await receive()

    return channel
