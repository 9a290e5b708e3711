"""Overload, hostile clients and hostile bodies over real HTTP: each is refused with its own code, others are served."""

from __future__ import annotations

import asyncio
import base64
import io
import json
import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from PIL import Image

from poise.serve.http.middleware import Gate
from poise.serve.limits import Limits
from poise.serve.telemetry import Metrics
from tests.serve.live import LABELS, SOON, HeldService, Live, body, eventually, png, running, settings

LIMITS = Limits(
    labels=50, views=8, methods=2, pixels=10_000, body=300_000, images=4, seconds=30.0, body_seconds=0.5, queue=32
)


@pytest.fixture(scope="module")
def live() -> Iterator[Live]:
    with running(HeldService(settings(limits=LIMITS))) as server:
        yield server


@pytest.fixture(autouse=True)
def healthy_after(live: Live) -> Iterator[None]:
    """Whatever a test sends, nothing stays in the queue, and the next image is answered."""
    yield
    live.service.gate.set()
    eventually(lambda: live.service.waiting == 0)
    assert live.post("/v1/classify", json=body(png(0))).status_code == 200


def refused(live: Live, sent: Any, path: str = "/v1/classify") -> tuple[int, str]:
    content = sent if isinstance(sent, bytes) else json.dumps(sent).encode()
    answer = live.post(path, content=content, headers={"Content-Type": "application/json"})
    assert set(answer.json()["error"]) == {"code", "message", "hint", "request_id"}
    assert len(answer.text) < 2000  # it does not repeat what was sent
    return answer.status_code, answer.json()["error"]["code"]


def large() -> bytes:
    stream = io.BytesIO()
    Image.new("L", (101, 100)).save(stream, "PNG")
    return stream.getvalue()


@pytest.mark.parametrize(
    ("change", "status", "code"),
    [
        ({"labels": [f"label {n}" for n in range(51)]}, 422, "too_many_labels"),
        ({"views": 9}, 422, "too_many_views"),
        ({"views": 10**30}, 422, "invalid_request"),
        ({"methods": ["tpt", "zero-shot", "kld"]}, 422, "too_many_methods"),
        ({"deadline": 31.0}, 422, "deadline_too_long"),
        ({"labels": ["x" * 1001]}, 422, "text_too_long"),
        ({"template": "{}" + "x" * 1001}, 422, "text_too_long"),
        ({"image": base64.b64encode(large()).decode()}, 422, "too_many_pixels"),
        ({"image": "A" * 400_000}, 413, "body_too_large"),
        ({"image": ""}, 422, "unreadable_image"),
        ({"image": "https://example.org/cat.png"}, 422, "bad_base64"),
        ({"image": "file:///etc/passwd"}, 422, "bad_base64"),
        ({"image": "/etc/passwd"}, 422, "bad_base64"),
        ({"image": "data:image/png;base64,AAAA"}, 422, "bad_base64"),
        ({"image": "QUJD\n"}, 422, "bad_base64"),
        ({"image": "é"}, 422, "bad_base64"),
        ({"image": None}, 422, "invalid_request"),
        ({"labels": []}, 422, "bad_labels"),
        ({"labels": "cat"}, 422, "invalid_request"),
        ({"labels": ["cat", 1]}, 422, "invalid_request"),
        ({"labels": ["cat", "cat"]}, 422, "bad_labels"),
        ({"labels": ["cat", " "]}, 422, "bad_labels"),
        ({"labels": ["cat", "dog\x1b[31m"]}, 422, "bad_labels"),
        ({"labels": ["long " * 100]}, 422, "bad_labels"),
        ({"views": "8"}, 422, "invalid_request"),
        ({"views": 0}, 422, "invalid_request"),
        ({"views": True}, 422, "invalid_request"),
        ({"details": 1}, 422, "invalid_request"),
        ({"methods": ["no such method"]}, 422, "unknown_name"),
        ({"methods": ["tda"]}, 422, "invalid_option"),
        ({"template": "no placeholder"}, 422, "bad_template"),
        ({"coverage": 0.9}, 422, "invalid_option"),
        ({"deadline": 0}, 422, "invalid_request"),
        ({"deadline": float("nan")}, 422, "invalid_request"),
        ({"seed": -1}, 422, "invalid_request"),
        ({"no such field": 1}, 422, "invalid_request"),
    ],
)
def test_what_is_refused(live: Live, change: dict[str, Any], status: int, code: str) -> None:
    assert refused(live, {**body(png(0)), **change}) == (status, code)


