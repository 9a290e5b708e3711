"""The HTTP connections of a server: bounded in number and in the time of headers, closed without losing a request.

uvicorn waits for a request's headers as long as the client likes. When a connection has been idle for long enough, it
also closes it without looking whether a request has just arrived; the client would then get no answer.
"""

from __future__ import annotations

import asyncio
import itertools
import selectors
import uuid
from http import HTTPStatus
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from poise.errors import PoiseError
from poise.serve.http import access_log, problems
from poise.serve.limits import Limits

_turns = itertools.count()  # the clock of an event loop may stand still between two requests
_Selector = getattr(selectors, "PollSelector", selectors.SelectSelector)  # neither opens a file of its own


def bounded(limits: Limits) -> type[H11Protocol]:
    """Return the class of connections with these limits, for `uvicorn.Config(http=...)`."""
    return type("LimitedConnection", (BoundedConnection,), {"limits": limits})


class BoundedConnection(H11Protocol):
    """A connection that is closed if headers arrive too slowly, or if it is idle and others need its place."""

    limits: Limits
    _waits_since = 0  # the turn in which the connection was made, or the last response was sent
    _headers_due: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Handle a new connection."""
        super().connection_made(transport)
        self._waits_since = next(_turns)
        self._expect_headers()
        if len(self.connections) > self.limits.connections:
            others: Any = self.connections - {self}
            # The connections that have waited longest come first. If all have requests, the app refuses the next one.
            any(other.leave() for other in sorted(others, key=lambda other: other._waits_since))

    def connection_lost(self, exc: Exception | None) -> None:
        """Handle the end of the connection."""
        self._forget_headers()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Handle a piece of a request."""
        if self._headers_due is None and not self._has_request:
            self._expect_headers()
        super().data_received(data)
        if self._has_request:
            self._forget_headers()

    def on_response_complete(self) -> None:
        """Handle the end of a response."""
        self._waits_since = next(_turns)
        super().on_response_complete()

    def timeout_keep_alive_handler(self) -> None:
        """Close the connection, which has been idle for long enough."""
        self.leave()

    def leave(self) -> bool:
        """Close the connection if no request is on its way; return whether it is closed."""
        begun = bool(self.conn.trailing_data[0])  # a part of its headers has arrived, for which there is a timer
        if self._has_request or begun or self.transport.is_closing() or self._has_unread():
            return False
        super().timeout_keep_alive_handler()
        return True

    def send_400_response(self, msg: str) -> None:
        """Answer what is not HTTP."""
        self._refuse(PoiseError(msg, hint="Send plain HTTP/1.1 (not https), with one Host header.", code="bad_request"))

    @property
    def _has_request(self) -> bool:
        """Whether the headers of a request have arrived that is not answered yet."""
        return self.conn.their_state is not h11.IDLE

    def _has_unread(self) -> bool:
        """Whether bytes have arrived that the event loop has not seen yet: with a busy loop, that takes a while."""
        with _Selector() as selector:
            selector.register(self.transport.get_extra_info("socket").fileno(), selectors.EVENT_READ)
            return bool(selector.select(0))

    def _expect_headers(self) -> None:
        self._headers_due = self.loop.call_later(self.limits.header_seconds, self._end_headers)

    def _forget_headers(self) -> None:
        if self._headers_due is not None:
            self._headers_due.cancel()
            self._headers_due = None

    def _end_headers(self) -> None:
        if self.transport.is_closing():
            return
        begun, _ = self.conn.trailing_data
        if not begun:  # a connection that was never used
            self.transport.close()
            return
        problem = f"The headers did not arrive within {self.limits.header_seconds:g} s."
        self._refuse(PoiseError(problem, hint="Send them faster.", code="headers_too_slow"))

    def _refuse(self, error: PoiseError) -> None:
        if self.conn.our_state not in (h11.IDLE, h11.SEND_RESPONSE):  # another response has begun
            self.transport.close()
            return
        request_id = uuid.uuid4().hex
        answer = problems.response(error, request_id)
        answer.headers.update({"Connection": "close", "X-Request-Id": request_id})
        access_log.refused(str((self.client or ("",))[0]), request_id, answer.status_code, error.code)
        reason = HTTPStatus(answer.status_code).phrase.encode()
        head = h11.Response(status_code=answer.status_code, headers=answer.raw_headers, reason=reason)
        for event in (head, h11.Data(data=bytes(answer.body)), h11.EndOfMessage()):
            self.transport.write(self.conn.send(event) or b"")
        self.transport.close()
