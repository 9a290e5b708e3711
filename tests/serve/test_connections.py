"""Connections over raw sockets: none is lost while a request is sent, and none can be held without a request."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Iterator

import pytest

from poise.errors import InvalidOptionError
from poise.serve.http import uvicorn_server
from poise.serve.limits import Limits
from tests.serve.live import SOON, HeldService, Live, body, eventually, png, running, settings

GET = b"GET /live HTTP/1.1\r\nHost: x\r\n\r\n"
HEADERS_DUE = 1.0  # seconds


@pytest.fixture(scope="module")
def live() -> Iterator[Live]:
    with running(HeldService(settings(limits=Limits(header_seconds=HEADERS_DUE)))) as server:
        yield server


@pytest.fixture(scope="module")
def small() -> Iterator[Live]:
    limits = Limits(body=300_000, connections=4, header_seconds=SOON)
    with running(HeldService(settings(limits=limits))) as server:
        yield server


def answered(connection: socket.socket, request: bytes = GET) -> bytes:
    """Send a request, and return the response, whose length is in its headers."""
    connection.sendall(request)
    received = b""
    while b"\r\n\r\n" not in received:
        received += _piece(connection)
    head, _, content = received.partition(b"\r\n\r\n")
    (length,) = (int(line.split()[1]) for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:"))
    while len(content) < length:
        content += _piece(connection)
    return head + b"\r\n\r\n" + content


def _piece(connection: socket.socket) -> bytes:
    piece = connection.recv(65_536)
    assert piece, "the connection was closed without an answer"
    return piece


def is_closed(connection: socket.socket) -> bool:
    connection.setblocking(False)
    try:
        return connection.recv(1) == b""
    except BlockingIOError:
        return False
    except ConnectionError:
        return True
    finally:
        connection.settimeout(SOON)


def test_a_request_that_arrives_when_an_idle_connection_is_closed_is_answered(monkeypatch: pytest.MonkeyPatch) -> None:
    """The event loop is busy when the connection has been idle for long enough, and the request arrives meanwhile."""
    monkeypatch.setattr(uvicorn_server, "KEEP_ALIVE", 1)
    with running(HeldService(settings())) as live, live.socket() as connection:
        assert live.server
        assert b"200 OK" in answered(connection)
        loop, done = live.loop, threading.Event()
        (held,) = live.server.server_state.connections

        def send() -> None:
            connection.sendall(GET)
            done.set()

        def plan() -> None:
            # Both `send` and the end of the idle time are due when the loop goes on, so that it runs them in this order
            # without looking at the connection in between.
            idle_until = held.timeout_keep_alive_task.when()  # type: ignore[union-attr]
            loop.call_at(idle_until - 1e-3, send)
            while loop.time() < idle_until:
                time.sleep(0.01)

        loop.call_soon_threadsafe(plan)
        assert done.wait(SOON)
        assert b"200 OK" in answered(connection, b"")


def test_clients_learn_why_their_large_body_is_refused(small: Live) -> None:
    """A client that sends all of its body before it reads, as many do, reads the answer afterwards."""
    head = b"POST /v1/classify HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: 500000\r\n\r\n"
    with small.socket() as connection:
        connection.sendall(head + b"A" * 310_000)
        eventually(lambda: _has_answer(connection))
        for _ in range(19):
            connection.sendall(b"A" * 10_000)
            time.sleep(0.01)
        assert b"body_too_large" in answered(connection, b"")
        eventually(lambda: is_closed(connection))


def test_clients_without_a_token_learn_it_after_their_body() -> None:
    with running(HeldService(settings(token="secret"))) as live, live.socket() as connection:
        head = b"POST /v1/classify HTTP/1.1\r\nHost: x\r\nContent-Length: 1000000\r\n\r\n"
        connection.sendall(head)
        eventually(lambda: _has_answer(connection))
        for _ in range(20):
            connection.sendall(b"A" * 50_000)
            time.sleep(0.01)
        assert b"unauthorized" in answered(connection, b"")


def _has_answer(connection: socket.socket) -> bool:
    connection.setblocking(False)
    try:
        return bool(connection.recv(1, socket.MSG_PEEK))
    except BlockingIOError:
        return False
    finally:
        connection.settimeout(SOON)


def test_slow_headers_are_cut_off_though_a_byte_arrives_now_and_then(live: Live) -> None:
    with live.socket() as connection:
        connection.sendall(GET[:-2] + b"X-Slow: ")
        until = time.monotonic() + SOON
        while not _has_answer(connection):
            connection.sendall(b"x")
            time.sleep(0.05)
            assert time.monotonic() < until
        assert answered(connection, b"").startswith(b"HTTP/1.1 408")


def test_slow_headers_are_told_why(live: Live) -> None:
    with live.socket() as connection:
        answer = answered(connection, b"GET /live HT")
        assert answer.startswith(b"HTTP/1.1 408")
        assert json.loads(answer.partition(b"\r\n\r\n")[2])["error"]["code"] == "headers_too_slow"
        eventually(lambda: is_closed(connection))


def wait_until_headers_are_due(live: Live) -> None:
    """Wait until a connection that begins now is cut off."""
    with live.socket() as connection:
        assert answered(connection, GET[:-4]).startswith(b"HTTP/1.1 408")


def test_a_second_request_is_cut_off_too_and_an_idle_connection_is_not(live: Live) -> None:
    with live.socket() as connection:
        answered(connection)
        wait_until_headers_are_due(live)
        assert b"200 OK" in answered(connection)
        assert answered(connection, GET[:-4]).startswith(b"HTTP/1.1 408")


def test_a_connection_without_a_byte_is_closed(live: Live) -> None:
    with live.socket() as connection:
        eventually(lambda: is_closed(connection))


def test_slow_bodies_and_slow_answers_have_their_own_time(live: Live) -> None:
    content = json.dumps(body(png(0))).encode()
    head = b"POST /v1/classify HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"
    with live.socket() as connection:
        connection.sendall(head % len(content) + content[:-1])
        wait_until_headers_are_due(live)
        assert b"200 OK" in answered(connection, content[-1:])


def test_what_is_not_http_is_refused_in_the_usual_shape(live: Live) -> None:
    with live.socket() as connection:
        answer = answered(connection, b"\x16\x03\x01\x02\x00\x01\r\n\r\n")
    assert answer.startswith(b"HTTP/1.1 400")
    error = json.loads(answer.partition(b"\r\n\r\n")[2])["error"]
    assert (error["code"], set(error)) == ("bad_request", {"code", "message", "hint", "request_id"})


def test_idle_connections_make_room_for_new_ones(small: Live) -> None:
    idle = [small.socket() for _ in range(4)]
    try:
        for connection in idle:
            answered(connection)
        for _ in range(3):
            with small.socket() as connection:
                assert b"200 OK" in answered(connection)
        eventually(lambda: is_closed(idle[0]))
        assert b"200 OK" in answered(idle[3])
    finally:
        for connection in idle:
            connection.close()


def test_more_requests_than_connections_are_refused_with_503(small: Live) -> None:
    content = json.dumps(body(png(0), views=1)).encode()
    head = b"POST /v1/classify HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"
    request = head % len(content) + content
    small.service.gate.clear()
    busy = [small.socket() for _ in range(4)]
    try:
        for connection in busy:
            connection.sendall(request)
        eventually(lambda: small.service.waiting == 4)
        with small.socket() as connection:
            answer = answered(connection, request)
            assert answer.startswith(b"HTTP/1.1 503")
            assert b"too_many_connections" in answer
            assert b"retry-after: 1" in answer.lower()
        assert small.get("/ready").status_code == 200  # an orchestrator need not end a server that is busy
        small.service.gate.set()
        assert all(b"200 OK" in answered(connection, b"") for connection in busy)
    finally:
        small.service.gate.set()
        for connection in busy:
            connection.close()


HALF_A_BODY = b"POST %s HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: 100\r\n\r\n{"
WITH_TOKEN = b"GET /v1/models HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer right\r\n\r\n"


@pytest.fixture(scope="module")
def guarded() -> Iterator[Live]:
    limits = Limits(body=300_000, connections=4, header_seconds=SOON)
    with running(HeldService(settings(limits=limits, token="right"))) as server:
        yield server


@pytest.mark.parametrize("path", [b"/live", b"/v1/classify"])
def test_clients_without_a_token_take_no_place(guarded: Live, path: bytes) -> None:
    others = []
    try:
        for _ in range(6):
            others.append(guarded.socket())
            others[-1].sendall(HALF_A_BODY % path)
            assert others[-1].recv(12) in (b"HTTP/1.1 405", b"HTTP/1.1 401")
        with guarded.socket() as connection:
            assert b"200 OK" in answered(connection, WITH_TOKEN)
    finally:
        for connection in others:
            connection.close()


def test_what_is_no_chunk_after_a_refusal_closes_the_connection(
    guarded: Live, caplog: pytest.LogCaptureFixture
) -> None:
    head = b"POST /v1/classify HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
    with guarded.socket() as connection:
        connection.sendall(head)
        assert connection.recv(12) == b"HTTP/1.1 401"
        connection.sendall(b"zzzz\r\n")
        while connection.recv(65_536):
            pass
    assert [record.getMessage() for record in caplog.records if record.exc_info] == []


def test_a_connection_whose_headers_arrive_keeps_its_place(small: Live) -> None:
    begun = [small.socket() for _ in range(4)]
    try:
        for connection in begun:
            connection.sendall(GET[:20])
        eventually(lambda: len(small.server.server_state.connections) == 4)  # what they sent may be unread
        for _ in range(2):
            with small.socket() as connection:
                assert b"200 OK" in answered(connection)
        for connection in begun:
            assert b"200 OK" in answered(connection, GET[20:])
    finally:
        for connection in begun:
            connection.close()


@pytest.mark.parametrize("host", ["a..b", "x" * 300])
def test_a_host_that_can_t_be_resolved_is_one_error(host: str) -> None:
    with pytest.raises(InvalidOptionError, match="can't be resolved"):
        uvicorn_server.check_exposure(host, "", False)