@pytest.mark.parametrize(
    ("content", "code"),
    [
        (b"", "bad_request"),
        (b"[" * 100_000, "bad_request"),
        (b"[]", "invalid_request"),
        (b"\xff\xfe", "bad_request"),
        (b'{"labels":' * 20_000, "bad_request"),
        (b"null", "invalid_request"),
    ],
)
def test_bodies_that_are_no_request(live: Live, content: bytes, code: str) -> None:
    for path in ("/v1/classify", "/v1/batch", "/v1/zero-shot-image-classification"):
        assert refused(live, content, path)[1] == code


def test_a_hundred_thousand_labels_are_refused_before_they_are_read() -> None:
    with running(HeldService(settings())) as live:
        assert refused(live, body(png(0), labels=[f"label {n}" for n in range(100_000)])) == (422, "too_many_labels")
        assert live.post("/v1/classify", json=body(png(0))).status_code == 200


def test_batches(live: Live) -> None:
    images = [base64.b64encode(png(0)).decode()] * 5
    assert refused(live, {"images": images, "labels": LABELS}, "/v1/batch") == (422, "too_many_images")
    assert refused(live, {"images": ["!"] * 50_000, "labels": LABELS}, "/v1/batch") == (422, "too_many_images")
    assert refused(live, {"images": [], "labels": LABELS}, "/v1/batch") == (422, "invalid_request")
    answer = live.post("/v1/batch", json={"images": ["!"] * 2, "labels": LABELS})
    assert [item["error"]["code"] for item in answer.json()["items"]] == ["bad_base64"] * 2
    costly = {"images": images[:4], "labels": LABELS, "views": 8, "methods": ["kld", "tpt"]}
    assert refused(live, costly, "/v1/batch") == (422, "too_costly")


@pytest.mark.parametrize(
    ("files", "fields", "code"),
    [
        ({}, {"labels": LABELS}, "invalid_request"),
        ({"other": png(0)}, {"labels": LABELS}, "invalid_request"),
        ({"image": png(0)}, {"labels": LABELS, "views": "many"}, "invalid_request"),
        ({"image": png(0)}, {"labels": LABELS, "views": ["2", "3"]}, "invalid_request"),
        ({"image": png(0)}, {"labels": LABELS, "deadline": "NaN"}, "invalid_request"),
        ({"image": png(0)}, {"labels": LABELS, "details": "[" * 10_000}, "invalid_request"),
        ({"image": b"GIF89a"}, {"labels": LABELS}, "unreadable_image"),
        ({}, {"labels": LABELS, "image": "cat.jpg"}, "invalid_request"),
    ],
)
def test_forms_that_are_refused(live: Live, files: dict[str, bytes], fields: dict[str, Any], code: str) -> None:
    answer = live.post("/v1/classify", files=files or {"x": ("", b"")}, data=fields)
    assert (answer.status_code, answer.json()["error"]["code"]) == (422, code)


def test_hugging_face_requests_need_labels(live: Live) -> None:
    sent = {"inputs": base64.b64encode(png(0)).decode(), "parameters": {"candidate_labels": []}}
    assert refused(live, sent, "/v1/zero-shot-image-classification") == (422, "invalid_request")


