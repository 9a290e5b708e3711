"""Runs the app with uvicorn, and stops it without losing an accepted request."""

from __future__ import annotations

import ipaddress
import logging
import re
import signal
import socket
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType

import uvicorn
from fastapi import FastAPI

from poise.errors import InvalidOptionError
from poise.serve.http import access_log
from poise.serve.http.connections import bounded
from poise.serve.service import Service
from poise.text import counted

_GRACE = 5  # seconds beyond the longest request
# Seconds that an idle connection is kept: longer than clients keep theirs (httpx and many others: 5, proxies: 60), so
# that it is the client who closes it. A request that is sent just when the server closes would get no answer.
KEEP_ALIVE = 75
_NAME = re.compile(r"[\w-]+(\.[\w-]+)*")
SHORTEST_TOKEN = 16  # characters of a token for other machines
_LOOPBACK = ("localhost", "127.0.0.1", "::1")


@dataclass(frozen=True, kw_only=True)
class Address:
    """Where the server listens."""

    host: str = "127.0.0.1"
    port: int = 8000
    access_log: bool = False


def check_exposure(host: str, token: str, allow_anonymous: bool) -> None:
    """Refuse to serve other machines without a token, unless that is wanted, or with one that can be guessed."""
    if (allow_anonymous and not token) or _is_loopback(host) or len(token) >= SHORTEST_TOKEN:
        return
    if token:
        raise InvalidOptionError(
            f"The host {host} can be reached from other machines, and the token has {len(token)} characters.",
            hint=f"Use at least {SHORTEST_TOKEN} random ones: openssl rand -hex 24.",
        )
    raise InvalidOptionError(
        f"The host {host} can be reached from other machines, and no token is set.",
        hint="Set POISE_SERVE_TOKEN or --token-file, or add --allow-anonymous if something in front checks clients.",
    )


def allowed_hosts(host: str, names: Sequence[str]) -> tuple[str, ...]:
    """Return what the Host header of requests may be, for `ServiceSettings.hosts`.

    A server that only this machine can reach is protected against web pages that make their own name an address of this
    machine (DNS rebinding). A server for other machines has names that only its administrator knows.

    Args:
        host: the address to listen on.
        names: what the administrator allows.
    """
    for name in names:
        if not _NAME.fullmatch(name) and not _is_address(name):
            raise InvalidOptionError(f"'{name}' is not a name of a machine.", hint="Give it without scheme and port.")
    if not names and not _is_loopback(host):
        return ()
    return tuple(dict.fromkeys([_in_url(name) for name in (*_LOOPBACK, host, *names)]))


def _silent(text: str) -> None:
    pass


def run(
    app: FastAPI, address: Address, *, ready: Callable[[str], None] = _silent, say: Callable[[str], None] = _silent
) -> None:
    """Serve until SIGTERM or SIGINT: no more requests are accepted, accepted ones are answered.

    Args:
        app: what `create_app` returned.
        address: where to listen.
        ready: called with the server's URL when images are accepted.
        say: called with what happens at the end.

    Raises:
        PoiseError: The service could not be started.
    """
    if address.access_log:
        access_log.to_stderr()
    server = DrainingServer(app, address, say)
    app.state.on_failure = server.stop
    with _listen(address) as listener, _orderly_signals():
        url = f"http://{_in_url(address.host)}:{listener.getsockname()[1]}"
        app.state.on_ready = lambda: ready(url)
        server.run(sockets=[listener])
    if app.state.failure is not None:
        raise app.state.failure


@contextmanager
def _orderly_signals() -> Iterator[None]:
    """Ignore the signal that uvicorn raises again when it has stopped; an orderly stop is no failure."""
    before = {number: signal.signal(number, lambda *_: None) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


class DrainingServer(uvicorn.Server):
    """A server that stops admission as soon as it is told to stop."""

    def __init__(self, app: FastAPI, address: Address, say: Callable[[str], None] = _silent) -> None:
        self._service: Service = app.state.service
        self._state, self._say = app.state, say
        limits = self._service.settings.limits
        super().__init__(
            uvicorn.Config(
                app,
                host=address.host,
                port=address.port,
                http=bounded(limits),
                ws="none",
                access_log=False,  # poise writes its own
                proxy_headers=False,  # any client could write them, and pretend to be another
                log_level="warning",
                timeout_keep_alive=KEEP_ALIVE,
                timeout_graceful_shutdown=int(limits.seconds) + _GRACE,
                server_header=False,
            )
        )

    def stop(self) -> None:
        """Stop as soon as the requests are answered."""
        self.should_exit = True

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Handle SIGTERM and SIGINT."""
        self._service.stop()
        if self.should_exit:  # the second signal ends the server at once, which uvicorn would report as a failure
            logging.getLogger("uvicorn.error").setLevel(logging.CRITICAL)
            self.force_exit = True  # uvicorn does so for SIGINT only
        super().handle_exit(sig, frame)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Stop listening, and wait for the requests that were accepted."""
        if self._state.failure is not None:  # which is reported
            return await super().shutdown(sockets)
        self._say(f"draining, {counted(len(self.server_state.tasks), 'request')}")
        await super().shutdown(sockets)
        self._say("stopped")


def _listen(address: Address) -> socket.socket:
    family = socket.AF_INET6 if ":" in address.host else socket.AF_INET
    try:
        return socket.create_server((address.host, address.port), family=family, backlog=2048)
    except (OSError, UnicodeError) as error:
        reason = str(getattr(error, "strerror", None) or error).partition(" (while")[0]
        raise InvalidOptionError(
            f"The server can't listen on {address.host}:{address.port}: {reason}.",
            hint="Give another --port (`poise serve`: or another --host).",
        ) from None


def _in_url(host: str) -> str:
    return f"[{host}]" if ":" in host else host


def _is_address(host: str) -> bool:
    try:
        return bool(ipaddress.ip_address(host))
    except ValueError:
        return False


def _is_loopback(host: str) -> bool:
    if _is_address(host):
        return ipaddress.ip_address(host).is_loopback
    try:
        return all(ipaddress.ip_address(row[4][0]).is_loopback for row in socket.getaddrinfo(host, None))
    except (OSError, UnicodeError):  # UnicodeError: no name of a machine
        raise InvalidOptionError(
            f"The host '{host}' can't be resolved.", hint="Give an address of this machine."
        ) from None
