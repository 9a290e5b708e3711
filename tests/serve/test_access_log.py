"""The log of requests: one line of JSON each, whatever a client sends."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from datetime import datetime
from typing import Any

import pytest

from poise.serve.http import access_log
from tests.serve.live import HeldService, Live, body, eventually, png, running, settings

FIELDS = ["time", "request_id", "client", "method", "path", "status", "code", "seconds", "images"]


@pytest.fixture(scope="module")
def live() -> Iterator[Live]:
    with running(HeldService(settings(token="secret"))) as server:
        yield server


@pytest.fixture
def log(caplog: pytest.LogCaptureFixture) -> Iterator[Any]:
    """What was logged: a call waits for that many lines."""
    caplog.set_level(logging.INFO, "poise_access")

    def written() -> list[str]:
        return [record.getMessage() for record in caplog.records if record.name == "poise_access"]

    def lines(number: int) -> list[dict[str, Any]]:
        eventually(lambda: len(written()) >= number)
        assert all(line.isascii() and line.isprintable() for line in written())
        return [json.loads(line) for line in written()]

    return lines


def test_a_line_for_each_request(live: Live, log: Any) -> None:
    sent = {"Authorization": "Bearer secret", "X-Request-Id": "order-66", "X-Forwarded-For": "203.0.113.9"}
    assert live.post("/v1/classify", json=body(png(0)), headers=sent).status_code == 200
    (line,) = log(1)
    assert list(line) == FIELDS
    assert datetime.fromisoformat(line["time"]).tzinfo is not None
    assert line["seconds"] > 0
    known = {name: line[name] for name in FIELDS[1:7]} | {"images": line["images"]}
    assert known == {
        "request_id": "order-66",
        "client": "127.0.0.1",  # not what a header says
        "method": "POST",
        "path": "/v1/classify",
        "status": 200,
        "code": None,
        "images": 1,
    }


def test_refused_requests_have_their_codes(live: Live, log: Any) -> None:
    sent = {"Authorization": "Bearer secret"}
    refused = [
        live.get("/v1/models"),
        live.get("/nothing", headers=sent),
        live.post("/v1/classify", json={}, headers=sent),
        live.post("/v1/classify", json=body(png(0), views=65), headers=sent),
    ]
    lines = log(4)
    assert [(line["status"], line["code"]) for line in lines] == [
        (401, "unauthorized"),
        (404, "not_found"),
        (422, "invalid_request"),
        (422, "too_many_views"),
    ]
    assert [line["request_id"] for line in lines] == [answer.headers["x-request-id"] for answer in refused]


def test_what_is_not_http_and_what_is_not_complete(live: Live, log: Any) -> None:
    with live.socket() as connection:
        connection.sendall(b"\x16\x03\x01\r\n\r\n")
        assert connection.recv(12) == b"HTTP/1.1 400"
    assert [(line["status"], line["code"], line["client"]) for line in log(1)] == [(400, "bad_request", "127.0.0.1")]
    with live.socket() as connection:
        head = b"POST /v1/classify HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer secret\r\nContent-Length: 9\r\n\r\n"
        connection.sendall(head)
        eventually(lambda: len(live.server.server_state.tasks) == 1)  # type: ignore[union-attr]
    assert [(line["status"], line["code"]) for line in log(2)[1:]] == [(499, "client_left")]


def test_text_of_clients_is_escaped_and_bounded(live: Live, log: Any) -> None:
    path = b"/%0a%1b[31m%e2%80%ae" + b"x" * 5000
    with live.socket() as connection:
        connection.sendall(b"GET " + path + b" HTTP/1.1\r\nHost: x\r\nX-Request-Id: " + b"y" * 65 + b"\r\n\r\n")
        assert connection.recv(12) == b"HTTP/1.1 401"
    (line,) = log(1)
    assert line["path"].startswith("/\n\x1b[31m\u202exxx")
    assert len(line["path"]) == 200
    assert len(line["request_id"]) == 32


def test_a_failure_is_one_short_line(caplog: pytest.LogCaptureFixture) -> None:
    def deep(depth: int) -> None:
        if not depth:
            raise ValueError("\x1b" + "long " * 1000)
        deep(depth - 1)

    try:
        deep(50)
    except ValueError as error:
        access_log.failed("order-66", error)
    (record,) = caplog.records  # also without --access-log
    line = json.loads(record.getMessage())
    assert (line["request_id"], line["code"]) == ("order-66", "internal_error")
    assert line["exception"].startswith("ValueError: \x1blong ")
    assert line["frames"][-1].endswith(" deep")
    assert len(record.getMessage()) < 3000


def test_nothing_is_logged_without_being_asked(live: Live, caplog: pytest.LogCaptureFixture) -> None:
    assert live.get("/live").status_code == 200
    assert not [record for record in caplog.records if record.name == "poise_access"]