def test_other_content_types_and_routes(live: Live) -> None:
    answer = live.post("/v1/classify", content=png(0), headers={"Content-Type": "image/png"})
    assert (answer.status_code, answer.json()["error"]["code"]) == (415, "unsupported_media_type")
    assert "curl -F image=@cat.jpg" in answer.json()["error"]["hint"]
    text = live.post("/v1/batch", files={"x": ("", b"")}, data={"images": "cat.jpg", "labels": LABELS})
    assert "curl: -F images=@cat.jpg" in text.json()["error"]["hint"]
    broken = live.post("/v1/classify", content=b"--x", headers={"Content-Type": "multipart/form-data"})
    assert (broken.status_code, broken.json()["error"]["code"]) == (400, "bad_request")
    assert live.get("/v1/nothing").json()["error"]["code"] == "not_found"
    missing = live.get("/v1/classify")
    assert (missing.status_code, missing.headers["allow"]) == (405, "POST")


def test_a_full_queue_gives_429_while_accepted_images_finish(live: Live) -> None:
    live.service.gate.clear()
    with ThreadPoolExecutor(12) as pool:
        calls = [pool.submit(live.post, "/v1/classify", json=body(png(n), views=8)) for n in range(12)]
        eventually(lambda: sum(call.done() for call in calls) == 8)  # 4 x 8 views fit into the queue
        live.service.gate.set()
        answers = [call.result() for call in calls]
    assert sorted(answer.status_code for answer in answers) == [200] * 4 + [429] * 8
    full = next(answer for answer in answers if answer.status_code == 429)
    assert full.json()["error"]["code"] == "queue_full"
    assert int(full.headers["retry-after"]) >= 1


def test_an_image_whose_deadline_passes_is_not_computed(live: Live) -> None:
    live.service.gate.clear()
    late = live.post("/v1/classify", json=body(png(1), deadline=0.1))  # nothing else waits: it is tried
    assert (late.status_code, late.json()["error"]["code"]) == (504, "deadline_exceeded")
    live.service.gate.set()
    eventually(lambda: live.service.waiting == 0)
    live.service.gate.clear()
    with ThreadPoolExecutor(1) as pool:
        running_one = pool.submit(live.post, "/v1/classify", json=body(png(0)))
        eventually(lambda: live.service.holding)
        late = live.post("/v1/classify", json=body(png(1), deadline=0.1))
        assert late.json()["error"]["code"] in ("deadline_exceeded", "queue_full")  # as long as the last ones took
        eventually(lambda: live.service.waiting == 1)
        before = live.service.computed
        live.service.gate.set()
        assert running_one.result().status_code == 200
        assert live.service.computed == before + 1


def test_clients_that_leave_are_not_computed_and_leave_the_server_healthy(live: Live) -> None:
    live.service.gate.clear()
    before = live.service.computed
    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(live.post, "/v1/classify", json=body(png(1), labels=["a", "b"]))
        eventually(lambda: live.service.holding)  # so that the others wait
        sockets = [live.socket() for _ in range(10)]
        for connection in sockets:
            connection.sendall(_request(json.dumps(body(png(0), views=2)).encode()))
        eventually(lambda: live.service.waiting == 11)
        for connection in sockets:
            connection.close()
        eventually(lambda: live.service.waiting == 1)
        live.service.gate.set()
        assert first.result().status_code == 200
    assert live.service.computed == before + 1


def test_clients_that_leave_in_the_middle_of_their_body_leave_nothing_behind(live: Live) -> None:
    assert live.server
    held, before = live.server.server_state.connections, live.service.computed
    eventually(lambda: not held)  # those of the tests before
    content = json.dumps(body(png(0))).encode()
    for sent in (1, 60, len(_request(content)) - 5):
        with live.socket() as connection:
            connection.sendall(_request(content)[:sent])
            eventually(lambda: len(held) == 1)
        eventually(lambda: not held)
    assert (live.service.computed, live.service.waiting) == (before, 0)
    assert live.post("/v1/classify", content=content, headers={"Content-Type": "application/json"}).status_code == 200
    assert live.service.computed == before + 1


def test_a_slow_body_is_cut_off(live: Live) -> None:
    with live.socket() as connection:
        connection.sendall(_request(json.dumps(body(png(0))).encode())[:-10])
        answer = _until_closed(connection)
    assert answer.startswith(b"HTTP/1.1 408")
    assert b"body_too_slow" in answer


@pytest.mark.parametrize("chunked", [True, False])
def test_a_large_body_is_cut_off_while_it_is_sent(live: Live, chunked: bool) -> None:
    length = b"Transfer-Encoding: chunked" if chunked else b"Content-Length: 1000000000"
    head = b"POST /v1/classify HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n" + length + b"\r\n\r\n"
    piece = b"A" * 65_536
    sent = 0
    with live.socket() as connection:
        connection.sendall(head)
        try:
            while sent < 50_000_000:
                connection.sendall(b"%x\r\n%b\r\n" % (len(piece), piece) if chunked else piece)
                sent += len(piece)
        except OSError:
            pass  # the server has closed the connection
        assert sent < 50_000_000
        answer = _until_closed(connection)
    assert not answer or b"body_too_large" in answer  # it may be lost with the closed connection


def test_bodies_of_all_requests_together_are_bounded() -> None:
    limits = Limits(held=200_000, body=150_000, body_seconds=SOON)
    with running(HeldService(settings(limits=limits))) as live:
        sent = _request(b" " * 149_000 + b"{}")
        with live.socket() as first:
            first.sendall(sent[:-2])  # it is read and held
            eventually(lambda: live.post("/v1/classify", content=b" " * 149_000).status_code == 429)
            first.sendall(sent[-2:])
            assert b"422" in first.recv(20)
        assert live.post("/v1/classify", json=body(png(0))).status_code == 200


def _request(content: bytes) -> bytes:
    head = f"POST /v1/classify HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: {len(content)}"
    return head.encode() + b"\r\n\r\n" + content


def _until_closed(connection: socket.socket) -> bytes:
    received = b""
    try:
        while piece := connection.recv(65_536):
            received += piece
    except OSError:
        pass
    return received


def test_one_client_takes_a_share_of_the_places() -> None:
    """Requests of one address, or of one IPv6 network, are refused beyond the limit; those of others are answered."""

    async def ask() -> list[tuple[str, int]]:
        held, answers = asyncio.Event(), []

        async def app(scope: Any, receive: Any, send: Any) -> None:
            await held.wait()
            await send({"type": "http.response.start", "status": 200, "headers": []})
            await send({"type": "http.response.body", "body": b""})

        gate = Gate(app, Metrics(), settings(limits=Limits(per_client=2)))

        async def request(host: str) -> None:
            async def receive() -> Any:
                return {"type": "http.request", "body": b"", "more_body": False}

            async def send(message: Any) -> None:
                if message["type"] == "http.response.start":
                    answers.append((host, message["status"]))

            state = {"request_id": "x"}
            scope = {"type": "http", "path": "/v1/classify", "headers": [], "client": (host, 1), "state": state}
            await gate(scope, receive, send)

        hosts = ["10.0.0.1", "10.0.0.1", "10.0.0.1", "10.0.0.2", "2001:db8::1", "2001:db8::2", "2001:db8::3"]
        calls = [asyncio.create_task(request(host)) for host in hosts]
        while len(answers) < 2:
            await asyncio.sleep(0)
        held.set()
        await asyncio.gather(*calls)
        await request("10.0.0.1")  # its place is free again
        assert not gate.clients
        return answers

    found = asyncio.run(ask())
    assert found[:2] == [("10.0.0.1", 429), ("2001:db8::3", 429)]
    assert [status for _, status in found[2:]] == [200] * 6
